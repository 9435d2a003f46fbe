"""`worldsmith check`: reads the data of a run as the run would, and says what is in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import Action, Result, share_done
from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import Count, NotNegative
from worldsmith.config.errors import UserError
from worldsmith.data.report.inspector import Tally
from worldsmith.data.report.report import DataReport, read_data
from worldsmith.data.report.text import lines_of, titled, wrapped
from worldsmith.distributed.world import world_size
from worldsmith.files.writable import nearest_folder
from worldsmith.tasks.registry import task_of
from worldsmith.training.parallel import plan_degrees
from worldsmith.training.preflight import build_optimizer, check_space, checkpoint_bytes, kept_checkpoints, size
from worldsmith.training.run_folder import run_path

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.tasks.task import Task

WIDEST = 100
"""Columns of the report, at most."""


@dataclass(slots=True)
class Finding:
    """What a check has found."""

    reports: dict[str, DataReport] = field(default_factory=dict)
    """Of the training data and, if the run validates, of the validation data."""
    disk: dict[str, int] = field(default_factory=dict)
    """Bytes: what checkpoints and cached latents take, and what is free."""
    overlap: int | None = None
    """Samples that are validated and trained on; None where nothing is validated."""
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why the run could not start, or would stop in its first pass."""


class CheckData(Action):
    """Reads every sample of a run's data once, by the run's own code, and counts as the run counts. Writes nothing."""

    class Config(Action.Config):
        run: Configurable.Config
        """The run, with its references resolved."""
        limits_of: str | None = None
        """The recipe that `run` is, where only a data set was named."""
        processes: Count | None = None
        """Processes that the run would have; null: as many as the launch has, else one."""
        workers: NotNegative | None = None
        """Processes that read; 0: this one alone, null: one for each CPU."""
        sample: Count | None = None
        """Look at so many samples only, evenly chosen; null: at all."""

    config: Config

    def run(self) -> Result:
        found = self.look()
        facts = {
            "run": None if self.config.limits_of else str(run_path(self.tree.job)),
            "limits_of": self.config.limits_of,
            "data": {name: report.facts() for name, report in found.reports.items()},
            **{name: getattr(found, name) for name in ("overlap", "disk", "remarks", "problems")},
            "can_start": not found.problems,
        }
        return Result(list(self.lines(found)), facts, code=2 if found.problems else 0)

    @property
    def tree(self) -> Any:
        return self.config.run

    @property
    def workers(self) -> int:
        chosen = self.config.workers
        return len(os.sched_getaffinity(0)) if chosen is None else chosen

    def look(self) -> Finding:
        """Raises DataError when there is no data set, ValueError for processes that do not fit the run's degrees."""
        tree, found = self.tree, Finding()
        ranks = plan_degrees(tree.model.config, self.config.processes or world_size()).data
        model: Model = tree.model.config.build(device="meta")
        tasks: dict[str, Task] = {}
        datasets: dict[str, Any] = {}
        for split in ("train", "val"):
            data = getattr(tree, f"dataloader_{split}")
            if split == "val" and (data is None or not tree.trainer.run_validation):
                continue
            task = task_of(tree.model.name)(model=model, objective=tree.objective, data=data, split=split)
            tally = task.quarantine = Tally(split)
            loader = task.loader(dry=True)
            tasks[split], datasets[split] = task, loader.dataset
            packs_a_step = tree.trainer.grad_accum_iter if split == "train" else 1
            found.reports[split] = report = read_data(
                loader, tally, contents=task.contents(loader.dataset), workers=self.workers, ranks=ranks,
                packs_a_step=packs_a_step, sample=self.config.sample, shown=share_done(f"reading {split} data"),
            )  # fmt: skip
            found.problems += report.problems
            if report.kept and 0 in report.packs and report.looked_at == report.positions:
                idle = [rank for rank, packs in enumerate(report.packs) if not packs]
                found.remarks.append(
                    f"{split}: {len(idle)} of {ranks} processes get nothing of a pass over {report.kept} samples and "
                    "read those of later passes: use fewer processes, or more data"
                )
        if "val" in tasks:
            found.overlap = tasks["val"].overlap(datasets["val"], datasets["train"])
            if found.overlap:
                found.remarks.append(f"{found.overlap} samples of the validation data are trained on, too")
        if self.config.limits_of is None:
            self.look_at_disk(found, model, tasks["train"])
        return found

    def look_at_disk(self, found: Finding, model: Model, task: Task) -> None:
        """What the run writes, against what is free."""
        tree, folder = self.tree, nearest_folder(run_path(self.tree.job))
        build_optimizer(tree, model.network)  # which chooses what is trained
        found.disk = {
            "checkpoint": checkpoint_bytes(tree, model.network),
            "checkpoints_kept": kept_checkpoints(tree),
            "free": shutil.disk_usage(folder).free,
        }
        try:
            found.remarks += check_space(tree, model.network, folder)
        except UserError as error:
            found.problems.append(str(error))
        cache = getattr(tree.dataloader_train, "latent_cache", "")
        if not cache or not task.cell_bytes:
            return
        needed = task.cell_bytes * sum(report.cells for report in found.reports.values())
        free = shutil.disk_usage(nearest_folder(Path(cache))).free
        found.disk |= {"latent_cache": needed, "latent_cache_free": free}
        if needed > free:
            found.remarks.append(
                f"the latents of a pass take {size(needed)}, and the disk of {cache} has {size(free)} free: clips "
                "whose latents do not fit are encoded each time"
            )

    def lines(self, found: Finding) -> Iterator[str]:
        width = min(WIDEST, shutil.get_terminal_size().columns)
        if self.config.limits_of is not None:
            yield titled("limits", f"those of the recipe {self.config.limits_of}; --recipe NAME chooses another one")
        for split, report in found.reports.items():
            if len(found.reports) > 1:
                yield titled(split, "-" * (width - 13))
            yield from lines_of(report, width=width, workers=self.workers)
        disk = found.disk
        if disk:
            kept = disk["checkpoints_kept"] * disk["checkpoint"]
            yield titled("disk", f"checkpoints {size(disk['checkpoint'])} each, at most {size(kept)} at once; "
                                 f"free: {size(disk['free'])}")  # fmt: skip
        if "latent_cache" in disk:
            free = size(disk["latent_cache_free"])
            yield titled("", f"latents of a pass {size(disk['latent_cache'])}; free: {free}")
        for remark in found.remarks:
            yield from wrapped("note", remark, width)
        for problem in found.problems:
            yield from wrapped("PROBLEM", problem, width)
        if found.problems:
            yield titled("verdict", "this run could not start, or would stop in its first pass")
