"""Final evaluation of a study: the metric of stored weights on data that no trial has used."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from worldsmith.actions.processes import run_in_processes
from worldsmith.checkpoint.run.find_checkpoint import read_best
from worldsmith.config.declare.configurable import field_names
from worldsmith.config.errors import UserError
from worldsmith.distributed.degrees import NAMES, PARALLELISM
from worldsmith.distributed.world import World
from worldsmith.files.errors import WorkerProcessError
from worldsmith.tasks.registry import task_of
from worldsmith.tools.tune.record import Record
from worldsmith.tools.tune.source import Source, first_part, key_of_word
from worldsmith.tools.tune.space import as_words
from worldsmith.tools.tune.trial_run import TrialRun

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

T = TypeVar("T")
VALIDATION = "dataloader_val"


@dataclass(frozen=True, slots=True)
class FinalData:
    """Evaluation of the best trial and the baseline of a study on the held-out data of `--final-data`.

    `source` is the run to tune, `data` the arguments of `--final-data` (overrides that select data which no trial
    uses), and `metric` the name of the objective.
    """

    source: Source
    data: Sequence[str]
    metric: str
    evaluate: Sequence[str] = ()
    """Overrides of `worldsmith evaluate` if it computes the objective; empty: it is a validation metric."""

    def check(self) -> None:
        """Raises UserError if the `--final-data` cannot be read, or if trials train or validate on samples of it.

        Nothing is checked if `worldsmith evaluate` computes the objective.
        """
        if not self.evaluate:
            run_in_child(self.require_unseen)

    def measure(self, record: Record, best: FrozenTrial) -> dict[str, Any]:
        """Evaluates the best trial and the baseline on the data of `--final-data`.

        Args:
            record: Record of the study.
            best: The best trial.

        Returns:
            The metric of the best trial ("best") and of the baseline ("as_it_is"), None if it is missing or not finite;
            and the overrides that select the data ("data").

        Raises:
            UserError: If the evaluation fails.
        """
        values: dict[str, float | None] = {}
        for name, trial in (("best", best), ("as_it_is", record.finished[0])):
            if trial.number == best.number and values:
                values[name] = values["best"]
                continue
            run, folder = record.path(trial.number), record.folder / f"final_{trial.number:04d}"
            settings = as_words(trial.user_attrs["settings"])
            try:
                if self.evaluate:
                    figures: Mapping[str, float | None] = self.evaluated(run, folder)
                else:
                    figures = run_in_child(lambda: self.validated(settings, run, folder))  # noqa: B023
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            value = figures.get(self.metric)
            values[name] = value if value is not None and math.isfinite(value) else None
        return {**values, "data": list(self.data)}

    def require_unseen(self) -> None:
        """Raises UserError if the training or validation data of the trials contains samples of the `--final-data`."""
        seen: Any = self.source.load().tree
        final: Any = self.source.load(self.changes).tree
        model = seen.model.config.build(device="meta")
        task = task_of(seen.model.name)(model=model, objective=seen.objective, data=final.dataloader_val, world=World())
        dataset = task.loader(dry=True).dataset
        for split, what in (("train", "are trained"), ("val", "are measured")):
            other = getattr(seen, f"dataloader_{split}").dataset.build()
            if overlap := dataset.count_overlap(other):
                raise UserError(
                    f"--final-data: {overlap} of {dataset.num_samples} samples of {dataset.name} are also in "
                    f"{other.name}, on which the trials {what}; select data that no trial uses"
                )

    def validated(self, settings: Sequence[str], run: Path, folder: Path) -> dict[str, float]:
        """Returns the validation metrics, by name, of the weights of a trial on the data of `--final-data`.

        Builds a new run without parallelism that loads the weights, and validates it before its first step.

        Args:
            settings: Overrides of the trial.
            run: Folder of the trial's run; its best weights are used, or its last ones if the best ones are not kept.
            folder: Folder of the new run.
        """
        start: dict[str, Any] = {
            "load_path": str((read_best(run / "checkpoints") or run).absolute()),
            "load_adapter": None,
            "load_training_state": False,
            "load_ema_to_reg": False,
            "keys_to_skip_loading": [],
        }
        words = as_words({f"checkpoint.{name}": value for name, value in start.items()})
        words += as_words({f"{PARALLELISM}.{name}": 1 for name in NAMES})
        tree: Any = self.source.load([*settings, *self.changes, *words]).tree
        trainer = tree.build(run_folder=folder)
        try:
            return dict(trainer.validator.run(trainer.state.ema).metrics)
        finally:
            trainer.lock.release()

    def evaluated(self, run: Path, folder: Path) -> dict[str, float | None]:
        """Returns all metrics, by name, of a trial's run that `worldsmith evaluate` computes on the `--final-data`.

        Raises UserError if the evaluation fails.

        Args:
            run: Folder of the run.
            folder: Folder of the evaluation.
        """
        words = ["evaluate", str(run), "-o", str(folder), "--json", "--", *self.evaluate, *self.data]
        folder.mkdir(exist_ok=True)
        again = TrialRun(folder, [], self.metric, after=words)
        try:
            again.start_next(os.environ)
            while again.code() is None:
                time.sleep(0.1)
            if again.code():
                raise UserError(f"--final-data: {again.reason()}")
            return again.facts()
        finally:
            again.kill()
            for file in (again.log, again.measured):
                file.unlink(missing_ok=True)

    @property
    def changes(self) -> list[str]:
        """Overrides with which a run validates on the `--final-data`: those in `data`, prefixed by "dataloader_val.".

        If the run is described by a training spec (Cosmos-RL or TAO), only overrides that begin with a field of
        dataloader_val get the prefix; the remaining ones set keys of the spec.
        """
        if not self.source.is_spec:
            return [f"{VALIDATION}.{word}" for word in self.data]
        fields = field_names(type(self.source.load().tree.dataloader_val))
        return [f"{VALIDATION}.{word}" if first_part(key_of_word(word)) in fields else word for word in self.data]


def run_in_child(work: Callable[[], T]) -> T:
    """Calls `work` without arguments in a child process and returns its result.

    Only the child process imports torch and uses a GPU. Raises UserError if it fails.
    """
    try:
        (found,) = run_in_processes(lambda *share: work(), 1, lambda done: None)
        return found
    except WorkerProcessError as error:
        raise UserError(str(error)) from None
