"""`worldsmith check`: reads the data of a run, or a dataset, as a run would.

Exit codes: 0 the run could start, 2 it could not, or a mistake of the user.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.actions.pool_action import RayAction
from worldsmith.actions.ray_processes import connect_ray, is_ray
from worldsmith.actions.run_action import RunAction, RunArguments
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, NotNegative
from worldsmith.config.errors import Place, UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.paths import format_path
from worldsmith.data.data_report import EXAMPLES, DataReport
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Tally
from worldsmith.distributed.degrees import Degrees, plan_degrees
from worldsmith.distributed.world import world_size
from worldsmith.files.remote import is_remote
from worldsmith.models.hub import LOOKED
from worldsmith.models.model import Model
from worldsmith.planning.plan import least_ranks
from worldsmith.tasks.registry import TASKS, task_of
from worldsmith.tasks.task import Task
from worldsmith.tools.check.inspect_data import counted, labeled_line, larger_cap, read_data, report_lines, wrap_labeled
from worldsmith.tools.check.readiness import Needs, inspect_files, inspect_latent_cache, inspect_machine
from worldsmith.training.run_folder import run_path

WIDEST = 100
"""Max width of the report in columns."""
SPEC_CAP = "policy.model_max_length"
"""Spec key of the max tokens per sample."""


@dataclass(slots=True)
class CheckResult:
    """Result of `worldsmith check`: reports on the data, requirements of the run, remarks (hints) and problems."""

    reports: dict[str, DataReport] = field(default_factory=dict)
    """Reports on the training data and, if the run validates, on the validation data."""
    needs: Needs = field(default_factory=Needs)
    """Files, disk space and memory that the run needs in addition to its data."""
    overlap: int | None = None
    """Number of samples in both the training and the validation data; None without validation."""
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Problems that would prevent the run from starting or stop it in its first epoch."""

    def add_problem(self, problem: str) -> None:
        """Appends `problem` to `problems`, unless it is already listed.

        The config field at the beginning of a message is ignored in this comparison.
        """
        first, _, rest = problem.partition(" ")
        text = rest if "." in first else problem
        if not any(text in known for known in self.problems):
            self.problems.append(problem)


