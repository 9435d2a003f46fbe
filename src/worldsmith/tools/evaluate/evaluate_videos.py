"""`worldsmith evaluate` for video generators, on the user's own clips or samples."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from worldsmith.actions.action import Action, Result, make_progress_reporter
from worldsmith.actions.model_action import VideoAction, find_device, require_outside
from worldsmith.actions.pool_action import POOL_FLAGS, PoolAction
from worldsmith.actions.registry import command_class_for_flag
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config import WrongValueError, wrong
from worldsmith.config.declare.configurable import field_names
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import class_defaults, to_dict
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.world import world_size
from worldsmith.evaluation.generated_video import GeneratedVideo
from worldsmith.evaluation.metrics.registry import LOSS, METRICS, ROBOTS, Evaluator, MetricOptions
from worldsmith.files.atomic import write_text
from worldsmith.files.fingerprint import fingerprint
from worldsmith.files.write_checks import require_writable
from worldsmith.models.video_model import Mode
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.monitor.page.run_page import refresh_page
from worldsmith.monitor.run_record import package_versions
from worldsmith.tools.evaluate.held_out import SAMPLES, HeldOutClips, HeldOutLoss, choose_mode, write_samples
from worldsmith.tools.evaluate.held_out_episodes import HeldOutEpisodes, robot_modes
from worldsmith.tools.evaluate.video_metrics import (
    REAL,
    RESULT,
    Evaluators,
    draw,
    format_measurements,
    list_videos,
    measure_all,
    metric_configs,
    read_known,
    record,
    signature_of,
    values_of,
)
from worldsmith.tools.generate.generate import GenerateVideos
from worldsmith.tools.generate.sample_order import SHEET, Order, make_order

logger = logging.getLogger(__name__)

SAME_FORM = ("height", "width", "num_frames", "fps")
"""Sample arguments that must be equal for all models, so that their videos can be compared."""


class EvaluateVideos(PoolAction, VideoAction):
    """Evaluates a generator on your own clips, your own samples, or a moving-shapes dataset.

    With --dataset DIR, it measures the loss on clips that were not trained on, and compares videos that are generated
    from their captions with the clips. With -i FILE, it measures videos of sample files as for `worldsmith generate`.
    With --prompts FILE, it counts the videos that show the shape in the prompts of a moving-shapes dataset. Videos are
    generated once per model, with --processes N in N processes; the results are evaluation.json, a table and a contact
    sheet. A run on robot episodes is measured on held-out episodes: its loss, its actions from true frames, and its
    videos from true actions.
    """

    aliases: ClassVar[Mapping[str, str]] = {**VideoAction.aliases, "-i": "input_files"}

    class Config(PoolAction.Config, MetricOptions, VideoAction.Config):
        dataset: str | None = None
        """Dataset of clips, which is read with the settings of the training data: its video_dataset_file.jsonl, its
        folder, or .tar shards. For a run on robot episodes: the folder of a LeRobot dataset, or the name of one of the
        run's datasets; null: the held-out episodes of the run."""
        max_videos: Count = 16
        """With --dataset: number of clips for which videos are generated; no effect with --evaluators loss. With robot
        episodes: number of windows for which videos and actions are generated."""
        model_mode: Mode | None = None
        """With --dataset: generation mode; null: text-to-video if the model supports it, otherwise image-to-video."""
        input_files: list[str] = field(default_factory=list)
        """Sample files or glob patterns; the flag may be repeated. A sample is compared with the real video that the
        `real` entry of its `extra` names, otherwise with the video that it continues (vision_path)."""
        prompts: str | None = None
        """prompts.jsonl of a moving-shapes dataset."""
        out: str
        """Output folder for the videos, a contact sheet and evaluation.json (or adherence.json)."""
        untrained: str | None = None
        """Run whose initial weights are measured in addition to the model."""
        baseline: str | None = None
        """Second model, whose metrics are compared with those of the model."""
        weights: Literal["auto", "ema", "live"] = "auto"
        """auto: the EMA weights (ema) if they exist, otherwise the raw weights (live)."""
        evaluators: list[Evaluator] = field(default_factory=list)
        """Metrics to compute; empty: all that are available."""

        def check(self) -> None:
            super().check()
            if self.prompts is not None and self.uses_pool:
                raise wrong(self, "prompts", why="one process measures it", remedy=f"omit {POOL_FLAGS}")
            if sum((self.prompts is not None, bool(self.input_files), self.dataset is not None)) > 1:
                raise self.source_error()
            defaults = class_defaults(type(self))
            for name in ("baseline", "evaluators", *field_names(MetricOptions)):
                if self.prompts is not None and getattr(self, name) != defaults[name]:
                    raise wrong(self, name, "prompts", why="the former needs sample files or a dataset",
                                remedy="use sample files with --input-files instead of --prompts")  # fmt: skip
            if self.input_files and {LOSS, *ROBOTS} & {*self.evaluators}:
                raise wrong(self, "evaluators", "dataset", why="the loss and actions need a dataset",
                            remedy="give --dataset DIR")  # fmt: skip
            if (self.input_files or self.prompts is not None) and self.model_mode is not None:
                raise wrong(self, "model_mode", "dataset", why="sample files set the generation mode",
                            remedy="set model_mode in the sample files")  # fmt: skip

        def source_error(self) -> WrongValueError:
            """Returns the error for none or several data."""
            return wrong(self, "dataset", "input_files", "prompts", why="one of them selects what is measured",
                         remedy="give one")  # fmt: skip

    config: Config
    mode: Mode | None = None
    """Generation mode of the videos with --dataset; None with sample files, which state the mode of each video."""
    modes: Sequence[Mode] = ()
    """Generation modes that the model supports."""

    def plan(self) -> Iterator[str]:
        require_one_process()
        if self.config.prompts is not None:
            yield from self.on_prompts().plan()
            return
        self.evaluators.require_folders()
        if not self.config.input_files:
            yield from self.plan_clips()
        else:
            for name, (order, _) in self.orders().items():
                list_videos(order, self.files)
                yield f"{name:<12}{order.model.folder} ({order.model.weights_description})"
                yield f"{'':<12}{order.count(len(order.made()))}, in {order.out}"
        yield f"{'evaluators':<12}{', '.join(self.evaluators.active)}"
        yield from (f"{'skipped':<12}{name}: {reason}" for name, reason in self.evaluators.skipped.items())
        yield f"{'figures':<12}{Path(self.config.out) / RESULT}"

    def plan_clips(self) -> Iterator[str]:
        """Yields the output lines of `--dry-run` for a dataset of clips or episodes; opens no clip."""
        models = self.models()
        clips = self.held_out_clips(models)
        for name, model in models.items():
            yield f"{name:<12}{model.folder} ({model.weights_description})"
        yield f"{'data':<12}{clips.dataset.num_samples} windows of {clips.dataset.name}"
        yield from clips.left_out_lines()
        yield from (f"{'noted':<12}{line}" for line in self.find_trained_on(clips)[1])
        if LOSS in self.evaluators.active:
            yield f"{'loss':<12}{clips.no_loss_reason or f'of every window, seed {clips.data.seed}'}"
        count = min(self.config.max_videos, clips.dataset.num_samples)
        modes = [self.mode] if self.evaluators.generates else [one for one in self.evaluators.active if one in ROBOTS]
        yield from (f"{'videos':<12}{count} per model, {mode}" for mode in modes)

    def run(self) -> Result:
        require_one_process()
        if self.config.prompts is not None:
            return self.on_prompts().run()
        self.evaluators.require_folders()
        if not self.config.input_files:
            return self.run_on_clips()
        orders = self.orders()
        samples, failed = self.generate(orders)
        return self.measure({name: order for name, (order, _) in orders.items()}, samples, failed)

    def generate(
        self, orders: Mapping[str, tuple[Order, GenerateVideos]]
    ) -> tuple[dict[str, list[GeneratedVideo]], list[str]]:
        """Generates the videos of all models.

        Args:
            orders: Generation request and action by model name, as `orders` returns them.

        Returns:
            The videos that all models have generated, by model name, and the names of the others.
        """
        samples = {name: list_videos(order, self.files) for name, (order, _) in orders.items()}
        require_writable(Path(self.config.out))
        failed: dict[str, None] = {}
        for name, (_, generation) in orders.items():
            facts: Any = generation.run().facts
            done = {one["name"] for one in facts["samples"]}
            failed |= {one.name: None for one in samples[name] if one.name not in done}
        return {name: [one for one in of if one.name not in failed] for name, of in samples.items()}, list(failed)

    def run_on_clips(self) -> Result:
        """Measures the loss on clips or episodes, and generates and measures videos from captions or actions."""
        models, out = self.models(), Path(self.config.out)
        clips = self.held_out_clips(models)
        require_writable(out)
        trained_on, warnings = self.find_trained_on(clips)
        for warning in warnings:
            logger.warning("%s", warning)
        device = find_device(self.config.device)
        orders = {name: make_order(model, device, [], out / name) for name, model in models.items()}
        losses: dict[str, HeldOutLoss] = {}
        for name, order in orders.items() if any(one not in METRICS for one in self.evaluators.active) else ():
            progress = make_progress_reporter(f"held-out loss of {clips.dataset.num_samples} windows ({name})")
            losses[name] = clips.measure_loss(order, progress, overwrite=self.config.force)
        samples = {name: losses.get(name, HeldOutLoss()).samples(order.out) for name, order in orders.items()}
        failed: list[str] = []
        if self.evaluators.generates:
            assert self.mode is not None  # since the dataset was read
            write_samples(clips, out, self.config.max_videos, self.mode, overwrite=self.config.force)
            found = self.orders()
            samples, failed = self.generate(found)
            orders = {name: order for name, (order, _) in found.items()}
        facts = {
            "dataset": clips.dataset.name,
            "iteration": models["trained"].iteration,
            "weights": models["trained"].weights,
            "held_out": {
                "windows": clips.dataset.num_samples,
                "fingerprint": clips.dataset.fingerprint,
                "in_training_data": trained_on,
                "left_out": list(clips.left_out.values()),
                "seed_of_loss": clips.data.seed,
            },
        }
        return self.measure(orders, samples, failed, losses, facts, clips.left_out_lines())

    def held_out_clips(self, models: Mapping[str, StoredModel]) -> HeldOutClips:
        """Opens the dataset of clips or episodes, and sets `mode` and `modes` from the trained model.

        Raises UserError if the output folder is inside the folder of one of the `models`, if no metric can be computed,
        or if the command would have several processes without videos to generate.
        """
        for model in models.values():
            require_outside(Path(self.config.out), model)
        if self.robots is None:
            self.modes = models["trained"].config.modes
            self.mode = choose_mode(self.modes, self.config.model_mode)
            self.evaluators.require_active()
        if self.config.uses_pool and not self.evaluators.generates:
            raise UserError(f"{POOL_FLAGS} are for videos to generate, but one process measures everything here")
        if self.robots is not None:
            return HeldOutEpisodes(self.config, models["trained"], self.evaluators.active)
        return HeldOutClips(self.config.dataset, models["trained"])

    def find_trained_on(self, clips: HeldOutClips) -> tuple[int | None, list[str]]:
        """Returns (number of windows of `clips` that are in the training data of the model, warnings for the user).

        The number is None if it is unknown.
        """
        try:
            count = clips.count_trained_on()
        except (UserError, DataError, ValueError, OSError) as error:
            return None, [f"cannot compare the clips with the model's training data: {error}"]
        if not count:
            return count, []
        total = clips.dataset.num_samples
        told = "the metrics do not measure the model on new clips"
        return count, [f"{count} of {total} windows belong to clips in the training data of the model: {told}"]

    def measure(
        self,
        orders: Mapping[str, Order],
        samples: Mapping[str, Sequence[GeneratedVideo]],
        failed: Sequence[str] = (),
        losses: Mapping[str, HeldOutLoss] | None = None,
        about: Mapping[str, Any] | None = None,
        lines: Sequence[str] = (),
    ) -> Result:
        """Computes the metrics of generated videos, and writes evaluation.json and the contact sheet.

        If evaluation.json exists and its inputs have not changed, it is read instead, unless `--force` is set.

        Args:
            orders: Generation requests by model name, for the descriptions of the models.
            samples: The generated videos, by model name.
            failed: Names of the videos that a model failed to generate; (): none.
            losses: The held-out losses, by model name; None: not measured.
            about: Additional entries of evaluation.json; None: no entries.
            lines: Additional output lines of the result; (): no lines.

        Returns:
            The result of the command: table of metrics and content of evaluation.json.
        """
        out, losses = Path(self.config.out), losses or {}
        lines = [*lines, *(f"not measured  {name}: its video could not be generated (see above)" for name in failed)]
        file, signature = out / RESULT, signature_of(self.evaluators, samples, losses)
        makes = any(samples.values())
        last = [*([f"contact sheet {out / SHEET}"] if makes else []), f"metrics       {file}"]
        notes = [*lines, *(f"skipped the metric {name}: {reason}" for name, reason in self.evaluators.skipped.items())]
        known = {} if self.config.force else read_known(file, signature)
        if known and (not makes or (out / SHEET).is_file()):
            line = f"{file} is complete for these videos (to generate and measure them again: --force)"
            return Result([line, *format_measurements(known["figures"]), *notes, *last], known)
        metrics = self.evaluators.build(find_device(self.config.device))
        figures, models, real = measure_all(samples, losses, metrics)
        values = {name: values_of(scores) for name, scores in models.items()}
        if not any(figure[name]["samples"] for figure in figures.values() for name in samples):
            raise UserError(
                f"no metric could be computed: {'; '.join([*format_measurements(figures)][1 + len(figures) :])}"
            )
        if makes:
            draw(out / SHEET, samples)
        facts: dict[str, Any] = {
            "signature": signature,
            **(about or {}),
            "not_generated": failed,
            "evaluators": self.evaluators.active,
            "skipped": self.evaluators.skipped,
            "models": {name: order.about for name, order in orders.items()},
            "fingerprints": {name: fingerprint(order.model.folder) for name, order in orders.items()},
            "versions": package_versions(),
            "figures": figures,
            "samples": {
                name: [record(one, values[name].get(one.name, {}), out) for one in of] for name, of in samples.items()
            },
            REAL: real,
            "losses": {name: of.losses for name, of in losses.items()},
        }
        write_text(file, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
        refresh_page(out)
        inputs = [Input("model", orders["trained"].model.folder)]
        inputs += [Input("dataset", place) for place in self.config.input_files or [facts["dataset"]]]
        outputs = [RESULT, *([SHEET] if makes else [])]
        write_lineage(out, action="evaluate", settings=to_dict(self.config), inputs=inputs, outputs=outputs)
        return Result([*format_measurements(facts["figures"]), *notes, *last], facts)

    def on_prompts(self) -> Action:
        """Returns the action that evaluates the model on the prompts of a moving-shapes dataset (`--prompts`).

        Its settings are copied from the config of this action.
        """
        kind = command_class_for_flag("evaluate", "--prompts")
        settings = {name: getattr(self.config, name) for name in field_names(kind.Config)}
        return kind.Config(**settings).build()

    @property
    def evaluators(self) -> Evaluators:
        """The metrics selected with --evaluators, by default all that are available, with their configs."""
        config = self.config
        robots = self.robots
        found = Evaluators(config.evaluators, metric_configs(config), self.mode, self.modes, robots is not None)
        if config.evaluators:
            return found
        if robots is not None:
            chosen = [LOSS, *(name for name in ROBOTS if name in robots)]
        elif config.dataset is not None:
            chosen = [LOSS, *(name for name, kind in METRICS.items() if kind.by_default)]
        else:
            chosen = [name for name, kind in METRICS.items() if kind.weights is None or name in found.folders]
        return replace(found, chosen=chosen)

    @cached_property
    def robots(self) -> set[str] | None:
        """Modes in which the model was trained on robot episodes; None for another model, and with sample files.

        Raises WrongValueError if no data are given for another model.
        """
        config = self.config
        found = None if config.input_files else robot_modes(find_model(config.model, base=config.base))
        if found is None and config.dataset is None and not config.input_files:
            raise config.source_error()
        return found

    def models(self) -> dict[str, StoredModel]:
        """Returns the models to measure by name: "trained" and, if configured, "baseline" and "untrained"."""
        config = self.config
        found = {"trained": find_model(config.model, weights=config.weights, base=config.base)}
        if config.baseline is not None:
            found["baseline"] = find_model(config.baseline, base=config.base)
        if config.untrained is not None:
            found["untrained"] = find_model(config.untrained, weights="untrained", base=config.base)
        return found

    @property
    def files(self) -> list[str]:
        """Sample files: those of --input-files or, with --dataset, the file that is written into the output folder."""
        return self.config.input_files or [str(Path(self.config.out) / SAMPLES)]

    def orders(self) -> dict[str, tuple[Order, GenerateVideos]]:
        """Returns (generation request, action that generates the requested samples) by model name.

        Raises UserError if the samples of two models differ in size, length or frame rate.
        """
        config = self.config
        found: dict[str, tuple[Order, GenerateVideos]] = {}
        for name, model in (("trained", config.model), ("baseline", config.baseline), ("untrained", config.untrained)):
            if model is None:
                continue
            generation = GenerateVideos.Config(
                model=model,
                base=config.base,
                force=config.force,
                input_files=self.files,
                out=str(Path(config.out) / name),
                weights="untrained" if name == "untrained" else config.weights if name == "trained" else "auto",
                num_steps=config.steps,
                guidance=config.guidance,
                dynamic_guidance=config.dynamic_guidance,
                shift=config.shift,
                scheduler=config.scheduler,
                device=config.device,
                processes=config.processes,
                on=config.on,
                max_failures=config.max_failures,
                record_timeout=config.record_timeout,
            ).build()
            order = generation.prepare()
            first = found["trained"][0] if found else order
            for sample, other in zip(order.samples, first.samples, strict=True):
                if differing := [one for one in SAME_FORM if getattr(sample, one) != getattr(other, one)]:
                    raise UserError(
                        f"{sample.name}: {' and '.join(differing)} would be "
                        f"{', '.join(f'{getattr(sample, one):g}' for one in differing)} with {model}, and "
                        f"{', '.join(f'{getattr(other, one):g}' for one in differing)} with {config.model}; set "
                        "it in the sample files"
                    )
            generation.spawns = True  # this process computes losses and metrics
            found[name] = order, generation
        return found


def require_one_process() -> None:
    """Raises UserError if `worldsmith launch` started several processes, because only one can measure videos."""
    if world_size() > 1:
        raise UserError(
            "videos are measured by one process: first generate them with several (`worldsmith launch … generate "
            "MODEL -i FILE -o OUT/trained`), then measure them with `worldsmith evaluate MODEL -i FILE -o OUT`"
        )
