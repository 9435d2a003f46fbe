"""What `worldsmith evaluate` measures of generated videos and writes: by which metrics, results and a contact sheet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsmith.actions.action import share_done
from worldsmith.config.declare.configurable import Config, field_names
from worldsmith.config.errors import UserError
from worldsmith.evaluation.generated_video import GeneratedVideo
from worldsmith.evaluation.measuring import LOSS, REAL, Scores, format_measurements, measure, summarize
from worldsmith.evaluation.metrics.base import Metric, Values
from worldsmith.evaluation.metrics.registry import METRICS
from worldsmith.files.json_file import read_json_object
from worldsmith.models.video_model import Mode
from worldsmith.tools.evaluate.held_out import HeldOutLoss
from worldsmith.tools.generate.sample_order import SHEET_SAMPLES


@dataclass(frozen=True, slots=True)
class Evaluators:
    """The requested evaluators."""

    chosen: Sequence[str]
    configs: Mapping[str, Metric.Config]
    """Of every metric."""
    mode: Mode | None
    """What the videos of a data set are generated from; None: files of samples state it."""
    modes: Sequence[Mode]
    """What the model could generate them from."""

    @property
    def active(self) -> list[str]:
        """The evaluators that can measure something."""
        return [name for name in self.chosen if name not in self.skipped]

    @property
    def skipped(self) -> dict[str, str]:
        """Why the others measure nothing."""
        requested = [name for name in METRICS if name in self.chosen]
        found = {name: METRICS[name].skip_reason(self.configs[name], self.mode, self.modes) for name in requested}
        return {name: reason for name, reason in found.items() if reason}

    @property
    def folders(self) -> dict[str, str]:
        """Folders of pretrained weights that are given."""
        found = {name: kind.weights.folder(self.configs[name]) for name, kind in METRICS.items() if kind.weights}
        return {name: folder for name, folder in found.items() if folder}

    @property
    def generates(self) -> bool:
        """Whether videos are generated: not for the loss only."""
        return any(name != LOSS for name in self.active)

    def require_active(self) -> None:
        """Raises UserError if none can measure anything."""
        if not self.active:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            raise UserError(f"nothing can be measured: {reasons}")

    def require_folders(self) -> None:
        """Raises UserError for a folder that does not hold the weights of its metric, and if none can measure anything;
        reads no weights."""
        for name, folder in self.folders.items():
            if weights := METRICS[name].weights:
                weights.require(folder)
        self.require_active()

    def build(self, device: str) -> list[Metric]:
        """The active metrics, in the order of results, with their weights."""
        return [self.configs[name].build(device=device) for name in METRICS if name in self.active]


def metric_configs(settings: Config) -> dict[str, Metric.Config]:
    """The Config of each metric, from a Config that has the fields of all of them (`MetricOptions`)."""
    return {
        name: kind.Config(**{field: getattr(settings, field) for field in field_names(kind.Config)})
        for name, kind in METRICS.items()
    }


RESULT = "evaluation.json"


def measure_all(
    samples: Mapping[str, Sequence[GeneratedVideo]], losses: Mapping[str, HeldOutLoss], metrics: Collection[Metric]
) -> tuple[dict[str, Any], dict[str, dict[str, Scores]], dict[str, Values]]:
    """Results of all metrics, the scores of each model, and the values of each real video."""
    models = {name: measure(show_progress(of, name), metrics) for name, of in samples.items()}
    found = (video for sample in next(iter(samples.values())) if (video := sample.as_real()) is not None)
    real = measure(found, [metric for metric in metrics if metric.measures_real])
    columns = {name: {**of, LOSS: Scores(losses[name].losses if name in losses else {})} for name, of in models.items()}
    units = {output: metric.unit(output) for metric in metrics for output in metric.outputs}
    if any(scores.values for scores in real.values()):
        columns[REAL] = real
    results = summarize({LOSS: "", **units}, columns)
    if LOSS in results:
        results[LOSS]["better"] = "lower"
    for metric in metrics:
        for output in results.keys() & metric.outputs.keys():
            results[output]["better"] = metric.outputs[output].better
        if (notes := metric.notes()) and (output := next(iter(metric.outputs))) in results:
            results[output]["notes"] = notes
    return results, models, values_of(real)


def show_progress(samples: Sequence[GeneratedVideo], name: str) -> Iterator[GeneratedVideo]:
    """Yields samples whose videos are not kept in memory afterwards, and shows how many are done."""
    show = share_done(f"measuring {len(samples)} videos ({name})")
    for number, sample in enumerate(samples, start=1):
        yield sample.unread()
        show(number, len(samples))


def read_known(file: Path, signature: str) -> dict[str, Any]:
    """Reads what an earlier command measured of the same videos; empty if it measured other ones."""
    if not file.is_file():
        return {}
    try:
        known = read_json_object(file)
        if known.get("signature") == signature:
            list(format_measurements(known["figures"]))
            return known
    except UserError as error:
        raise UserError(f"{error}; remove it, and the videos are measured again") from None
    except (AttributeError, LookupError, TypeError, ValueError):
        raise UserError(f"{file} does not hold figures; remove it, and the videos are measured again") from None
    return {}


def draw(sheet: Path, samples: Mapping[str, Sequence[GeneratedVideo]]) -> None:
    """Each model's videos, and the real ones where any is known."""
    import torch

    from worldsmith.sampling.video_writer import contact_sheet, few_frames

    first = next(iter(samples.values()))[:SHEET_SAMPLES]
    rows = [(name, [few_frames(sample.file) for sample in of[:SHEET_SAMPLES]]) for name, of in samples.items()]
    if any(sample.source is not None for sample in first):
        real = [sample.unread().real for sample in first]
        none = torch.full((3, 1, 16, 16), 255, dtype=torch.uint8)
        rows.append((REAL, [none if isinstance(video, str) else video for video in real]))
    contact_sheet(sheet, rows, [str(sample.args["prompt"]) for sample in first])


def values_of(scores: Mapping[str, Scores]) -> dict[str, Values]:
    """Values of all outputs that have one for each sample or group, by sample."""
    found: dict[str, Values] = {}
    for output, of in scores.items():
        for name, value in of.values.items() if of.samples is None else ():
            found.setdefault(name, {})[output] = value
    return found


def record(sample: GeneratedVideo, values: Values, out: Path) -> dict[str, Any]:
    """A sample in evaluation.json."""
    return {
        **{name: sample.args[name] for name in ("name", "seed", "model_mode", "prompt")},
        "file": str(sample.file.relative_to(out)),
        "real": None if sample.source is None else str(sample.source.absolute()),
        "figures": {name: value for name, value in values.items() if not isinstance(value, str)},
        "not_measured": {name: value for name, value in values.items() if isinstance(value, str)},
    }
