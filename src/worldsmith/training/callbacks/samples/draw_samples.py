"""Drawing samples in the loop: when it is done, and that it leaves nothing behind."""

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
from worldsmith.distributed.peers import SideGroup
from worldsmith.monitor.metrics_log import MetricsLog
from worldsmith.training.callbacks.base import Callback, TrainingRun
from worldsmith.training.callbacks.samples.drawing_budget import Decision, DrawingBudget

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.training.step import Step

logger = logging.getLogger(__name__)

Weights = Literal["live", "ema"]
FILE = "samples.jsonl"
DRAWINGS = 5
"""Number of drawings of a run for which the size of one is chosen where no interval is set; the first takes longer."""
AGREEMENT = timedelta(minutes=5)
"""How long a rank waits, after the forward passes, for the other ranks to say whether theirs have failed."""
STEP_PASSES = 3
"""Cost of training on a sample in forward passes of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSample:
    """Latents or an answer that was generated for one prompt."""

    prompt: str
    guidance: float | None = None
    latents: Tensor | None = None
    """Normalized latents [C, t, h, w] of a video or an image."""
    fps: float = 0.0
    answer: str | None = None
    expected: str | None = None
    """The ground truth of the answer."""
    media: str | None = None
    """The file that the prompt is about."""


@dataclass(frozen=True, slots=True)
class DrawingSize:
    """Size of a drawing."""

    prompts: int
    steps: int
    """Solver steps of a video, or max new tokens of an answer."""


class GivesWayError(Exception):
    """A stop is asked for: what is not drawn yet is drawn when the run goes on."""


class DrawSamples(Callback):
    """Draws samples for the same prompts, from the same noise, now and then: `samples.jsonl` has a line for each.

    What belongs to a step lies in a folder of that step. The training is the same to the bit with and without; its
    random generators, its throughput and its weights are left as they were. All ranks take part in the forward passes,
    rank 0 decodes and writes. Without an interval, rank 0 also decides when to draw, by measured times. A drawing that
    fails is said once and counted, and the run goes on. With several processes that holds for failures before and after
    the forward passes, and in these where all processes fail at the same collective, as without memory or with a bad
    prompt, or have none left. A process that fails alone while the others wait for it in a collective of FSDP cannot
    reach them: it ends the run, after `AGREEMENT`. A stop does not wait. A run that goes on removes what was drawn of
    later steps; with an interval it draws that of its first step again.
    """

    class Config(Callback.Config):
        makes: ClassVar[str] = ""
        """What models must make (`Model.Config.makes`)."""

        enabled: bool = True
        """Whether samples are drawn."""
        every: Count | None = None
        """Draw after every this many steps, and after the last. None: before the first step, after the last, and in
        between as often as `max_time_fraction` allows; the samples are then as many and as fine as it allows."""
        max_time_fraction: Annotated[float, Range(gt=0, le=1)] = 0.03
        """Max fraction of the run's time that samples take if `every` is None."""
        on_start: bool = False
        """Whether a new run with a number in `every` also generates samples before its first step."""
        samples: Count = 4
        """Number of prompts taken from the data if none are given; the maximum if `every` is None."""
        weights: list[Weights] = field(default_factory=list)
        """Draw with these: raw weights (live), and EMA weights (ema) where the run keeps them. Empty: the EMA weights,
        or the raw ones where the run keeps no others."""

        def check_run(self, run: Any) -> None:
            model = run.model.config
            if not self.enabled:
                return
            if model.makes != self.makes:
                why = f"a model of the family '{run.model.name}' makes {model.makes or 'nothing that is known'}"
                raise wrong(self, "enabled", why=f"{why}, and this draws {self.makes}", remedy="write false")
            if self.weights == ["ema"] and not model.ema.enabled:
                raise wrong(self, "weights", why="the run keeps no average of its weights", remedy='write ["live"]')

        def fit(self, passes: float) -> DrawingSize:
            """Size of a drawing that costs about as much as `passes` forward passes of a training sample, or the
            smallest."""
            raise NotImplementedError

        def cost(self, size: DrawingSize) -> float:
            """Estimated cost of a drawing in forward passes of a training sample."""
            raise NotImplementedError

    config: Config
    size: DrawingSize | None = None
    """Size of a drawing; None: that of the config, since it has an interval."""
    budget: DrawingBudget | None = None
    """Set on rank 0 if the config has no interval."""
    decision = Decision(0, 1)
    log: MetricsLog | None = None
    parts_done = 0
    """Kinds of weights that are drawn with, of those of this drawing."""
    preparing = 0.0
    """Seconds of this drawing in `prepare`."""
    peers: SideGroup | None = None
    """All ranks of the run, in a group of its own: a rank that fails may not disturb the collectives of the others."""
    failed = 0
    """Drawings of which something is missing."""

    @abstractmethod
    def prepare(self, trainer: TrainingRun) -> None:
        """Reads what is asked for, on every rank; may raise anything. What is known already is not read again."""

    @abstractmethod
    def draw(self, trainer: TrainingRun) -> Iterator[list[DrawnSample]]:
        """Samples of the network as it is, on every rank; latents on rank 0 only. It calls `give_way` now and then."""

    @abstractmethod
    def write(
        self, trainer: TrainingRun, folder: Path, samples: Mapping[Weights, Sequence[DrawnSample]]
    ) -> Iterator[dict[str, Any]]:
        """Writes the files of a step on rank 0; yields the record of each sample for samples.jsonl."""

    def obstacle(self, run: Any) -> str:
        """Reason why samples take far more than a step, so that they are only drawn at an interval; "" = none."""
        return ""

    def is_on(self, run: Any) -> bool:
        return self.config.enabled and not (self.config.every is None and self.obstacle(run))

    def start_lines(self, trainer: TrainingRun) -> Iterable[str]:
        if not self.config.enabled or self.config.every is not None:
            return
        if reason := self.obstacle(trainer.config):
            yield f"samples      none: {reason}; trainer.callbacks.{self.folder.name}.every=N draws them nevertheless"
            return
        when = "after the last step" if trainer.iteration else "before the first step, after the last"
        yield (
            f"samples      {when} and in between, in at most "
            f"{self.config.max_time_fraction:.3g} of the time: {self.folder / FILE}"
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

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if not self.is_on(trainer.config):
            return
        if self.config.every is None:
            self._decide(trainer)
        elif self.is_due(trainer):
            self._draw_and_write(trainer)

    def figures(self, trainer: TrainingRun, step: Step) -> Mapping[str, Any]:
        return {"failed_drawings": self.failed} if self.failed else {}

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None
        if self.failed > 1:
            logger.warning("%d drawings of samples have failed", self.failed)

    def is_due(self, trainer: TrainingRun) -> bool:
        """Whether to draw at this step whatever it costs."""
        done, every = trainer.iteration, self.config.every
        if every is None or not done:
            return not done and (every is None or self.config.on_start)
        return done % every == 0 or done == trainer.config.trainer.max_iter

    @property
    def num_prompts(self) -> int:
        """Number of prompts that are taken from the data."""
        return self.config.samples if self.size is None else self.size.prompts

    def kinds(self, trainer: TrainingRun) -> list[Weights]:
        """The weights to draw with that the run keeps."""
        has_ema = trainer.state.ema is not None
        wanted: list[Weights] = self.config.weights or (["ema"] if has_ema else ["live"])
        return [weights for weights in wanted if weights == "live" or has_ema]

    def give_way(self, trainer: TrainingRun, share: float) -> None:
        """Raises GivesWayError, on all ranks, when a stop is asked for. `share`: what of `draw` is done."""
        trainer.share = (self.parts_done + share) / len(self.kinds(trainer))
        if trainer.world.any(trainer.is_asked_to_stop()):
            raise GivesWayError

    def _passes_of_step(self, trainer: TrainingRun) -> float:
        """Forward passes of a sample that cost as much as a training step on this rank."""
        packs: int = trainer.config.trainer.grad_accum_iter
        return STEP_PASSES * packs * trainer.first_size[0]

    def _fit(self, trainer: TrainingRun) -> DrawingSize:
        config, steps = self.config, trainer.config.trainer.max_iter
        passes = config.max_time_fraction * steps * self._passes_of_step(trainer) / DRAWINGS
        return config.fit(passes / len(self.kinds(trainer)))

    def _make_budget(self, trainer: TrainingRun, size: DrawingSize) -> DrawingBudget:
        passes = self.config.cost(size) * len(self.kinds(trainer)) / size.prompts
        return DrawingBudget(
            self.config.max_time_fraction,
            first_step=trainer.iteration,
            last_step=trainer.config.trainer.max_iter,
            steps_per_prompt=passes / self._passes_of_step(trainer),
        )

    def _decide(self, trainer: TrainingRun) -> None:
        """Draws after this step if rank 0 decides so."""
        done, last = trainer.iteration, trainer.config.trainer.max_iter
        if done < min(self.decision.next_check, last):
            return
        if self.budget is not None and self.size is not None:
            self.decision = self.budget.decide(done, self.size.prompts)
            if done == last and not self.decision.prompts:
                logger.info(
                    "no samples are drawn after step %d, the last: they would take more than %.3g of the run's time; "
                    "trainer.callbacks.%s.every=%d draws them nevertheless",
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
            except GivesWayError:
                samples = None
                if trainer.world.is_main:
                    logger.info("samples after step %d are left out: the run is asked to stop", step)
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
        """The samples of each kind of weights; None, on all ranks, when the drawing has failed."""
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
            self._fail(trainer.iteration, problem or "another process cannot prepare it")
            return None
        found: dict[Weights, list[DrawnSample]] = {}
        network, average = trainer.model.network, trainer.state.ema
        try:
            # A compiled network would be compiled again for the shapes of samples, which may change its bits.
            with evaluating(network), torch.no_grad(), torch.compiler.set_stance("force_eager"):
                for part, weights in enumerate(self.kinds(trainer)):
                    self.parts_done = part
                    swapped: AbstractContextManager[None] = nullcontext()
                    if weights == "ema" and average is not None:
                        swapped = average.swapped(network)
                    with swapped:
                        found[weights] = [sample for samples in self.draw(trainer) for sample in samples]
        except GivesWayError:
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
        """Error of the first rank whose forward passes have failed; None, on all ranks, if there is none.

        Raises the error, or RuntimeError on a rank without one, if the ranks have stopped at other collectives.
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
            raise problem or RuntimeError(f"samples have failed at another collective than here: {failures[0]}")
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
            logger.warning("no samples are drawn after step %d, the run goes on without them: %s%s", step, kind, why)