class CheckData(RayAction, RunAction):
    """Validates a dataset, or the data of a run, before training, without writing any file.

    It reads all data once with the code of the run, and reports used and skipped samples with reasons, tokens, packs,
    sizes, duplicates, steps per epoch and free disk space. FILE_OR_RECIPE may also be a dataset: a folder or a file.
    """

    metavars: ClassVar[Mapping[str, str]] = {"recipe": "NAME", **RayAction.metavars}
    limits_of: str | None = None
    """Recipe whose limits, such as the max tokens per sample, apply if the command only names a dataset; else None."""

    class Config(RayAction.Config, RunAction.Config):
        recipe: str | None = None
        """for a dataset: the recipe whose limits (tokens, clip sizes) apply"""
        processes: Count | None = None
        """number of processes of the run (default: 1)"""
        workers: NotNegative | None = None
        """number of worker processes that read the data (default: one per CPU of this machine)"""
        sample: Count | None = None
        """inspect only N samples, evenly spaced"""
        headers: bool = False
        """read headers only and decode no frames: fast; reports tokens and sizes"""
        examples: Count = EXAMPLES
        """with --json: list at most N skipped samples per reason"""

        def check(self) -> None:
            super().check()
            if self.on != "local" and self.workers == 0:
                raise wrong(self, "workers", "on", why="processes on Ray read the samples", remedy="write 1 or more")

    config: Config

    def load(self, words: RunArguments) -> Loaded:
        """Loads the config of the run that the arguments `words` describe.

        If the arguments name a dataset, it is the config of a recipe that reads this dataset.
        """
        notes, source = words.leave_parent_out(), words.unknown_source()
        found = None if source is None else find_dataset(source, self.config.recipe)
        if found is not None:
            dataset, recipe = found
            self.limits_of = recipe
            loaded = words.load_for_dataset(recipe, dataset)
        elif self.config.recipe is not None:
            raise UserError("--recipe requires a dataset. To check only a recipe: `worldsmith check NAME`")
        else:
            loaded = words.load()
        return replace(loaded, warnings=[*notes, *loaded.warnings])

    def run(self) -> Result:
        self.print_warnings()
        on = self.config.on
        with connect_ray(on, self.workers, needs_gpu=False) if is_ray(on) else nullcontext():
            found = self.inspect()
        needs = found.needs
        facts = {
            "run": None if self.limits_of else str(run_path(self.tree.job)),
            "limits_of": self.limits_of,
            "data": {name: report.facts() for name, report in found.reports.items()},
            **{name: getattr(found, name) for name in ("overlap", "remarks", "problems")},
            **{name: getattr(needs, name) for name in ("disk", "machine", "hub", "credentials")},
            "can_start": not found.problems,
        }
        return Result(list(self.lines(found)), facts, code=2 if found.problems else 0)

    @property
    def workers(self) -> int:
        """Number of worker processes that read the data."""
        chosen = self.config.workers
        return len(os.sched_getaffinity(0)) if chosen is None else chosen

    @property
    def processes(self) -> int:
        """Number of ranks of the run: from the flag, else WORLD_SIZE, else the parallelism degrees of the config."""
        if self.config.processes is not None or "WORLD_SIZE" in os.environ:
            return self.config.processes or world_size()
        return least_ranks(self.tree)

    def inspect(self) -> CheckResult:
        """Inspects the data and the requirements of the run; returns the result, in which most errors become problems.

        Raises ValueError if the number of processes does not fit the parallelism degrees of the run. If only a dataset
        is checked, errors in it are raised.
        """
        tree, found = self.tree, CheckResult()
        degrees = plan_degrees(tree.model.config.parallelism, self.processes)
        if self.limits_of is None:
            found.needs = inspect_files(tree, self.loaded.variables)
            found.problems += found.needs.problems
        elif (look := getattr(tree.dataloader_train.dataset, "check_files", None)) is not None:
            try:
                look()
            except DataError as error:
                found.add_problem(str(error))
        try:
            for problem in found.problems:
                if problem.startswith("model.") and LOOKED in problem:
                    raise UserError(problem)  # the hub would be queried again
            model: Model = tree.model.config.build(device="meta")
            tasks = self.read(found, model, degrees.data)
        except (DataError, UserError, OSError, ValueError) as error:
            if self.limits_of is not None:
                raise
            found.add_problem(str(error))
            if not found.reports:
                found.reports = self.report_records()
            return found
        if self.limits_of is None:
            self.inspect_run(found, model, degrees, tasks["train"])
        return found

    def read(self, found: CheckResult, model: Model, ranks: int) -> dict[str, Task]:
        """Reads the training data and, if the run validates, the validation data, and adds reports to `found`.

        Args:
            found: Result to which reports, remarks and problems are added.
            model: Model of the run, without weights.
            ranks: Number of data-parallel ranks.

        Returns:
            Split ("train", "val") -> task that reads the data of this split.
        """
        tree = self.tree
        tasks: dict[str, Task] = {}
        datasets: dict[str, Any] = {}
        for split in ("train", "val"):
            data = getattr(tree, f"dataloader_{split}")
            if split == "val" and (data is None or not tree.trainer.run_validation):
                continue
            kind = task_of(tree.model.name)
            relaxed = data.relax()
            task = kind(model=model, objective=tree.objective, data=relaxed, split=split)
            tally = task.quarantine = Tally(split)
            loader = task.loader(dry=True)
            tasks[split], datasets[split] = task, loader.dataset
            packs_a_step = tree.trainer.grad_accum_iter if split == "train" else 1
            found.reports[split] = report = read_data(
                loader, tally, workers=self.workers, place=self.config, ranks=ranks,
                packs_a_step=packs_a_step, sample=self.config.sample, decode=not self.config.headers,
                examples=self.config.examples,
                cap_field=cap_field(self.loaded, split),
                show_progress=make_progress_reporter(f"reading {loader.dataset.name}"),
            )  # fmt: skip
            records = loader.dataset if relaxed is data else data.build_records()
            report.flags, report.channels = list(records.flags()), records.channels()
            for problem in report.problems:
                found.add_problem(problem)
            self.add_count_problems(
                found, report, split, stops_on_overlong=getattr(data, "on_overlong", "drop") == "error"
            )
        if "val" in tasks:
            found.overlap = datasets["val"].count_overlap(datasets["train"])
            if found.overlap:
                found.remarks.append(f"{found.overlap} samples are in both the validation data and the training data")
        return tasks

    def report_records(self) -> dict[str, DataReport]:
        """Returns {"train": report on the training records} for a run whose model cannot be built; reads no samples.

        The dictionary is empty if the dataset cannot be read or has no records.
        """
        data = self.tree.dataloader_train
        try:
            dataset = data.build_records()
        except DataError:  # already listed as a problem
            return {}
        if dataset is None:
            return {}
        report = DataReport.of_dataset(dataset, data.sample_cap)
        report.flags, report.channels = list(dataset.flags()), dataset.channels()
        return {"train": report}

    def add_count_problems(
        self, found: CheckResult, report: DataReport, split: str, *, stops_on_overlong: bool
    ) -> None:
        """Adds a problem or remark to `found` if samples exceed the token limit or ranks have too few packed batches.

        `stops_on_overlong`: a sample above the token limit stops the run (a problem); otherwise it is skipped (a
        remark). An epoch with less than one step, or without samples, on some ranks is a remark. `split` is "train" or
        "val".
        """
        ranks = len(report.packs)
        if report.over_cap and (report.kept or stops_on_overlong):
            long = f"{report.over_cap} samples ({report.over_cap / report.looked_at:.1%}) exceed the token limit"
            if stops_on_overlong:
                found.add_problem(f"dataloader_{split}.on_overlong is 'error', but {long}: {larger_cap(report)}")
            else:
                found.remarks.append(f"{split}: {long} and are skipped: {larger_cap(report)}")
        if not report.kept or self.limits_of is not None:
            return
        if split == "train" and report.ranks_that_work is not None:
            found.remarks.append(too_few_steps(report, self.tree.trainer.grad_accum_iter))
        elif 0 in report.packs and report.looked_at == report.positions:
            found.remarks.append(
                f"{split}: {report.packs.count(0)} of {ranks} processes have no samples in an epoch over "
                f"{report.kept} samples and train on samples of later epochs instead: use fewer processes or more "
                "data"
            )

    def inspect_run(self, found: CheckResult, model: Model, degrees: Degrees, task: Task) -> None:
        """Adds problems and remarks to `found` if the disk or memory of this machine is too small for the run.

        `model` has no weights; `degrees` are the parallelism degrees; `task` states the size of encoded latents.
        """
        tree, needs = self.tree, found.needs
        known = len(needs.problems)
        inspect_machine(needs, tree, model, degrees, self.processes)
        cache = getattr(tree.dataloader_train, "latent_cache", "")
        if cache and not is_remote(cache) and task.encoder_class is not None:
            cells = sum(report.cells for report in found.reports.values())
            inspect_latent_cache(needs, cache, task.encoder.cell_bytes * cells)
        found.remarks += needs.remarks
        found.problems += needs.problems[known:]

    def lines(self, found: CheckResult) -> Iterator[str]:
        """Yields the lines of the report on a check for the terminal."""
        width = min(WIDEST, shutil.get_terminal_size().columns)
        if self.limits_of is not None:
            yield labeled_line("limits", f"from the recipe {self.limits_of}; select another one with --recipe NAME")
        if self.config.processes is None and self.processes > world_size():
            yield labeled_line(
                "processes", f"{self.processes}, as set in model.config.parallelism; change it with --processes N"
            )
        if terms := task_of(self.tree.model.name).terms:
            yield from wrap_labeled(
                "terms", f"{terms}; pack: samples of one forward pass; epoch: every sample once", width
            )
        for split, report in found.reports.items():
            if len(found.reports) > 1:
                yield labeled_line(split, "-" * (width - 13))
            yield from report_lines(report, width=width, workers=self.workers)
        yield from found.needs.lines()
        for remark in found.remarks:
            yield from wrap_labeled("note", remark, width)
        for problem in found.problems:
            yield from wrap_labeled("PROBLEM", problem, width)
        if found.problems:
            yield labeled_line("verdict", "this run would not start, or would stop in its first epoch")


