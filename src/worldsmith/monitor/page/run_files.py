"""Reads a run folder for its HTML report. Missing and unreadable files are listed and skipped."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from worldsmith.config.errors import UserError
from worldsmith.config.tree.suggest import did_you_mean_folder
from worldsmith.files.lines import read_lines, require_regular
from worldsmith.monitor.page.series import MetricsReader

EXPECTED = {
    "metrics.jsonl": "no step has been logged, so there are no curves",
    "config.yaml": "the settings of the run are unknown",
    "config_origins.json": "the sources of the settings are unknown",
    "launch_info.yaml": "the start command of the run is unknown",
    "job_env.yaml": "the machine and the package versions are unknown",
    "messages.jsonl": "the log of the run was not kept",
    "EveryNDrawSample/samples.jsonl": "no samples have been generated",
}
"""Files that every report lists, each with what is missing in the report without it."""
MEASURED = ("metrics.json", "evaluation.json", "adherence.json", "rollout.json")
"""File names of the results of evaluations and rollouts, in subfolders of the run folder."""
SHOWN_OUTSIDE = 3
"""Max number of files outside the run folder that the message about them names."""
NEWEST = 400
"""Number of log messages that are kept."""
READER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class RunFiles:
    """The parsed files of one run folder; a missing or unreadable file leaves an empty value."""

    folder: Path
    metrics: MetricsReader
    config: dict[str, Any] = field(default_factory=dict)
    """config.yaml."""
    origins: dict[str, dict[str, Any]] = field(default_factory=dict)
    """config_origins.json: by path of a config value, a dict with `origin` and optionally `changed` and `was`."""
    launch: dict[str, Any] = field(default_factory=dict)
    """launch_info.yaml: command, start time and earlier launches."""
    environment: dict[str, Any] = field(default_factory=dict)
    """job_env.yaml: host, package versions, git state and environment variables."""
    status: dict[str, Any] = field(default_factory=dict)
    """status.json: state, step, times and reason of the end."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Output of `worldsmith plan --json` for the run."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Newest entries of messages.jsonl: dicts with `step`, `level` and `text`."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Entries of samples.jsonl: dicts with `step`, `prompt`, and `file` or `answer`."""
    left_out: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Entries of the quarantine files, by file name."""
    data_report: dict[str, Any] = field(default_factory=dict)
    """Fields of `DataReport` by split ("train", "val")."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Number of parameters, and of trained ones."""
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Results of `worldsmith evaluate` and `worldsmith rollout`, by file."""
    checkpoints: list[str] = field(default_factory=list)
    """Names of the checkpoint folders, oldest first."""
    absent: dict[str, str] = field(default_factory=dict)
    """Missing files of `EXPECTED`, each with the consequence for the report."""
    problems: list[str] = field(default_factory=list)
    """Messages about unreadable files and invalid lines."""
    outside: list[str] = field(default_factory=list)
    """Names of images and videos outside the run folder, which the page does not show."""

    def find_media(self, name: str) -> Path | None:
        """Returns the path of an image or video in the run folder; None if it is missing or outside of the folder.

        A file outside of the folder is added to `outside`.
        """
        file = resolve_file(self.folder / name)
        if file is not None and not file.is_relative_to(self.folder.resolve()):
            if name not in self.outside:
                self.outside.append(name)
            return None
        return file

    def report_outside(self) -> None:
        """Adds a message to `problems` if `find_media` has found files outside of the run folder."""
        if self.outside:
            names = ", ".join(self.outside[:SHOWN_OUTSIDE])
            more = len(self.outside) - SHOWN_OUTSIDE
            self.problems.append(
                f"{len(self.outside)} images or videos are outside the run folder and are not shown: "
                f"{names}{f' and {more} more' if more > 0 else ''}; copy them into the folder to show them"
            )

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.folder.resolve().name


def read_run(folder: Path, metrics: MetricsReader | None = None) -> RunFiles:
    """Reads a run folder. Unreadable files are listed in `problems` of the result.

    Args:
        folder: Run folder.
        metrics: Reader of an earlier call, which reads only new lines of `metrics.jsonl`; None: a new reader.

    Raises:
        UserError: If `folder` is not a run folder.
    """
    run = RunFiles(require_run(folder), metrics or MetricsReader(folder / "metrics.jsonl"))
    with report_errors(run, "metrics.jsonl"):
        run.metrics.read()
    run.config = read_run_table(run, "config.yaml")
    run.origins = {str(k): v for k, v in read_run_table(run, "config_origins.json").items() if isinstance(v, dict)}
    run.launch = read_run_table(run, "launch_info.yaml")
    run.environment = read_run_table(run, "job_env.yaml")
    run.status = read_run_table(run, "status.json")
    run.plan = read_run_table(run, "plan.json")
    run.data_report = read_run_table(run, "data_report.json")
    run.parameters = read_run_table(run, "param_count/parameters.json")
    for name in (name for figures in MEASURED for name in (f"*/{figures}", f"*/*/{figures}")):
        for path in sorted(folder.glob(name)):
            place = path.relative_to(folder).as_posix()
            run.evaluations[place] = read_run_table(run, place)
    run.messages = list(deque(read_entries(run, "messages.jsonl"), NEWEST))
    run.samples = list(read_entries(run, "EveryNDrawSample/samples.jsonl"))
    for path in sorted(folder.glob("quarantine*.jsonl")):
        run.left_out[path.name] = list(read_entries(run, path.name))
    run.checkpoints = sorted(path.name for path in (folder / "checkpoints").glob("iter_*") if path.is_dir())
    run.absent = {name: meaning for name, meaning in EXPECTED.items() if not (folder / name).exists()}
    if run.metrics.broken:
        run.problems.append(f"metrics.jsonl: {run.metrics.broken} incomplete lines are ignored")
    return run


def require_run(folder: Path) -> Path:
    """Returns `folder`; raises UserError if it is not a run folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder{did_you_mean_folder(folder)}")
    if not any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "status.json")):
        raise UserError(f"{folder}: not a run folder: expected config.yaml or metrics.jsonl in it")
    return folder


