"""Samples that are generated during training: when, from which prompts, and without any effect on the training."""

from __future__ import annotations

import logging
import shutil
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, Range
from worldsmith.config.errors import UserError
from worldsmith.distributed.coordination_group import SideGroup
from worldsmith.monitor.metrics_log import MetricsLog
from worldsmith.training.callbacks.base import Callback, TrainingRun
from worldsmith.training.callbacks.samples.drawing_budget import Decision, DrawingBudget, first_drawing_between

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.training.step import StepResult

logger = logging.getLogger(__name__)

Weights = Literal["live", "ema"]
FILE = "samples.jsonl"
DRAWINGS = 5
"""Target number of sample generations in a run without a fixed interval; it determines the size of each."""
AGREEMENT = timedelta(minutes=5)
"""Timeout for other ranks to report failures after the forward passes."""
STEP_PASSES = 3
"""Cost of a training step on a sample, in units of one forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSample:
    """Generated sample for one prompt: latents of a video or an image, or an answer."""

    prompt: str
    guidance: float | None = None
    latents: Tensor | None = None
    """Normalized latents [C, t, h, w] of a video or an image."""
    fps: float = 0.0
    answer: str | None = None
    expected: str | None = None
    """The ground truth of the answer."""
    media: str | None = None
    """Image or video file that the question refers to; None without one."""
    source: str | None = None
    """Label of training or held-out data that the prompt comes from; None: neither."""


@dataclass(frozen=True, slots=True)
class DrawingSize:
    """Number of prompts of one generation of samples, and number of solver steps or new tokens of each sample."""

    prompts: int
    steps: int
    """Solver steps of a video, or max new tokens of an answer."""


class SamplingStoppedError(Exception):
    """Sample generation ends early because of a stop request; a resumed run generates the missing samples."""


class DrawSamples(Callback):
    """Generates samples of the same prompts from the same noise while the run trains, to show its progress.

    Each sample has a line in `samples.jsonl`, and the files of a step are in a folder of that step.

    Cost: without `every`, at most `max_time_fraction` (3 %) of the run's time, measured while the run trains, and no
    memory that training needs. With `every`, the cost is not limited. Training without samples gives the same
    weights, bit for bit, and the time of samples is in no throughput metric.

    When: without `every`, before the first step, after about 30 % of the steps, later as often as the time allows, and
    after the last step. A run that is too short for all of these has fewer.

    Several processes: all ranks take part in the forward passes. Rank 0 decodes, writes, and decides when to sample. A
    failure is logged once and counted, and the run continues, unless a rank fails alone in the forward passes while the
    other ranks wait for it in a collective of FSDP: then the run ends after 5 minutes (`AGREEMENT`).

    Stop and resume: a stop does not wait for samples. A resumed run removes the samples of later steps, and with
    `every` generates those of its first step again if they are due.
    """

    class Config(Callback.Config):
        makes: ClassVar[str] = ""
        """Required output type of the model (`Model.Config.makes`)."""

        enabled: bool = True
        """Whether samples are generated."""
        every: Count | None = None
        """Generates samples after every `every` steps and after the last step, whatever they cost. None: before the
        first step, after about 30 % of the steps, later as often as `max_time_fraction` allows, and after the last
        step; number and quality of the samples are then chosen to fit."""
        max_time_fraction: Annotated[float, Range(gt=0, le=1)] = 0.03
        """Max fraction of the run's time that is spent on samples if `every` is None."""
        on_start: bool = False
        """Whether a new run with a number in `every` also generates samples before its first step."""
        samples: Count = 4
        """Number of prompts from the data if none are given; the maximum if `every` is None."""
        weights: list[Weights] = field(default_factory=list)
        """Weights to generate with: raw weights ("live") and EMA weights ("ema", if the run keeps them). Empty: the EMA
        weights if the run keeps them, otherwise the raw weights. Both together cost twice as much."""

        def check_run(self, run: Any) -> None:
            model = run.model.config
            if not self.enabled:
                return
            if model.makes != self.makes:
                why = f"models of the family '{run.model.name}' generate {model.makes or 'no known output'}"
                raise wrong(self, "enabled", why=f"{why}, this callback {self.makes}", remedy="use false")
            if self.weights == ["ema"] and not model.ema.enabled:
                raise wrong(self, "weights", why="the run keeps no EMA weights", remedy='write ["live"]')

        def fit(self, passes: float) -> DrawingSize:
            """Returns how many samples to generate at a time, and with how many steps each, within a cost limit.

            Prompts that the config states are always all used. See `choose`.

            Args:
                passes: Max cost of one generation, in units of one forward pass over one training sample.
            """
            raise NotImplementedError

        def choose(self, passes: float, counts: Sequence[int], most: int, *, good: int, least: int) -> DrawingSize:
            """Returns the first size of a list whose `cost` is at most `passes`; the cheapest size if no size is.

            The list begins with `most` solver steps (videos) or new tokens (answers) for the first number of prompts:
            fewer steps or tokens, down to a limit of quality; then the same with fewer prompts; and last the fewest
            prompts with fewer steps or tokens than the limit.

            Args:
                passes: Max cost of one generation, in units of one forward pass over one training sample.
                counts: Numbers of prompts to try, largest first.
                most: Number of steps or tokens in the config.
                good: The limit of quality, unless `most` is less.
                least: Smallest number of steps or tokens.
            """
            numbers = [most]
            while numbers[-1] > least:
                numbers.append(max(least, numbers[-1] // 2))
            sizes = [DrawingSize(count, number) for count in counts for number in numbers if number >= min(good, most)]
            sizes += [DrawingSize(counts[-1], number) for number in numbers]
            return next((size for size in sizes if self.cost(size) <= passes), sizes[-1])

        def cost(self, size: DrawingSize) -> float:
            """Returns the estimated cost of one generation, as a number of forward passes over one training sample."""
            raise NotImplementedError

    config: Config
    size: DrawingSize | None = None
    """Size of one generation of samples; None: as in the config, if that has an interval (`every`)."""
    budget: DrawingBudget | None = None
    """Time budget of the samples; None on other ranks than 0, and if the config has an interval (`every`)."""
    decision = Decision(0, 1)
    log: MetricsLog | None = None
    parts_done = 0
    """Number of kinds of weights (raw, EMA) for which the current generation of samples is complete."""
    preparing = 0.0
    """Seconds that `prepare` took in this generation."""
    peers: SideGroup | None = None
    """Separate process group of all ranks, so that a failing rank does not disturb other collectives."""
    failed = 0
    """Number of failed generations of samples."""

    @abstractmethod
    def prepare(self, trainer: TrainingRun) -> None:
        """Reads the prompts and the data of the samples on this rank, once; may raise any exception."""

    @abstractmethod
    def draw(self, trainer: TrainingRun) -> Iterator[list[DrawnSample]]:
        """Generates samples with the current weights; yields one or more lists that together contain all samples.

        Collective; only rank 0 uses the samples.

        Implementations call `end_if_stopped` between samples, so that a stop request ends the generation.
        """

    @abstractmethod
    def write(
        self, trainer: TrainingRun, folder: Path, samples: Mapping[Weights, Sequence[DrawnSample]]
    ) -> Iterator[dict[str, Any]]:
        """Writes the files of one step's samples, on rank 0.

        Args:
            trainer: The run.
            folder: Folder for the files of the step.
            samples: Results of `draw` by weights, "live" or "ema".

        Yields:
            The record of each sample for `samples.jsonl`.
        """

    def obstacle(self, run: Any) -> str:
        """Returns the reason why the run with the config `run` generates no samples without `every`; "" if it does."""
        return ""

    def is_on(self, run: Any) -> bool:
        return self.config.enabled and not (self.config.every is None and self.obstacle(run))

    def start_lines(self, trainer: TrainingRun) -> Iterable[str]:
        config, done, last = self.config, trainer.iteration, trainer.config.trainer.max_iter
        if not config.enabled:
            return
        times = ["before the first step"] if not done and (config.every is None or config.on_start) else []
        if config.every is not None:
            times += [f"after every {config.every} steps and the last"]
            yield f"samples      {', '.join(times)}: {self.folder / FILE}"
        elif reason := self.obstacle(trainer.config):
            setting = f"trainer.callbacks.{self.folder.name}.every=N"
            yield f"samples      none: {reason}; set {setting} to generate samples anyway"
        else:
            if self._has_time_between(trainer):
                times += [f"after about step {first_drawing_between(done, last)}", "later if time allows"]
            times += ["after the last step"]
            yield (
                f"samples      {', '.join(times)}; at most {100 * config.max_time_fraction:.3g} % of the run's time: "
                f"{self.folder / FILE}"
            )

    def on_train_start(self, trainer: TrainingRun) -> None:
        if not self.is_on(trainer.config):
            return
        done = trainer.iteration
        self.peers = SideGroup(trainer.world.rank, trainer.world.size, patience=AGREEMENT)
        if self.config.every is None:
            self.size = trainer.world.broadcast(self._fit(trainer))
            self.budget = self._make_budget(trainer, self.size) if trainer.world.is_main else None
            self.decision = Decision(0, done + 1)
        if trainer.world.is_main:
            try:
                self.log = MetricsLog(self.folder / FILE, resumed_step=done, is_redone=lambda _: self.is_due(trainer))
                for folder in self.folder.glob("step_" + "[0-9]" * 9):
                    if int(folder.name.removeprefix("step_")) > done:
                        shutil.rmtree(folder)
            except (UserError, OSError) as error:
                self._fail(done, error)
        if self.is_due(trainer):
            self._draw_and_write(trainer)

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if not self.is_on(trainer.config):
            return
        if self.config.every is None:
            self._decide(trainer)
        elif self.is_due(trainer):
            self._draw_and_write(trainer)

    def metrics(self, trainer: TrainingRun, step: StepResult) -> Mapping[str, Any]:
        return {"failed_drawings": self.failed} if self.failed else {}

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None
        if self.failed > 1:
            logger.warning("%d sample generations have failed", self.failed)

    def is_due(self, trainer: TrainingRun) -> bool:
        """Returns whether samples must be generated at step `trainer.iteration`, whatever their cost.

        With `every`: at its multiples and after the last step. At step 0: without `every`, or with `on_start`.
        """
        done, every = trainer.iteration, self.config.every
        if every is None or not done:
            return not done and (every is None or self.config.on_start)
        return done % every == 0 or done == trainer.config.trainer.max_iter

    @property
    def num_prompts(self) -> int:
        """Number of prompts to take from the data."""
        return self.config.samples if self.size is None else self.size.prompts

    def kinds_of_weights(self, trainer: TrainingRun) -> list[Weights]:
        """Returns the weights to generate samples with, "live" or "ema" or both, as configured if the run has them."""
        has_ema = trainer.state.ema is not None
        wanted: list[Weights] = self.config.weights or (["ema"] if has_ema else ["live"])
        return [weights for weights in wanted if weights == "live" or has_ema]

    def end_if_stopped(self, trainer: TrainingRun, fraction: float) -> None:
        """Raises SamplingStoppedError on all ranks after a stop request. Collective.

        Args:
            trainer: The run, whose reported progress is updated.
            fraction: Completed fraction of `draw`, 0 to 1.
        """
        trainer.share = (self.parts_done + fraction) / len(self.kinds_of_weights(trainer))
        if trainer.world.any(trainer.is_asked_to_stop()):
            raise SamplingStoppedError

    def _passes_of_step(self, trainer: TrainingRun) -> float:
        """Returns the cost of a training step on this rank as a number of forward passes over one training sample."""
        packs: int = trainer.config.trainer.grad_accum_iter
        return STEP_PASSES * packs * trainer.first_samples

    def _fit(self, trainer: TrainingRun) -> DrawingSize:
        config, steps = self.config, trainer.config.trainer.max_iter
        passes = config.max_time_fraction * steps * self._passes_of_step(trainer) / DRAWINGS
        return config.fit(passes / len(self.kinds_of_weights(trainer)))

    def _make_budget(self, trainer: TrainingRun, size: DrawingSize) -> DrawingBudget:
        passes = self.config.cost(size) * len(self.kinds_of_weights(trainer)) / size.prompts
        return DrawingBudget(
            self.config.max_time_fraction,
            first_step=trainer.iteration,
            last_step=trainer.config.trainer.max_iter,
            steps_per_prompt=passes / self._passes_of_step(trainer),
        )

    def _has_time_between(self, trainer: TrainingRun) -> bool:
        """Returns whether samples during training are expected to fit `max_time_fraction`.

        The samples at the start (of a new run) and at the end of the run are counted too.
        """
        steps = trainer.config.trainer.max_iter - trainer.iteration
        cost = self._make_budget(trainer, self._fit(trainer)).steps_per_prompt
        return (2 if trainer.iteration else 3) * cost <= self.config.max_time_fraction * steps

    def _decide(self, trainer: TrainingRun) -> None:
        """Lets rank 0 decide whether the time budget allows samples after this step, and generates them. Collective."""
        done, last = trainer.iteration, trainer.config.trainer.max_iter
        if done < min(self.decision.next_check, last):
            return
        if self.budget is not None and self.size is not None:
            self.decision = self.budget.decide(done, self.size.prompts)
            if done == last and not self.decision.prompts:
                logger.info(
                    "no samples are generated after step %d, the last: they would take more than a fraction of %.3g "
                    "of the run's time; set trainer.callbacks.%s.every=%d to generate them anyway",
                    *(done, self.config.max_time_fraction, self.folder.name, last),
                )
        self.decision = trainer.world.broadcast(self.decision)
        if self.decision.prompts:
            self._draw_and_write(trainer)

    def _draw_and_write(self, trainer: TrainingRun) -> None:
        from worldsmith.checkpoint.run.rng_state import untouched_rng

        start, step = time.perf_counter(), trainer.iteration
        self.preparing = 0.0
        with trainer.busy("sampling"), untouched_rng(), trainer.task.sampling():
            try:
                samples = self._draw(trainer)
            except SamplingStoppedError:
                samples = None
                if trainer.world.is_main:
                    logger.info("samples after step %d are skipped: the run was asked to stop", step)
            if samples and trainer.world.is_main:
                try:
                    folder = self._write(trainer, samples)
                except Exception as error:  # no other rank waits for what is decoded and written
                    self._fail(step, error)
                else:
                    logger.info("samples after step %d: %s (%.1f s)", step, folder, time.perf_counter() - start)
        seconds = time.perf_counter() - start
        if self.budget is not None:
            self.budget.add(step, self.decision.prompts or self.num_prompts, seconds, once=self.preparing)
        trainer.pace.leave_out(seconds)

    def _draw(self, trainer: TrainingRun) -> dict[Weights, list[DrawnSample]] | None:
        """Returns the samples by weights ("live", "ema"); None, on all ranks, if the generation has failed."""
        import torch

        from worldsmith.distributed.fsdp import forget_failed_forward
        from worldsmith.training.validation import evaluating

        problem: Exception | None = None
        start = time.perf_counter()
        try:
            self.prepare(trainer)
        except Exception as error:  # whatever it is: the run is worth more
            problem = error
        self.preparing = time.perf_counter() - start
        if trainer.world.any(problem is not None):
            self._fail(trainer.iteration, problem or "another process cannot prepare the generation")
            return None
        found: dict[Weights, list[DrawnSample]] = {}
        network, average = trainer.model.network, trainer.state.ema
        try:
            # A compiled network would be compiled again for the shapes of samples, which may change its bits.
            with evaluating(network), torch.no_grad(), torch.compiler.set_stance("force_eager"):
                for part, weights in enumerate(self.kinds_of_weights(trainer)):
                    self.parts_done = part
                    swapped: AbstractContextManager[None] = nullcontext()
                    if weights == "ema" and average is not None:
                        swapped = average.apply_to(network)
                    with swapped:
                        found[weights] = [sample for samples in self.draw(trainer) for sample in samples]
        except SamplingStoppedError:
            raise
        except Exception as error:
            problem = error
        failure = self._find_failure(trainer, problem)
        if failure is None:
            return found
        forget_failed_forward(network)
        if trainer.world.is_main:
            self._fail(trainer.iteration, problem or failure)
        else:  # rank 0 reports it
            self.failed += 1
        return None

    def _find_failure(self, trainer: TrainingRun, problem: Exception | None) -> str | None:
        """Returns the first error of the forward passes on any rank; None, on all ranks, without one. Collective.

        Raises `problem` (the error of this rank), or RuntimeError without one, if the ranks have stopped at different
        collectives.
        """
        from worldsmith.distributed.fsdp import count_collectives

        assert self.peers is not None
        if trainer.world.size == 1:
            return None if problem is None else str(problem)
        text = None if problem is None else f"{type(problem).__name__}: {problem}"
        try:
            reports = self.peers.run(lambda: text)
        except RuntimeError:  # they wait in a collective of the forward pass, or have ended
            if problem is None:
                raise
            raise problem  # noqa: B904
        failures = [f"rank {rank}: {text}" for rank, text in enumerate(reports) if text is not None]
        if not failures:
            return None
        counts = self.peers.run(lambda: count_collectives(trainer.model.network, trainer.world))
        if len(set(counts)) > 1:
            raise problem or RuntimeError(
                f"sample generation failed, and the ranks stopped at different collectives: {failures[0]}"
            )
        return failures[0]

    def _write(self, trainer: TrainingRun, samples: Mapping[Weights, Sequence[DrawnSample]]) -> Path:
        step = trainer.iteration
        folder = self.folder / f"step_{step:09d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        records = list(self.write(trainer, folder, samples))
        if self.log is None:
            raise OSError(f"{self.folder / FILE} could not be opened")
        for record in records:
            self.log.write(step, record)
        return folder

    def _fail(self, step: int, why: object) -> None:
        self.failed += 1
        if self.failed == 1:
            kind = f"{type(why).__name__}: " if isinstance(why, Exception) and not isinstance(why, UserError) else ""
            logger.warning("sample generation failed after step %d, but the run continues: %s%s", step, kind, why)
