"""`RunState`: the state on which the next step of a run depends; saves and restores it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldsmith.checkpoint.dcp.tensor_reader import stored_shapes
from worldsmith.checkpoint.run import frozen_weights
from worldsmith.checkpoint.run.checkpointer import Checkpointer, load_positions
from worldsmith.checkpoint.run.find_checkpoint import NAME, go_back_to_best
from worldsmith.checkpoint.run.optimizer_state import empty_optimizer_state, optimizer_state, restore_optimizer_state
from worldsmith.checkpoint.run.rng_state import rng_state, seed_everything, set_rng_state
from worldsmith.checkpoint.sources.open_weights import run_tree
from worldsmith.config.tree.plain import to_yaml
from worldsmith.data.stream import dataset_record
from worldsmith.files.atomic import write_text
from worldsmith.models.ema import PowerEMA
from worldsmith.models.model import Model
from worldsmith.training.optimizer import AdamW, LossScaler
from worldsmith.training.run_config import RunConfig
from worldsmith.training.run_folder import write_on_main
from worldsmith.training.run_weights import RunWeights
from worldsmith.training.scheduler import LambdaSchedule
from worldsmith.training.start_checks import optimizer_state_names, require_same_data, require_same_shapes
from worldsmith.training.step import StepGuard, StepResult
from worldsmith.training.validation import BestSoFar

logger = logging.getLogger(__name__)


class RunState:
    """Weights, EMA weights, optimizer, learning rate schedule, counters, RNG states and data loader state of a run.

    All ranks must create it and call its methods together. Weights are uninitialized until `start` or `restore`.

    Args:
        config: Config of the run.
        model: Model with a sharded network.
        loader: Data loader of this rank.
        checkpointer: Saves and loads the checkpoints.
        run_folder: Run folder.
    """

    def __init__(
        self, config: RunConfig, *, model: Model, loader: Any, checkpointer: Checkpointer, run_folder: Path
    ) -> None:
        average: PowerEMA.Config = model.config.ema
        self.config, self.model, self.loader = config, model, loader
        self.checkpointer, self.run_folder, self.world = checkpointer, run_folder, checkpointer.world
        self.network = model.network
        adamw: AdamW = config.optimizer.build(network=self.network)
        self.optimizer, self.parameters = adamw.optimizer, adamw.parameters
        self.ema: PowerEMA | None = average.build(network=self.network) if average.enabled else None
        self.weights = RunWeights(config, model, self.ema, self.world)
        self.scheduler: LambdaSchedule = config.scheduler.build(optimizer=self.optimizer)
        self.scaler: LossScaler = config.trainer.loss_scale.build(
            optimizer=self.optimizer, enabled=model.config.precision == "float16"
        )
        self.guard = StepGuard(max_consecutive=config.trainer.max_consecutive_skipped)
        keep = config.checkpoint
        self.best = BestSoFar(keep.keep_best, keep.best_mode) if keep.keep_best else None
        self.iteration = 0
        """Completed steps, including skipped ones."""
        self.loader_state: Mapping[str, Any] | None = None
        """State of the data loader after the last step, if batches were read ahead since; None: that of the loader."""

    def record_validation(self, metrics: Mapping[str, float]) -> bool:
        """Records rank 0's validation metrics of the current step; returns whether they are the best. Collective.

        Returns False at step 0, and if the run has no metric for the best checkpoint.
        """
        metrics = self.world.broadcast(metrics)
        return self.best is not None and self.iteration > 0 and self.best.record(self.iteration, metrics)

    @property
    def is_done(self) -> bool:
        """Whether no step is left: all steps are completed, or early stopping has run out of patience."""
        best, patience = self.best, self.config.trainer.early_stop_patience
        out_of_patience = best is not None and patience is not None and best.without >= patience
        return out_of_patience or self.iteration >= self.config.trainer.max_iter

    def describe_end(self) -> str:
        """Returns the reason why no step is left."""
        best, max_iter = self.best, self.config.trainer.max_iter
        if best is None or self.iteration >= max_iter:
            return f"{self.iteration} of {max_iter} steps are complete"
        return (
            f"finished early, after {self.iteration} of {max_iter} steps: {best.without} validations without a better "
            f"{best.metric} than {best.value:.4f} after step {best.step}; to continue, increase "
            "trainer.early_stop_patience"
        )

    def must_skip(self, step: StepResult) -> bool:
        """Returns whether a step must be skipped, after its gradient norm was computed; counts skipped steps."""
        assert step.gradient is not None
        scales = f"the loss scale {step.loss_scale:g}; the next step uses {self.scaler.scale:g}"
        cause = f"float16 overflows at {scales}" if step.overflowed else ""
        return self.guard.must_skip(step.inputs.index + 1, step.loss, step.gradient, weight=step.weight, cause=cause)

    def advance(self, *, skipped: bool) -> None:
        """Ends a step: updates weights, learning rate schedule and EMA weights, unless it is skipped."""
        if not skipped:
            self.optimizer.step()
            self.scheduler.step()
            if self.ema is not None:
                self.ema.update(self.iteration - self.guard.skipped)
        self.optimizer.zero_grad(set_to_none=True)
        self.iteration += 1

    def save(self, *, background: bool = False) -> Path:
        """Writes a checkpoint and returns its folder. Collective.

        Args:
            background: Whether the tensors are only copied here and written in the background.

        Raises:
            SaveError: If it cannot be written.
        """
        texts, only_trained = {"config.yaml": to_yaml(self.config)}, self.config.checkpoint.save_weights == "trained"
        if only_trained:
            texts[frozen_weights.FILE] = self.weights.frozen_record
        parts = {
            "model": self.weights.state_dict(only_trained=only_trained),
            "optim": optimizer_state(self.network, self.optimizer),
            "scheduler": {"last_epoch": torch.tensor(self.scheduler.steps)},
            "trainer": {**self._counters(), **self._rng_state()},
        }
        return self.checkpointer.save(
            self.iteration,
            parts,
            dataloader=self.loader_state or self.loader.state_dict(),
            texts=texts,
            background=background,
            retire=self.guard.consecutive == 0,  # while steps are skipped, the weights may be spoiled
            is_best=self.best is not None and self.best.step == self.iteration,
        )

    def restore(self, checkpoint: Path, *, changes: Sequence[str] = (), resume_changed: bool = False) -> None:
        """Restores a checkpoint of this run. Collective.

        Learning rates and settings come from the config, the state from the checkpoint. With the same number of ranks
        the run continues bit for bit; with another number, tensors and data are sharded again.

        Args:
            checkpoint: Checkpoint folder.
            changes: Settings that have changed since, for messages.
            resume_changed: Whether the dataset may have changed.

        Raises:
            UserError: If the network does not fit, frozen weights have changed, or the dataset has changed and
                `resume_changed` is False.
        """
        require_same_shapes(checkpoint, self.network, self.model.config.ema, changes=changes)
        only_trained = frozen_weights.is_partial(checkpoint)
        if only_trained:
            self.weights.load_initial()
            frozen_weights.require_same(checkpoint, self.weights.frozen(), source=self.weights.source)
        self.checkpointer.load_part(checkpoint, "model", self.weights.state_dict(only_trained=only_trained))
        self._restore_optimizer(checkpoint)
        state = self._restore_counters(checkpoint)
        if self.ema is not None:
            self.ema.load_state_dict(dict(self.ema.ema_weights), started=bool(state["ema_started"]))
        self._restore_position(checkpoint, record=self.run_folder / dataset_record.FILE, may_change=resume_changed)
        if self.best is not None and self.world.is_main:
            go_back_to_best(self.checkpointer.folder, self.iteration, self.best.step)
        logger.info("resuming from %s: %d steps are complete", checkpoint, self.iteration)

    def start(self) -> None:
        """Initializes the weights of a new run. Collective.

        With `checkpoint.load_training_state` it also restores the other state of the checkpoint in load_path.
        """
        with_state = self.config.checkpoint.load_training_state
        report = self.weights.load_initial(with_state=with_state)
        if report is None:
            return
        text = json.dumps(asdict(report), indent=1) + "\n"
        write_on_main(
            self.world, self.run_folder, lambda: write_text(self.run_folder / frozen_weights.LOAD_REPORT, text)
        )
        checkpoint = Path(report.folder).parent
        if self.config.checkpoint.save_weights == "trained" and NAME.fullmatch(checkpoint.name):
            logger.warning(
                "the frozen weights are stored only in %s: keep it, or a copy, as long as this run", checkpoint
            )
        if not with_state:
            return
        self._restore_optimizer(checkpoint, skipped=report.skipped)
        self._restore_counters(checkpoint)
        if self.best is not None:  # it was another run's
            self.best.forget()
        record = checkpoint.parent.parent / dataset_record.FILE
        self._restore_position(checkpoint, record=record, may_change=True)
        logger.info("using the training state of %s: %d steps are complete", checkpoint, self.iteration)

    def _restore_optimizer(self, checkpoint: Path, *, skipped: Sequence[str] = ()) -> None:
        """Restores optimizer state and schedule. `skipped`: weights (`net.<name>`) whose state is not loaded."""
        optim = empty_optimizer_state(self.network, self.optimizer, optimizer_state_names(checkpoint, skipped))
        self.checkpointer.load_part(checkpoint, "optim", optim)
        restore_optimizer_state(self.network, self.optimizer, optim)
        schedule = {"last_epoch": torch.tensor(0)}
        self.checkpointer.load_part(checkpoint, "scheduler", schedule)
        self.scheduler.resume(int(schedule["last_epoch"]))

    def _restore_counters(self, checkpoint: Path) -> dict[str, Tensor]:
        """Restores counters and RNG states from a checkpoint; a rank without a stored RNG state is seeded.

        Returns the loaded tensors by their name in the checkpoint, such as "iteration".
        """
        stored = stored_shapes(checkpoint / "trainer")
        state = {
            name: value
            for name, value in {**self._counters(), **self._rng_state()}.items()
            if name in stored or not name.startswith(("rng_state_", "best[", "loss_scale["))
        }
        self.checkpointer.load_part(checkpoint, "trainer", state)
        self.iteration = int(state["iteration"])
        if self.best is not None:
            self.best.load_state_dict({name: float(value) for name, value in state.items() if name.startswith("best[")})
        self.scaler.load_state_dict({name: state[name] for name in self.scaler.state_dict() if name in stored})
        self.guard.load_state_dict({name: int(state[name]) for name in self.guard.state_dict()})
        prefix = f"rng_state_{self.world.rank}."
        saved = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        if saved:
            set_rng_state(saved)
        else:
            seed_everything(self.config.trainer.seed + self.world.rank + 1_000_003 * self.iteration)
        return state

    def _restore_position(self, checkpoint: Path, *, record: Path, may_change: bool) -> None:
        """Restores the data loader state; if the dataset has changed, starts the next epoch. Both changes are logged.

        Args:
            checkpoint: Checkpoint folder.
            record: The dataset_windows.txt of the run that saved the checkpoint.
            may_change: Whether the dataset may differ from that of the checkpoint.

        Raises:
            UserError: If the dataset has changed and `may_change` is False.
        """
        loader, positions = self.loader, load_positions(checkpoint)
        changes = require_same_data(loader, checkpoint, positions, record, may_change=may_change)
        if changes:
            number = loader.start_next_pass(positions)
            logger.warning("the data has changed since %s was saved; epoch %d begins:\n%s", checkpoint, number, changes)
            return
        loader.load_states(positions)
        now = self.config.trainer.grad_accum_iter
        processes, before = saved_batch(checkpoint, now)
        if processes != loader.world_size:
            logger.warning(
                "%s was saved by %d data-parallel processes, and now there are %d: weights, optimizer and data "
                "loader state are redistributed; packs per step: %d × %d = %d, before %d × %d = %d (processes × "
                "trainer.grad_accum_iter)",
                checkpoint, processes, loader.world_size, loader.world_size, now, now * loader.world_size,
                processes, before, before * processes,
            )  # fmt: skip

    def _counters(self) -> dict[str, Tensor]:
        numbers = {"iteration": self.iteration, **self.guard.state_dict()}
        numbers["ema_started"] = self.ema is not None and self.ema.started
        best = {} if self.best is None else self.best.state_dict()
        return {
            **{name: torch.tensor(int(value)) for name, value in numbers.items()},
            **{name: torch.tensor(value, dtype=torch.float64) for name, value in best.items()},
            **self.scaler.state_dict(),
        }

    def _rng_state(self) -> dict[str, Tensor]:
        return {f"rng_state_{self.world.rank}.{name}": value for name, value in rng_state().items()}


def saved_batch(checkpoint: Path, default: int) -> tuple[int, int]:
    """Returns the packs per step of the run that saved a checkpoint.

    Args:
        checkpoint: Checkpoint folder.
        default: Packs per process if the checkpoint has no config.

    Returns:
        (number of data-parallel processes, packs of each process).
    """
    trainer = (run_tree(checkpoint / "model") or {}).get("trainer") or {}
    return len(list((checkpoint / "dataloader").glob("rank_*.json"))), trainer.get("grad_accum_iter", default)
