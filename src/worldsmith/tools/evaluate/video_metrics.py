"""Measures generated videos: metrics, means with intervals, differences between models, a contact sheet."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from worldsmith.actions.action import make_progress_reporter
from worldsmith.config.declare.configurable import Config, field_names
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.evaluation.generated_video import GeneratedVideo, find_real
from worldsmith.evaluation.intervals import mean_interval, ratio_interval, wilson_interval
from worldsmith.evaluation.metrics.base import Better, Metric, Output, Values
from worldsmith.evaluation.metrics.registry import FORWARD, LOSS, METRICS, RATIO, ROBOTS, SHUFFLED, TRUE
from worldsmith.files.fingerprint import fingerprint
from worldsmith.files.json_file import read_json_object
from worldsmith.models.video_model import Mode
from worldsmith.monitor.short_text import FEW_SAMPLES
from worldsmith.monitor.terminal_text import table_lines, terminal_width
from worldsmith.sampling.sample_files import read_files
from worldsmith.tools.evaluate.held_out import HeldOutLoss
from worldsmith.tools.evaluate.held_out_episodes import robot_output
from worldsmith.tools.generate.sample_order import SHEET_SAMPLES, Order, files_fingerprint

RESULT = "evaluation.json"
REAL = "real"
"""Name of the column of the real videos in the table of metrics, next to the columns of the models."""


@dataclass(frozen=True, slots=True)
class Evaluators:
    """Metrics selected for an evaluation of videos, with the configs of all metrics."""

    chosen: Sequence[str]
    configs: Mapping[str, Metric.Config]
    """Config of every metric, by its name in `--evaluators`."""
    mode: Mode | None
    """Generation mode of all videos; None if sample files state the mode of each video."""
    modes: Sequence[Mode]
    """Generation modes that the model supports."""
    robots: bool = False
    """Whether the model was trained on robot episodes."""

    @property
    def active(self) -> list[str]:
        """Names of the selected metrics that can be computed."""
        return [name for name in self.chosen if name not in self.skipped]

    @property
    def skipped(self) -> dict[str, str]:
        """Name of a selected metric that cannot be computed -> reason."""
        requested = [name for name in (*ROBOTS, *METRICS) if name in self.chosen]
        return {name: reason for name in requested if (reason := self.skip_reason(name))}

    def skip_reason(self, name: str) -> str:
        """Returns the reason why a metric other than the loss cannot be computed; "" if it can be computed."""
        if self.robots and name in METRICS:
            return f"the model was trained on robot episodes; available: {', '.join((LOSS, *ROBOTS))}"
        if name in ROBOTS:
            return "" if self.robots else "the model was not trained on robot episodes"
        return METRICS[name].skip_reason(self.configs[name], self.mode, self.modes)

    @property
    def folders(self) -> dict[str, str]:
        """Folder of pretrained weights by metric name, for the metrics whose folder is set."""
        found = {name: kind.weights.folder(self.configs[name]) for name, kind in METRICS.items() if kind.weights}
        return {name: folder for name, folder in found.items() if folder}

    @property
    def generates(self) -> bool:
        """Whether generated videos of captions or sample files are needed."""
        return any(name in METRICS for name in self.active)

    def require_active(self) -> None:
        """Raises UserError if no selected metric can be computed."""
        if not self.active:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            raise UserError(f"no metric can be computed: {reasons}")

    def require_folders(self) -> None:
        """Raises UserError if a folder lacks the weights of its metric, or if no metric can be computed.

        Loads no weights.
        """
        for name, folder in self.folders.items():
            if weights := METRICS[name].weights:
                weights.require(folder)
        self.require_active()

    def build(self, device: str) -> list[Metric]:
        """Returns the metrics that can be computed, with weights loaded on `device`, in the order of the results."""
        active = [*self.active, *(["continuation"] if FORWARD in self.active else [])]
        return [self.configs[name].build(device=device) for name in METRICS if name in active]


def metric_configs(settings: Config) -> dict[str, Metric.Config]:
    """Returns the config of each metric by name, from a config with the fields of all metrics (`MetricOptions`)."""
    return {
        name: kind.Config(**{field: getattr(settings, field) for field in field_names(kind.Config)})
        for name, kind in METRICS.items()
    }


def list_videos(order: Order, files: Sequence[str]) -> list[GeneratedVideo]:
    """Returns the videos of a generation request, each with path, sampling arguments and, if known, the real video.

    The files of the generated videos may not exist yet. `files` are the sample files of the request. Raises UserError
    if the file of a real video is missing.
    """
    folders = {entry.name: entry.layers[0].folder for entry in read_files(files)}
    grid = LatentGrid(*order.model.config.latent_grid)
    found: list[GeneratedVideo] = []
    for sample in order.samples:
        entry = sample.name if sample.name in folders else sample.name.rpartition("/")[0]
        given = len(sample.condition_frame_indexes_vision)
        kept = grid.pixel_frames(given) if given else 0
        args = json.loads(json.dumps(order.arguments(sample)))
        file = order.out / sample.name / sample.file
        found.append(GeneratedVideo(args, file, kept, find_real(sample, folders[entry])))
    return found


def measure_all(
    samples: Mapping[str, Sequence[GeneratedVideo]], losses: Mapping[str, HeldOutLoss], metrics: Collection[Metric]
) -> tuple[dict[str, Any], dict[str, dict[str, Scores]], dict[str, Values]]:
    """Computes all metrics for all models.

    Args:
        samples: The videos, by model name; the first model is compared with the others.
        losses: The held-out losses, by model name.
        metrics: The metrics.

    Returns:
        A tuple: summary by output name as in evaluation.json; scores by model name and output name; values of the real
        videos by sample name and output name. An output is one value of a metric.
    """
    models = {name: measure(show_progress(of, name), metrics) for name, of in samples.items()}
    found = (video for sample in next(iter(samples.values())) if (video := sample.as_real()) is not None)
    real = measure(found, [metric for metric in metrics if metric.measures_real])
    columns = {name: {**of, **loss_scores(losses.get(name, HeldOutLoss()))} for name, of in models.items()}
    outputs = {LOSS: Output("", "held-out loss", "lower")}
    outputs |= {output: about for metric in metrics for output, about in metric.outputs.items()}
    outputs |= {output: robot_output(output) for of in columns.values() for output in of if output not in outputs}
    units = {output: about.unit for output, about in outputs.items()}
    units |= {output: metric.unit(output) for metric in metrics for output in metric.outputs}
    if any(scores.values for scores in real.values()):
        columns[REAL] = real
    results = summarize(units, columns)
    for output in results.keys() & outputs.keys():
        results[output]["better"] = outputs[output].better
    for metric in metrics:
        if (notes := metric.notes()) and (output := next(iter(metric.outputs))) in results:
            results[output]["notes"] = notes
    return results, models, values_of(real)


def loss_scores(found: HeldOutLoss) -> dict[str, Scores]:
    """Returns the scores of a held-out loss and of measurements with robot actions, by output name."""
    scores = {name: Scores(values) for name, values in {LOSS: found.losses, **found.actions}.items()}
    if SHUFFLED in scores:
        scores[RATIO] = Scores(found.actions[SHUFFLED], below=found.actions[TRUE])
    return scores


def show_progress(samples: Sequence[GeneratedVideo], name: str) -> Iterator[GeneratedVideo]:
    """Yields copies of the samples, so that loaded frames are freed after use, and shows the progress.

    `name` is the name of the model.
    """
    show = make_progress_reporter(f"measuring {len(samples)} videos ({name})")
    for number, sample in enumerate(samples, start=1):
        yield sample.without_frames()
        show(number, len(samples))


def signature_of(
    evaluators: Evaluators, samples: Mapping[str, Sequence[GeneratedVideo]], losses: Mapping[str, HeldOutLoss]
) -> str:
    """Returns a fingerprint of all inputs of evaluation.json: metrics with weights and settings, losses, videos.

    `samples` and `losses` are by model name.
    """
    networks = [fingerprint(folder) for folder in evaluators.folders.values()]
    found = [[name, of.losses, of.left_out, of.actions] for name, of in losses.items()]
    settings = [to_dict(evaluators.configs[name]) for name in METRICS if name in evaluators.active]
    digest = hashlib.sha256(repr([evaluators.active, settings, networks, found]).encode())
    for name, sample in ((name, sample) for name, of in samples.items() for sample in of):
        files = [sample.file, *([] if sample.source is None else [sample.source])]
        digest.update(f"{name} {json.dumps(sample.args, sort_keys=True)} {files_fingerprint(files)}\n".encode())
    return digest.hexdigest()


def read_known(file: Path, signature: str) -> dict[str, Any]:
    """Returns the content of a result file if it exists and contains `signature`; else an empty dictionary.

    Raises UserError if the file is invalid.
    """
    if not file.is_file():
        return {}
    try:
        known = read_json_object(file)
        if known.get("signature") == signature:
            list(format_measurements(known["figures"]))
            return known
    except UserError as error:
        raise UserError(f"{error}. Remove the file to measure the videos again") from None
    except (AttributeError, LookupError, TypeError, ValueError):
        raise UserError(f"{file} does not contain metrics. Remove the file to measure the videos again") from None
    return {}


def draw(sheet: Path, samples: Mapping[str, Sequence[GeneratedVideo]]) -> None:
    """Writes the image `sheet`: a row of frames per model and, if real videos are known, a row of their frames.

    `samples` are the videos by model name.
    """
    import torch

    from worldsmith.sampling.write_media import contact_sheet, few_frames

    first = next(iter(samples.values()))[:SHEET_SAMPLES]
    rows = [(name, [few_frames(sample.file) for sample in of[:SHEET_SAMPLES]]) for name, of in samples.items()]
    if any(sample.source is not None for sample in first):
        real = [sample.without_frames().real for sample in first]
        none = torch.full((3, 1, 16, 16), 255, dtype=torch.uint8)
        rows.append((REAL, [none if isinstance(video, str) else video for video in real]))
    contact_sheet(sheet, rows, [str(sample.args["prompt"]) for sample in first])


def values_of(scores: Mapping[str, Scores]) -> dict[str, Values]:
    """Regroups scores by output name: returns the values of each sample, by sample name and then by output name.

    A value is a number, or a string with the reason why it is missing. Outputs that are measured over all samples
    together are omitted.
    """
    found: dict[str, Values] = {}
    for output, of in scores.items():
        for name, value in of.values.items() if of.samples is None else ():
            found.setdefault(name, {})[output] = value
    return found


def record(sample: GeneratedVideo, values: Values, out: Path) -> dict[str, Any]:
    """Returns the entry of a sample in evaluation.json: arguments, files, values, and reasons of missing values.

    The path of the generated video is relative to `out`, the path of the real video is absolute.
    """
    return {
        **{name: sample.args[name] for name in ("name", "seed", "model_mode", "prompt")},
        "file": str(sample.file.relative_to(out)),
        "real": None if sample.source is None else str(sample.source.absolute()),
        "figures": {name: value for name, value in values.items() if not isinstance(value, str)},
        "not_measured": {name: value for name, value in values.items() if isinstance(value, str)},
    }


@dataclass(frozen=True, slots=True)
class Scores:
    """Values of one output of a metric for one model, by sample."""

    values: Mapping[str, float | str]
    """Name of a sample, of a group of samples, or of a clip ("": all samples together) -> value, or a string with the
    reason why the value is missing."""
    samples: int | None = None
    """Number of samples that were measured together; None if there is one value per sample."""
    below: Mapping[str, float | str] | None = None
    """Denominators, if the mean is a ratio: that of the sums of `values` and of these; None: it is no ratio."""

    @property
    def numbers(self) -> dict[str, float]:
        """The values that were measured, by sample name; missing values are omitted."""
        below = self.below or {}
        return {
            name: value
            for name, value in self.values.items()
            if not isinstance(value, str) and not isinstance(below.get(name), str)
        }

    def facts(self, *, share: bool) -> dict[str, Any]:
        """Returns mean, interval and number of the values, see `facts`."""
        numbers, below = self.numbers, self.below or {}
        return facts(
            list(numbers.values()), self.samples, share=share, below=[float(below[n]) for n in numbers if below]
        )

    @property
    def not_measured(self) -> dict[str, int]:
        """Reason of missing values -> number of values that are missing for this reason."""
        return dict(sorted(Counter(value for value in self.values.values() if isinstance(value, str)).items()))


def measure(videos: Iterable[GeneratedVideo], metrics: Collection[Metric]) -> dict[str, Scores]:
    """Computes the metrics over the videos of one model; returns the scores by output name of the metrics."""
    if not metrics:
        return {}
    for metric in metrics:
        metric.reset()
    count = 0
    for video in videos:
        for metric in metrics:
            metric.update([video])
        count += 1
    return {output: scores for metric in metrics for output, scores in scores_of(metric, count)}


def scores_of(metric: Metric, count: int) -> Iterator[tuple[str, Scores]]:
    """Yields (output name, scores) of each output of a metric that has measured `count` videos."""
    computed = metric.compute()
    together: dict[str, float | str] = {**metric.not_measured, **computed}
    for output in metric.outputs:
        if metric.by_sample:
            yield output, Scores({name: of[output] for name, of in metric.by_sample.items() if output in of})
        else:
            value = {"": together[output]} if output in together else {}
            yield output, Scores(value, count if metric.samples is None else metric.samples)


def summarize(units: Mapping[str, str], models: Mapping[str, Mapping[str, Scores]]) -> dict[str, Any]:
    """Computes mean and interval of each output per model, and the paired differences of the first model to the others.

    Args:
        units: Unit of each output by output name. Outputs without any value are omitted.
        models: Scores by model name and output name.

    Returns:
        The summary by output name: `unit`, the results of `facts` by model name, `difference` (results of `facts` by
        name of the model compared with the first one), and `not_measured` (numbers by model name and reason).
    """
    found: dict[str, Any] = {}
    first = next(iter(models))
    for output, unit in units.items():
        scores = {name: of.get(output, Scores({})) for name, of in models.items()}
        if not any(of.values for of in scores.values()):
            continue
        numbers = scores[first].numbers
        differences = {}
        for name, of in list(scores.items())[1:]:
            others = of.numbers
            pairs = [value - others[key] for key, value in numbers.items() if key in others and of.below is None]
            differences[name] = facts(pairs, of.samples)
        found[output] = {
            "unit": unit,
            **{name: of.facts(share=unit == "share") for name, of in scores.items()},
            "difference": differences,
            "not_measured": {name: of.not_measured for name, of in scores.items()},
        }
    return found


def facts(
    values: Sequence[float], samples: int | None = None, *, share: bool = False, below: Sequence[float] = ()
) -> dict[str, Any]:
    """Returns a dict with `mean`, 95 % `interval` (low, high) and `samples`, the number of samples, of values.

    Args:
        values: The values.
        samples: Number of samples, if one value measures many samples, such as FVD; None: one value per sample.
        share: The values are 0 or 1, for which Wilson's interval is used.
        below: Denominators of the values, if the mean is a ratio of sums; (): it is no ratio.
    """
    mean = sum(values) / (sum(below) or len(values)) if values else None
    if share:
        interval = wilson_interval(int(sum(values)), len(values))
    else:
        interval = ratio_interval(values, below) if below else mean_interval(values)
    return {"mean": mean, "interval": interval, "samples": len(values) if samples is None else samples}


def format_measurements(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a table with one row per output and one column per model, then notes on missing values.

    If the terminal is narrower than the table, it is split into several tables. `figures` is the summary by output
    name, from `summarize`.
    """
    some, *_ = figures.values()
    models = list(some["not_measured"])
    rows = [["figure", "unit", *models, *(f"minus {name}" for name in models[1:]), "samples"]]
    notes, has_intervals = [], False
    for name, figure in figures.items():
        first = figure[models[0]]
        told = [*(figure[model] for model in models), *figure["difference"].values()]
        has_intervals |= any(fact["interval"] is not None for fact in told)
        rows.append([name, figure["unit"], *map(format_mean, told), str(first["samples"])])
        for model, reasons in figure["not_measured"].items():
            notes += [f"{name}: {count} not measured ({model}): {reason}" for reason, count in reasons.items()]
        notes += [f"{name}: {note}" for note in figure.get("notes", [])]
    yield from table_lines(rows, terminal_width(sys.stdout))
    if has_intervals:
        yield "in brackets: 95 % interval of the mean over the samples"
        if min(figure[models[0]]["samples"] for figure in figures.values()) < FEW_SAMPLES:
            yield "the interval is too narrow for so few samples"
    for better in get_args(Better):
        if names := [name for name, figure in figures.items() if figure.get("better") == better]:
            yield f"{better} is better: {', '.join(names)}"
    yield from notes


def format_mean(fact: Mapping[str, Any]) -> str:
    """Returns the mean and interval of a summary entry (from `facts`) as text; "-" if there is no mean."""
    if fact["mean"] is None:
        return "-"
    interval = "" if fact["interval"] is None else " [{:.4g}, {:.4g}]".format(*fact["interval"])
    return f"{fact['mean']:.4g}{interval}"