@contextmanager
def report_errors(run: RunFiles, name: str) -> Iterator[None]:
    """Context manager that suppresses a read error of the file `name` and adds it to `run.problems`."""
    try:
        yield
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        run.problems.append(f"{name} cannot be read: {' '.join(str(error).split())}")


def resolve_file(path: Path) -> Path | None:
    """Returns the path of a file with all links resolved; None if it does not lead to a file."""
    try:
        file = path.resolve()
        return file if file.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL character, a loop of links
        return None


def read_run_table(run: RunFiles, name: str) -> dict[str, Any]:
    """Returns the mapping in the YAML or JSON file `name` of the run folder; {} if the file is missing or invalid.

    The error of an invalid file is added to `run.problems`.
    """
    path, found = run.folder / name, None
    if not path.exists():
        return {}
    with report_errors(run, name):
        require_regular(path)
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if name.endswith(".json") else yaml.load(text, Loader=READER)
        if not isinstance(found, dict):
            raise ValueError("expected a table")
    return found if isinstance(found, dict) else {}


def read_entries(run: RunFiles, name: str) -> Iterator[dict[str, Any]]:
    """Yields the objects in the JSON Lines file `name` of the run folder; an incomplete last line is skipped.

    Other invalid lines are reported in `run.problems`.
    """
    path, lines = run.folder / name, []
    if not path.exists():
        return
    with report_errors(run, name):
        require_regular(path)
        lines = read_lines(path)
    broken = 0
    for number, text in enumerate(lines, 1):
        try:
            entry = json.loads(text)
        except ValueError:
            broken += number < len(lines)
            continue
        if isinstance(entry, dict):
            yield entry
    if broken:
        run.problems.append(f"{name}: {broken} lines that are not JSON are ignored")


def lookup(data: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """Returns the value at the path `a.b.c` of nested mappings; `default` if the path does not exist."""
    node: Any = data
    for key in path.split("."):
        if not isinstance(node, Mapping) or key not in node:
            return default
        node = node[key]
    return node