def too_few_steps(report: DataReport, packs_a_step: int) -> str:
    """Returns the remark that an epoch has less than one step on some ranks, with possible fixes.

    `packs_a_step` is the number of packs (forward passes, each over several samples) of a rank per optimizer step.
    """
    ranks, packs, most = len(report.packs), min(report.packs), report.ranks_that_work
    ways = [f"at most {most} process{'es' * (most > 1)}"] if most else []
    ways += [f"trainer.grad_accum_iter = {packs} or less"] if packs else []
    step, data = counted(packs_a_step, "pack"), counted(report.kept or 0, "sample")
    return (
        f"a step takes {step} on each process, but an epoch over {data} gives only {packs} to some processes "
        f"(of {ranks}), which train twice on the same samples within one step. Possible fixes: "
        f"{', '.join([*ways, 'smaller packs, or more data'])}"
    )


def find_dataset(source: str, recipe: str | None) -> tuple[Any, str] | None:
    """Returns (config of the dataset class for the path `source`, name of the recipe whose limits apply).

    The recipe is `recipe`; if it is None, the small default recipe of the task that reads this type of dataset.
    Returns None if `source` does not exist or is a file that is not a dataset. Raises UserError for a folder that is
    not a dataset.
    """
    if not (os.path.exists(source) or is_remote(source) or source.endswith(".tar")):  # shards may be a pattern
        return None
    for task in map(task_of, TASKS.names()):
        dataset = task.loader_class.dataset_at(source)
        if dataset is not None and (recipe or task.small_recipe):
            return dataset, recipe or task.small_recipe
    robots = RobotLoader.dataset_at(source)
    if robots is not None and recipe is not None:
        return robots, recipe
    if robots is not None:
        raise UserError(
            f"{source} contains robot episodes: add --recipe with the recipe or config file that states their columns "
            "and cameras. `worldsmith dataset statistics` lists unusable episodes and the values of the actions"
        )
    if Path(source).is_dir() or is_remote(source):
        raise UserError(
            f"{source} is neither a run folder nor a Worldsmith dataset: expected video_dataset_file.jsonl or *.tar "
            "(also in train/), annotations.json, meta.json or messages.jsonl. `worldsmith dataset import` converts "
            "other layouts"
        )
    return None


def cap_field(loaded: Loaded, split: str) -> str:
    """Returns the name, for messages, of the setting with which the user changes the max tokens of a sample.

    It is the config field that the data loader's field refers to, or the key of the training spec that sets it. Returns
    "" if the data loader's own field is to be changed. `split` is "train" or "val".
    """
    section = f"dataloader_{split}"
    path = (section, getattr(loaded.tree, section).sample_cap_field)
    steps = [step for step in loaded.sources.get(path, []) if isinstance(step, tuple)]
    place = loaded.places.get(path)
    if steps:
        return format_path(steps[0])
    return SPEC_CAP if loaded.report and place is not None and not is_set_by_run(place, section) else ""


def is_set_by_run(place: Place, section: str) -> bool:
    """Returns whether a config value was set by a command-line flag or by an override that begins with `section`.

    `place` is the source of the value. Returns False for a value from a spec file or from an override of a spec key.
    """
    return place.file == "flag" or (place.file == "override" and (place.source or "").lstrip("+").startswith(section))
