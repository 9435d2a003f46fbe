"""`worldsmith evaluate` for video generators, with prompts of one's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from worldsmith.actions.action import Result, share_done
from worldsmith.actions.model_action import VideoAction
from worldsmith.actions.outputs.adherence import MeasureAdherence
from worldsmith.actions.outputs.generate import GenerateVideos
from worldsmith.actions.outputs.sample_order import SHEET, SHEET_SAMPLES, Order, mark_of
from worldsmith.config import wrong
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.distributed.world import world_size
from worldsmith.evaluation.made_video import MadeVideo, find_real
from worldsmith.evaluation.measuring import EVALUATORS, REAL, Measured, measure, measure_real, summarize, table
from worldsmith.files.atomic import write_text
from worldsmith.files.json_file import read_json_object
from worldsmith.files.writable import require_writable
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.monitor.page.run_page import refresh_page
from worldsmith.sampling.sample_files import read_files

RESULT = "evaluation.json"
SAME_FORM = ("height", "width", "num_frames", "fps")
"""What the samples of two models must share to be compared."""
Evaluator = Literal["continuation", "motion", "sharpness", "diversity", "shapes"]


class MeasureVideos(VideoAction):
    """Measures what a generator makes of prompts of one's own, or of those of a moving-shapes dataset.

    -i FILE takes files of samples as `worldsmith generate` does: videos are made of each model, complete ones are left
    alone, and evaluation.json, a table and a contact sheet say what is measured of them. --prompts takes the prompts of
    a moving-shapes dataset and counts the videos that show what they ask for.
    """

    aliases: ClassVar[Mapping[str, str]] = {**VideoAction.aliases, "-i": "input_files"}

    class Config(VideoAction.Config):
        input_files: list[str] = field(default_factory=list)
        """Files of samples, or patterns; the flag may be repeated. The real video of a sample is named by `real` in its
        `extra`, else it is the vision_path of a video that goes on from its beginning."""
        prompts: str | None = None
        """prompts.jsonl of a moving-shapes dataset."""
        out: str
        """Folder of the videos, a contact sheet and evaluation.json (or adherence.json)."""
        untrained: str | None = None
        """A run whose first weights are measured beside the model."""
        baseline: str | None = None
        """Another model that is measured beside it."""
        weights: Literal["auto", "ema", "live"] = "auto"
        """auto: averaged (ema) if there are any."""
        evaluators: list[Evaluator] = field(default_factory=list)
        """What is measured; empty: all that can be."""

        def check(self) -> None:
            if (self.prompts is None) == (not self.input_files):
                raise wrong(self, "input_files", why="what is generated comes from --input-files or from --prompts",
                            remedy="give one of them")  # fmt: skip
            for name in ("baseline", "evaluators"):
                if self.prompts is not None and getattr(self, name):
                    raise wrong(self, name, "prompts", why="the former needs files of samples",
                                remedy="give these with --input-files, and what they show in their extra")  # fmt: skip

    config: Config

    def plan(self) -> Iterator[str]:
        require_one_process()
        if self.config.prompts is not None:
            yield from self.adherence().plan()
            return
        for name, (order, _) in self.orders().items():
            self.samples(order)
            yield f"{name:<12}{order.model.folder} ({order.model.weights_in_words})"
            yield f"{'':<12}{order.count(len(order.made()))}, in {order.out}"
        yield f"{'evaluators':<12}{', '.join(self.chosen())}"
        yield f"{'figures':<12}{Path(self.config.out) / RESULT}"

    def run(self) -> Result:
        require_one_process()
        if self.config.prompts is not None:
            return self.adherence().run()
        orders = self.orders()
        samples = {name: self.samples(order) for name, (order, _) in orders.items()}
        require_writable(Path(self.config.out))
        for _, generation in orders.values():
            generation.run()
        return self.measure({name: order for name, (order, _) in orders.items()}, samples)

    def measure(self, orders: Mapping[str, Order], samples: Mapping[str, Sequence[MadeVideo]]) -> Result:
        """Measures what is made, or repeats what was measured of the same."""
        out = Path(self.config.out)
        file, signature = out / RESULT, self.signature(samples)
        last = [f"contact sheet {out / SHEET}", f"figures       {file}"]
        known = {} if self.config.force else figures_of(file, signature)
        if known and (out / SHEET).is_file():
            line = f"{file} is complete for these videos; nothing to do (--force makes and measures them again)"
            return Result([line, *table(known["figures"]), *last], known)
        measured = {
            name: measure(of, self.chosen(), share_done(f"measuring {len(of)} videos ({name})"))
            for name, of in samples.items()
        }
        real = measure_real(next(iter(samples.values())), self.chosen())
        columns = {**measured, REAL: real} if any(real.by_sample.values()) else measured
        draw(out / SHEET, samples)
        facts: dict[str, Any] = {
            "signature": signature,
            "evaluators": self.chosen(),
            "models": {name: order.about for name, order in orders.items()},
            "figures": summarize(columns),
            "samples": {name: [record(one, measured[name], out) for one in of] for name, of in samples.items()},
            REAL: real.by_sample,
        }
        write_text(file, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        refresh_page(out)
        inputs = [Input("model", orders["trained"].model.folder)]
        inputs += [Input("dataset", place) for place in self.config.input_files]
        write_lineage(out, action="evaluate", settings=to_dict(self.config), inputs=inputs, outputs=[RESULT, SHEET])
        return Result([*table(facts["figures"]), *last], facts)

    def adherence(self) -> MeasureAdherence:
        config = self.config
        names = [one.name for one in fields(MeasureAdherence.Config)]
        return MeasureAdherence.Config(**{name: getattr(config, name) for name in names}).build()

    def chosen(self) -> list[str]:
        return list(self.config.evaluators or EVALUATORS)

    def orders(self) -> dict[str, tuple[Order, GenerateVideos]]:
        """What is generated with each model. Raises UserError when that cannot be compared."""
        config = self.config
        found: dict[str, tuple[Order, GenerateVideos]] = {}
        for name, model in (("trained", config.model), ("baseline", config.baseline), ("untrained", config.untrained)):
            if model is None:
                continue
            generation = GenerateVideos.Config(
                model=model,
                base=config.base,
                force=config.force,
                input_files=config.input_files,
                out=str(Path(config.out) / name),
                weights="untrained" if name == "untrained" else config.weights if name == "trained" else "auto",
                num_steps=config.steps,
                guidance=config.guidance,
                dynamic_guidance=config.dynamic_guidance,
                shift=config.shift,
                scheduler=config.scheduler,
                device=config.device,
            ).build()
            order = generation.prepare()
            first = found["trained"][0] if found else order
            for sample, other in zip(order.samples, first.samples, strict=True):
                if differing := [one for one in SAME_FORM if getattr(sample, one) != getattr(other, one)]:
                    raise UserError(
                        f"{sample.name}: {' and '.join(differing)} would be "
                        f"{', '.join(f'{getattr(sample, one):g}' for one in differing)} with {model}, and "
                        f"{', '.join(f'{getattr(other, one):g}' for one in differing)} with {config.model}; say in the "
                        "files of samples what it is to be"
                    )
            found[name] = order, generation
        return found

    def samples(self, order: Order) -> list[MadeVideo]:
        """What an order makes. Raises UserError for a real video that is not there."""
        folders = {entry.name: entry.layers[0].folder for entry in read_files(self.config.input_files)}
        grid = LatentGrid(*order.model.config.latent_grid)
        found: list[MadeVideo] = []
        for sample in order.samples:
            entry = sample.name if sample.name in folders else sample.name.rpartition("/")[0]
            given = len(sample.condition_frame_indexes_vision)
            kept = grid.pixel_frames(given) if given else 0
            args = json.loads(json.dumps(order.arguments(sample)))
            file = order.out / sample.name / sample.file
            found.append(MadeVideo(args, file, kept, find_real(sample, folders[entry])))
        return found

    def signature(self, samples: Mapping[str, Sequence[MadeVideo]]) -> str:
        """Changes with what is measured, every video, and every real one."""
        digest = hashlib.sha256(repr(self.chosen()).encode())
        for name, sample in ((name, sample) for name, of in samples.items() for sample in of):
            files = [sample.file, *([] if sample.source is None else [sample.source])]
            digest.update(f"{name} {json.dumps(sample.args, sort_keys=True)} {mark_of(files)}\n".encode())
        return digest.hexdigest()


def require_one_process() -> None:
    """Raises UserError in a launch of several."""
    if world_size() > 1:
        raise UserError(
            "videos are measured by one process; `worldsmith launch … generate MODEL -i FILE -o OUT/trained` makes "
            "them in several, and `worldsmith evaluate MODEL -i FILE -o OUT` then measures them"
        )


def figures_of(file: Path, signature: str) -> dict[str, Any]:
    """What an earlier command measured of the same videos; nothing if there is no such."""
    if not file.is_file():
        return {}
    try:
        known = read_json_object(file)
        if known.get("signature") == signature:
            list(table(known["figures"]))
            return known
    except UserError as error:
        raise UserError(f"{error}; remove it, and the videos are measured again") from None
    except (AttributeError, LookupError, TypeError, ValueError):
        raise UserError(f"{file} does not hold figures; remove it, and the videos are measured again") from None
    return {}


def draw(sheet: Path, samples: Mapping[str, Sequence[MadeVideo]]) -> None:
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


def record(sample: MadeVideo, measured: Measured, out: Path) -> dict[str, Any]:
    """A sample in evaluation.json."""
    values = {**measured.by_sample[sample.name], **measured.by_group.get(sample.name, {})}
    return {
        **{name: sample.args[name] for name in ("name", "seed", "model_mode", "prompt")},
        "file": str(sample.file.relative_to(out)),
        "real": None if sample.source is None else str(sample.source.absolute()),
        "figures": {name: value for name, value in values.items() if not isinstance(value, str)},
        "not_measured": {name: value for name, value in values.items() if isinstance(value, str)},
    }
