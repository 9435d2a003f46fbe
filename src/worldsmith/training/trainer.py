"""`Trainer`: one run, from its config to its last checkpoint."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.run.checkpoint_store import Uploads
from worldsmith.checkpoint.run.checkpointer import Checkpointer, start_writer
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.config import Configurable
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.coordination_group import lost_partner
from worldsmith.distributed.stop_signals import STOP_NOTICE, StopSignals
from worldsmith.distributed.world import World
from worldsmith.monitor.process_log import begin_log
from worldsmith.monitor.throughput import Throughput
from worldsmith.training.callbacks.base import Callback, Outcome
from worldsmith.training.callbacks.grad_clip import clip_gradients
from worldsmith.training.parallel import join_world, keep_batch
from worldsmith.training.preflight import require_files, require_memory
from worldsmith.training.run_config import RunConfig
from worldsmith.training.run_folder import Launch, MessageLog, RunLock, name_run, run_path, write_on_main, write_records
from worldsmith.training.start_checks import require_same_config, require_same_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from worldsmith.tasks.batch_reader import BatchReader
    from worldsmith.training.step import StepInputs, StepResult

logger = logging.getLogger(__name__)


class Trainer(Configurable):
    """Builds all components of the config and runs the training loop.

    - If the run folder contains a checkpoint, the run is resumed from it, bit for bit, and never restarted.
    - SIGTERM, SIGINT, SIGHUP, SIGUSR1 and a file named STOP in the run folder stop the run at the next step boundary,
      after a save.
    - Periodic saves are written in the background. A failed one is counted and training continues; the last save, and
      the save before a stop, must succeed.
    - A step with a non-finite loss or gradient changes only the step count.

    Args:
        config: Config of the run; references are resolved.
        run_folder: Run folder; None: from the job section.
        resume_changed: Whether a resumed run may have other settings and data.
        launch: Start command and environment, for the records of the run; None: not known.

    Raises:
        UserError: For problems that the user can fix, such as another config in the run folder.
        ConfigError: For settings that contradict each other.
        FloatingPointError: After too many skipped steps in a row.
        SaveError: If the last checkpoint cannot be written.
    """

    class Config(RunConfig):
        """Config of a run, the same as `RunConfig`."""

    following: StepInputs | None = None
    """Batches of the next step, if they were read at the last step boundary."""

    def __init__(
        self,
        config: Config,
        *,
        run_folder: Path | None = None,
        resume_changed: bool = False,
        launch: Launch | None = None,
    ) -> None:
        self.config = config = resolve(config)
        self.run_folder, launch = Path(run_folder or run_path(config.job)), launch or Launch()
        process = start_writer(config.checkpoint)
        self.world: World = join_world(config.model.config)
        if not config.job.name and run_folder is None:
            self.run_folder = name_run(config.job, self.run_folder, self.world)
        given = config
        self.config = config = keep_batch(given, self.world)
        require_same_config(self.world, config)
        require_files(config, self.run_folder, self.world, launch.variables)
        require_memory(config, self.world)
        self.lock = RunLock(self.run_folder, self.world)
        self.uploads = Uploads(config.checkpoint, config.job, self.run_folder, self.world)
        self.failed_saves = 0
        """Periodic saves that could not be written since this process started."""
        self.outcome: Outcome | None = None
        """Outcome of `train`; None while it runs and after a failure."""
        self.reason: str | None = None
        """Reason why the run ended before its last step; None without one."""
        self.doing = "training"
        """Current activity: training, validation, saving, …"""
        self.share: float | None = None
        """Completed fraction of an activity other than training, 0 to 1; None if not known."""
        self.pace = Throughput()
        self.is_asked_to_stop: Callable[[], bool] = bool
        """Whether this process was asked to stop: activities other than training end early."""
        place = self.run_folder / "messages.jsonl" if self.world.is_main else None
        self.messages = MessageLog(place, step=lambda: self.iteration)
        try:
            self.checkpointer: Checkpointer = config.checkpoint.build(
                folder=self.run_folder / "checkpoints", world=self.world, process=process
            )
            with self.messages:
                self._start(given, resume_changed=resume_changed, launch=launch)
            self.world.barrier()  # which waits longer than the groups of a mesh would in the first step
        except BaseException:
            self.lock.withdraw()
            raise

    def train(self) -> Outcome:
        """Trains until `max_iter`, or until the step boundary after a stop request. Collective.

        Returns:
            Whether the run is finished or was stopped.

        Raises:
            FloatingPointError: After too many skipped steps in a row.
            SaveError: If a required checkpoint cannot be written, or the last one cannot be uploaded.
        """
        self.uploads.offer(self.resumed, retire=False)
        if self.state.is_done:
            self._log("the run is complete: %s", self.state.describe_end())
            self.uploads.finish()
            self.lock.release()
            return Outcome.FINISHED
        stop_file = self.config.checkpoint.stop_file
        place = self.run_folder / stop_file if stop_file and self.world.is_main else None
        with StopSignals(place, notice=STOP_NOTICE if self.world.is_main else "") as stop, self.messages:
            self.is_asked_to_stop = lambda: stop.asked is not None
            try:
                self._call("on_run_start")
                with contextlib.closing(self._begin()) as batches:
                    self._call("on_train_start")
                    outcome = self._run_steps(batches, stop)
                with self.busy("uploading"):
                    self.uploads.finish()
                self.outcome = outcome
            finally:
                self.uploads.cancel()
                self._finish_save(report=False)
                self._call("on_train_end")
                self.lock.release()
        return outcome

    def _run_steps(self, batches: Iterator[Any], stop: StopSignals) -> Outcome:
        """Trains, validates and saves until no step is left or a stop is requested."""
        state, settings = self.state, self.config.checkpoint
        save_is_due = False
        if self.validate():
            self.save(required=False)
        while not state.is_done:
            self.training_step(batches)
            is_best = self.validate()
            stopping, saved = self._read_ahead(batches, is_stopped=stop.asked is not None)
            if saved == self.world.size:
                self._finish_save()
            save_is_due |= self.iteration % settings.save_iter == 0
            if stopping or state.is_done:
                self.save()
            elif is_best or (save_is_due and state.guard.consecutive == 0):
                self.save(required=False)
                save_is_due = False
            elif save_is_due:  # the weights of skipped steps may be spoiled
                self._warn("step %d: the save is postponed until a step is not skipped", self.iteration)
            if stopping:
                reason = stop.asked or "another process was asked to stop"
                stop.remove_stop_file()
                if not state.is_done:
                    self._log("stopped and saved after step %d (%s)", self.iteration, reason)
                    self.reason = reason
                    return Outcome.STOPPED
        if self.iteration < self.config.trainer.max_iter:
            self.reason = state.describe_end()
            self._log("%s", self.reason)
        return Outcome.FINISHED

    def _read_ahead(self, batches: Iterator[Any], *, is_stopped: bool) -> tuple[float, float]:
        """Reads the batches of the next step, if one is left. Collective.

        Their weight is summed over all ranks together with the flags of the step boundary.

        Args:
            batches: Iterator over the batches of this rank.
            is_stopped: Whether this process was asked to stop.

        Returns:
            (number of processes that were asked to stop, number of processes whose background save is complete).
        """
        from worldsmith.training.step import read_batches

        following, count = None, self.config.trainer.grad_accum_iter
        if not self.state.is_done:
            with contextlib.suppress(Exception):  # the next step raises it; first, a save that is due
                following = read_batches(batches, self.iteration, count)
        weight = 0.0 if following is None else sum(map(self.task.weigh, following.batches))
        stopping, saved, total = self.world.sum(is_stopped, self.checkpointer.has_saved, weight)
        if following is not None:
            self.following = replace(following, weight=total / self.world.context_parallel)
        return stopping, saved

    def training_step(self, batches: Iterator[Any]) -> StepResult:
        """Does one optimizer step over `grad_accum_iter` batches and returns its result. Collective."""
        from worldsmith.training.step import forward_backward, read_batches

        start, state, inputs = time.perf_counter(), self.state, self.following
        if inputs is None:
            inputs = read_batches(batches, state.iteration, self.config.trainer.grad_accum_iter)
        else:
            self.following, start = None, start - inputs.data_seconds
        self._call("on_training_step_start", inputs)
        step = forward_backward(
            inputs,
            self.task,
            seed=self.config.trainer.seed,
            scaler=state.scaler,
            parameters=state.parameters,
            count=partial(self._count, inputs),
        )
        state.loader_state = inputs.loader_state
        if not step.overflowed:
            self.task.check_gradients(step.weight, step.sums)
        step = self.measure_gradients(step)
        rates, skipped = state.scheduler.learning_rates, state.must_skip(step)
        state.advance(skipped=skipped)
        step = replace(step, learning_rates=rates, skipped=skipped, seconds=time.perf_counter() - start)
        self.task.in_first_step = False
        self.pace.step(step.tokens, unusual=any(map(self.task.fills_cache, inputs.batches)))
        self._call("on_training_step_end", step)
        self._call("after_training_step", step)
        return step

    def _count(self, inputs: StepInputs) -> dict[str, float]:
        """Returns the `step_counts` of all callbacks."""
        found: dict[str, float] = {}
        for callback in self.callbacks.values():
            found |= callback.step_counts(self, inputs)
        return found

    def measure_gradients(self, step: StepResult) -> StepResult:
        """Calls `on_before_optimizer_step` of all callbacks; returns `step` with its gradient norm set.

        The norm is that before clipping. If no callback clips gradients, it is measured after all callbacks.
        """
        for callback in self.callbacks.values():
            if (norm := callback.on_before_optimizer_step(self, step)) is not None:
                step = replace(step, gradient=norm)
            if type(callback).on_before_optimizer_step is not Callback.on_before_optimizer_step:
                step = replace(step, known_norm=None)  # the callback may have changed the gradients
        if step.gradient is None:
            step = replace(step, gradient=clip_gradients(self.state.parameters, None, known_norm=step.known_norm))
        return step

    def validate(self) -> bool:
        """Validates the current weights if that is due; returns whether they are the best so far. Collective.

        The caller saves the best weights. A stop request ends the validation early; the resumed run then repeats it.
        """
        if self.validator is None or not self.config.trainer.validates_after(self.iteration):
            return False
        with self.busy("validation"):
            found = self.validator.run(
                self.state.ema, is_stopped=self.is_asked_to_stop, report_fraction=partial(setattr, self, "share")
            )
        if found is None:
            self._warn("step %d: the validation ends early because of the stop request", self.iteration)
            return False
        self.pace.leave_out(found.seconds)
        self._log("validation after step %d: %s", self.iteration, found)
        self._call("on_validation_end", found)
        return self.state.record_validation(found.metrics)

    def save(self, *, required: bool = True) -> None:
        """Writes a checkpoint of the current state. Collective.

        Args:
            required: Write it now and raise if that fails. False: write it in the background if `async_save` is set; a
                failure is logged and counted.

        Raises:
            SaveError: If a required checkpoint cannot be written, or the run folder does not belong to this run any
                more.
        """
        self.lock.require_held()
        if self.checkpointer.is_saving:
            logger.info("step %d: waiting for the previous save, which is still being written", self.iteration)
        self._finish_save()
        background = self.config.checkpoint.async_save and not required
        try:
            with self.busy("saving"):
                checkpoint = self.state.save(background=background)
        except SaveError as error:
            if required:
                raise
            self._count_failure(error)
            return
        if not background:
            self._report_save(checkpoint)

    @contextlib.contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Context manager that reports `doing`, such as "saving", as the activity of the run within the block."""
        before, self.doing = self.doing, doing
        try:
            yield
        finally:
            self.doing, self.share = before, None

    @property
    def iteration(self) -> int:
        """Number of completed steps, including skipped ones."""
        return self.state.iteration

    def _start(self, given: RunConfig, *, resume_changed: bool, launch: Launch) -> None:
        """Builds the run and starts or resumes it; the records in the run folder are written only if that succeeds.

        Args:
            given: Config without the changes of `keep_batch`, for the comparison with the saved config and the records.
            resume_changed: Whether a resumed run may have other settings and data.
            launch: Start command and environment.
        """
        from worldsmith.training.start_run import start_run

        config, world, folder = self.config, self.world, self.run_folder
        self.resumed = self.uploads.download(self.checkpointer.latest)
        if self.uploads.downloaded:
            self.lock.keep_folder()
        changes = [] if self.resumed is None else require_same_run(folder, given, resume_changed=resume_changed)
        for line in changes:
            logger.warning("changed since the run was started: %s", line)
        run = start_run(config, self.checkpointer, folder, self.resumed, changes, resume_changed=resume_changed)
        self.model, self.task, self.state, self.validator = run.model, run.task, run.state, run.validator
        self.callbacks, self.memory_before = run.callbacks, run.memory_before

        def write() -> None:
            write_records(folder, given, launch, run.loaders, world_size=world.size)
            for callback in run.callbacks.values():
                callback.folder.mkdir(exist_ok=True)
            self.messages.begin()

        write_on_main(world, folder, write)
        begin_log(folder, rank=world.rank, size=world.size)

    def _begin(self) -> BatchReader:
        """Reads the first batch, logs the start of the run, and returns an iterator over all batches."""
        from worldsmith.tasks.batch_reader import BatchReader
        from worldsmith.training.start_lines import start_lines

        loop = self.config.trainer
        count = (loop.max_iter - self.iteration) * loop.grad_accum_iter
        reader = BatchReader(self.state.loader, self.task, seed=loop.seed, count=count)
        first = reader.peek()
        self.first_samples, _ = self.task.size(first)
        for line in start_lines(self, first) if self.world.is_main else ():
            logger.info("%s", line)
        return reader

    def _finish_save(self, *, report: bool = True) -> None:
        """Waits for a background save; if `report` is True, calls `on_save_checkpoint_end` for its checkpoint."""
        try:
            checkpoint = self.checkpointer.wait_for_background_save()
        except SaveError as error:
            self._count_failure(error)
        else:
            if report and checkpoint is not None:
                self._report_save(checkpoint)

    def _report_save(self, checkpoint: Path) -> None:
        """Uploads a complete checkpoint in the background and calls `on_save_checkpoint_end`."""
        self.uploads.offer(checkpoint, retire=self.state.guard.consecutive == 0)
        self._call("on_save_checkpoint_end", checkpoint)

    def _count_failure(self, error: SaveError) -> None:
        self.failed_saves += 1
        if lost_partner(error) is None:  # else the run ends at once, with the same message
            logger.warning(
                "SAVE FAILED (%d so far): %s The training continues; the next save is after step %d at the latest",
                self.failed_saves,
                error,
                min(self.iteration + self.config.checkpoint.save_iter, self.config.trainer.max_iter),
            )

    def _log(self, message: str, *values: Any, level: int = logging.INFO) -> None:
        """Logs a message about the run on rank 0; the other ranks log it at level DEBUG."""
        logger.log(level if self.world.is_main else logging.DEBUG, message, *values)

    def _warn(self, message: str, *values: Any) -> None:
        self._log(message, *values, level=logging.WARNING)

    def _call(self, point: str, *arguments: Any) -> None:
        for callback in self.callbacks.values():
            getattr(callback, point)(self, *arguments)
