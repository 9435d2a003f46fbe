"""Drawing samples in the loop: when it is done, and that it leaves nothing behind."""

from __future__ import annotations

import logging
import shutil
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.monitor.metrics_log import MetricsLog
from worldsmith.training.callbacks.base import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.training.step import Step
    from worldsmith.training.trainer import Trainer

logger = logging.getLogger(__name__)

Weights = Literal["live", "ema"]
FILE = "samples.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What came out for one prompt: frames or an answer."""

    prompt: str
    guidance: float | None = None
    frames: Tensor | None = None
    """uint8 [3, T, H, W]; one frame is an image."""
    fps: float = 0.0
    answer: str | None = None
    expected: str | None = None
    """The right answer."""
    media: str | None = None
    """The file that the prompt is about."""


class GivesWayError(Exception):
    """A stop is asked for: what is not drawn yet is drawn when the run goes on."""


class DrawSamples(Callback):
    """Draws samples for the same prompts, from the same noise, now and then: `samples.jsonl` has a line for each.

    What belongs to a step lies in a folder of that step. The training is the same to the bit with and without; its
    random generators, its throughput and its weights are left as they were. All ranks take part in the forward passes,
    rank 0 writes. A drawing that fails is said once and counted, and the run goes on; with several processes that holds
    for what goes wrong before and after the forward passes, which none of them could leave alone. A stop does not wait.
    A run that goes on removes what was drawn of later steps, and draws that of its first step again.
    """

    class Config(Callback.Config):
        makes: ClassVar[str] = ""
        """What models must make (`Model.Config.makes`)."""

        enabled: bool = False
        """Whether samples are drawn."""
        every: Count = 5000
        """Draw after every this many steps, and after the last."""
        on_start: bool = False
        """Whether a new run also draws before its first step."""
        samples: Count = 4
        """How many prompts are taken from the data where none are given."""
        weights: list[Weights] = field(default_factory=lambda: ["live", "ema"])
        """Draw with these: live ones, and their average (ema), where the run keeps one."""

        def check_run(self, run: Trainer.Config) -> None:
            model = run.model.config
            if not self.enabled:
                return
            if model.makes != self.makes:
                why = f"a model of the family '{run.model.name}' makes {model.makes or 'nothing that is known'}"
                raise wrong(self, "enabled", why=f"{why}, and this draws {self.makes}", remedy="write false")
            if not self.weights or (self.weights == ["ema"] and not model.ema.enabled):
                why = "the run keeps no average of its weights" if self.weights else "nothing would be drawn"
                raise wrong(self, "weights", why=why, remedy='write ["live"]')

    config: Config
    log: MetricsLog | None = None
    parts_done = 0
    """Kinds of weights that are drawn with, of those of this drawing."""
    failed = 0
    """Drawings of which something is missing."""

    @abstractmethod
    def prepare(self, trainer: Trainer) -> None:
        """Reads what is asked for, on every rank; may raise anything. What is known already is not read again."""

    @abstractmethod
    def draw(self, trainer: Trainer) -> Iterator[list[Sample]]:
        """Samples of the network as it is, on every rank; frames on rank 0 alone. It calls `give_way` now and then."""

    @abstractmethod
    def write(self, folder: Path, samples: Mapping[Weights, Sequence[Sample]]) -> Iterator[dict[str, Any]]:
        """Writes the files of a step; for each sample what is said of it in samples.jsonl."""

    def on_train_start(self, trainer: Trainer) -> None:
        if not self.config.enabled:
            return
        done = trainer.iteration
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

    def on_training_step_end(self, trainer: Trainer, step: Step) -> None:
        if self.config.enabled and self.is_due(trainer):
            self._draw_and_write(trainer)

    def figures(self, trainer: Trainer, step: Step) -> Mapping[str, Any]:
        return {"failed_drawings": self.failed} if self.failed else {}

    def on_train_end(self, trainer: Trainer) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None
        if self.failed > 1:
            logger.warning("%d drawings of samples have failed", self.failed)

    def is_due(self, trainer: Trainer) -> bool:
        done = trainer.iteration
        if not done:
            return self.config.on_start
        return done % self.config.every == 0 or done == trainer.config.trainer.max_iter

    def give_way(self, trainer: Trainer, share: float) -> None:
        """Raises GivesWayError, on all ranks, when a stop is asked for. `share`: what of `draw` is done."""
        trainer.share = (self.parts_done + share) / len(self.config.weights)
        if trainer.world.any(trainer.is_asked_to_stop()):
            raise GivesWayError

    def _draw_and_write(self, trainer: Trainer) -> None:
        from worldsmith.checkpoint.run.rng_state import untouched_rng

        start, step = time.perf_counter(), trainer.iteration
        with trainer.busy("sampling"), untouched_rng():
            try:
                samples = self._draw(trainer)
                if samples and trainer.world.is_main:
                    folder = self._write(step, samples)
                    logger.info("samples after step %d: %s (%.1f s)", step, folder, time.perf_counter() - start)
            except GivesWayError:
                if trainer.world.is_main:
                    logger.warning("step %d: the drawing of samples gives way to the stop", step)
            except OSError as error:  # written on rank 0, where no other one waits
                self._fail(step, error)
        trainer.pace.leave_out(time.perf_counter() - start)

    def _draw(self, trainer: Trainer) -> dict[Weights, list[Sample]] | None:
        """The samples of each kind of weights; None, on all ranks, when the drawing has failed."""
        import torch

        from worldsmith.training.validation import evaluating

        problem: Exception | None = None
        try:
            self.prepare(trainer)
        except Exception as error:  # whatever it is: the run is worth more
            problem = error
        if trainer.world.any(problem is not None):
            self._fail(trainer.iteration, problem or "another process cannot prepare it")
            return None
        found: dict[Weights, list[Sample]] = {}
        network, average = trainer.model.network, trainer.state.ema
        try:
            with evaluating(network), torch.no_grad():
                for part, weights in enumerate(self.config.weights):
                    self.parts_done = part
                    swapped: AbstractContextManager[None] = nullcontext()
                    if weights == "ema" and average is None:
                        continue
                    if weights == "ema" and average is not None:
                        swapped = average.swapped(network)
                    with swapped:
                        found[weights] = [sample for samples in self.draw(trainer) for sample in samples]
        except GivesWayError:
            raise
        except Exception as error:
            if trainer.world.size > 1:
                raise
            self._fail(trainer.iteration, error)
            return None
        return found

    def _write(self, step: int, samples: Mapping[Weights, Sequence[Sample]]) -> Path:
        folder = self.folder / f"step_{step:09d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        records = list(self.write(folder, samples))
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
