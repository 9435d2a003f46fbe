"""The run folder, `<output root>/<project>/<group>/<name>/`: its path, records, messages and lock."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import itertools
import json
import logging
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.dcp.dcp_folder import checkpoint_of_model_folder
from worldsmith.checkpoint.run.find_checkpoint import POINTER, checkpoint_folders
from worldsmith.checkpoint.run.frozen_weights import LOAD_REPORT
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.config.errors import UserError, describe_error
from worldsmith.config.tree.paths import Path as Keys
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.distributed.world import World
from worldsmith.files.atomic import write_text
from worldsmith.files.fingerprint import LINEAGE
from worldsmith.files.json_file import read_json_object
from worldsmith.files.lines import append_line
from worldsmith.files.locks import LOCK_FILE, holder, try_lock
from worldsmith.files.remote import is_remote
from worldsmith.files.write_checks import require_writable
from worldsmith.monitor.lineage import Input, read_lineage, write_lineage
from worldsmith.monitor.redaction import redact_setting

if TYPE_CHECKING:
    from worldsmith.config.sections import JobConfig
    from worldsmith.data.stream.loader import PackingDataLoader
    from worldsmith.training.run_config import RunConfig

logger = logging.getLogger(__name__)

ROOT_VARIABLES = ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT")
DEFAULT_ROOT = "outputs/train"
START_VARIABLE = "WORLDSMITH_RUN_NAME"
"""Environment variable in which `worldsmith launch` passes a name to a run without one, so that restarts resume it."""

LOCK_READS = 5
"""Max number of reads of rank 0's lock file: a network file system may show it late."""
LOCK_READ_PAUSE = 1.0
"""Seconds between two reads of rank 0's lock file."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start command and environment of the run, for its record."""

    config_path: str | None = None
    overrides: Sequence[str] = ()
    origins: Mapping[str, Mapping[str, Any]] | None = None
    """Source of each config value, as in `worldsmith.config.write.annotate`; None: not known."""
    variables: Mapping[Keys, str] | None = None
    """Names of the environment variables that supplied config values; None: not known."""


def output_root() -> Path:
    """Returns the folder of all runs: `WORLDSMITH_OUTPUT_ROOT`, else `IMAGINAIRE_OUTPUT_ROOT`, else `outputs/train`.

    Raises UserError if both environment variables are set and differ, or if one is the address of an object store.
    """
    return given_root() or Path(DEFAULT_ROOT)


def given_root() -> Path | None:
    """Returns the folder in `WORLDSMITH_OUTPUT_ROOT` or `IMAGINAIRE_OUTPUT_ROOT`; None if neither is set.

    Raises UserError if both are set and differ, or if one is the address of an object store.
    """
    given = {name: os.environ[name] for name in ROOT_VARIABLES if os.environ.get(name)}
    if len(set(given.values())) > 1:
        both = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UserError(f"the output root has two different values: {both}; unset one of them")
    for name, root in given.items():
        if is_remote(root):
            raise UserError(
                f"{name} is an address: expected a folder on this machine, found {root}. A run is written to a "
                "folder; set checkpoint.upload_to to copy its checkpoints to an object store"
            )
    return Path(next(iter(given.values()))) if given else None


def run_path(job: JobConfig) -> Path:
    """Returns the path of the run folder of a job; creates nothing.

    The parent folder is `job.folder` (relative to the output root, if one is given) or, if that is not set,
    `<output root>/<project>/<group>`. The name of the run folder is the first of these that applies:

    1. `job.name`, whether or not the folder exists.
    2. With `job.resume_newest`: that of the run in the parent folder with the most recent checkpoint, if one exists.
    3. The name in the environment variable `WORLDSMITH_RUN_NAME`, which `worldsmith launch` sets.
    4. The current time, with a number (`_2`, …) if that folder exists.

    Args:
        job: Job section of the config.

    Raises:
        UserError: If two environment variables state different output roots.
    """
    group = output_root() / job.project / job.group
    if job.folder:
        group = (given_root() or Path()) / os.path.expanduser(job.folder)
    if job.name:
        return group / job.name
    if job.resume_newest and (newest := newest_run(group)):
        return newest
    if given := os.environ.get(START_VARIABLE):
        return group / given
    now = start_time()
    names = (now if count == 1 else f"{now}_{count}" for count in itertools.count(1))
    return group / next(name for name in names if not (group / name).exists())


def name_run(job: JobConfig, folder: Path, world: World) -> Path:
    """Names a job without a name after the folder that rank 0 has found for it; returns this folder. Collective.

    Args:
        job: Job section of the config, changed in place.
        folder: Result of `run_path`; only that of rank 0 is used.
        world: Ranks of the run.
    """
    folder = world.broadcast(folder)
    if world.is_main and not (folder / "checkpoints").exists():
        why = f"{folder.parent} has no run with a checkpoint to resume" if job.resume_newest else "job.name is empty"
        logger.warning(
            "%s: starting a new run in %s; set job.name to the name of this folder to resume it", why, folder
        )
    job.name, job.resume_newest = folder.name, False
    return folder


def start_time() -> str:
    """Returns the current time as part of a folder name."""
    return datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")


def newest_run(group: Path) -> Path | None:
    """Returns the run below `group` with the most recent checkpoint; None if no run has one."""
    pointers = list(group.glob(f"*/checkpoints/{POINTER}"))
    return max(pointers, key=lambda file: file.stat().st_mtime_ns).parents[1] if pointers else None


def write_records(
    folder: Path, config: RunConfig, launch: Launch, loaders: Mapping[str, PackingDataLoader], *, world_size: int
) -> None:
    """Writes the records of a run into its folder: config, start command, data and lineage.

    Args:
        folder: Run folder, which is created if it does not exist.
        config: Config of the run, with a name.
        launch: Start command and environment.
        loaders: Data loaders by "train" and "val".
        world_size: Number of processes.
    """
    from worldsmith.config.yaml.yaml_text import dump_yaml
    from worldsmith.data.stream import dataset_record
    from worldsmith.monitor.run_record import write_origins, write_run_record

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.yaml", to_yaml(config))
    if config.custom:
        write_text(folder / "custom.yaml", dump_yaml(config.custom))
    write_origins(folder / "config_origins.json", launch.origins)
    write_run_record(
        folder,
        command=sys.argv,
        config_path=launch.config_path,
        overrides=launch.overrides,
        world_size=world_size,
        seed=config.trainer.seed,
    )
    names = {"train": dataset_record.FILE, "val": dataset_record.VALIDATION}
    for split, loader in loaders.items():
        write_text(folder / names[split], dataset_record.record_text(loader.dataset))
        for name, content in loader.dataset.run_files().items():
            write_text(folder / (name if split == "train" else f"{split}_{name}"), content)
    reports = {split: loader.report().facts() for split, loader in loaders.items()}
    known = {split: {k: v for k, v in facts.items() if v not in (None, "", [], {})} for split, facts in reports.items()}
    write_text(folder / "data_report.json", json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    inputs = [
        *initial_weight_inputs(folder, config),
        *(i for split, loader in loaders.items() for i in dataset_inputs(split, loader.dataset)),
    ]
    write_lineage(folder, action="train", settings=redact_settings(to_dict(config)), inputs=inputs)


def write_on_main(world: World, folder: Path, write: Callable[[], object]) -> None:
    """Waits for all ranks and calls `write` on rank 0; raises UserError on all ranks if that fails. Collective.

    Args:
        world: Ranks of the run.
        folder: Run folder, for the error message.
        write: Writes files; may raise OSError.
    """
    problem = None
    world.barrier()
    if world.is_main:
        try:
            write()
        except OSError as error:
            inside = error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(folder)
            what = f"[E127] the run folder {folder} cannot be written" if inside else f"{error.filename} cannot be read"
            problem = f"{what}: {error.strerror or error}"
    problem = world.broadcast(problem)
    if problem is not None:
        raise UserError(problem)


def initial_weight_inputs(folder: Path, config: RunConfig) -> list[Input | dict[str, Any]]:
    """Returns the entry of lineage.json for the initial weights of the run; empty for random weights."""
    if (folder / LINEAGE).is_file() and checkpoint_folders(folder / "checkpoints"):
        return [entry for entry in read_lineage(folder).inputs if entry["role"] in ("base", "adapter")]
    if config.initial_weights() is None:
        return []
    adapter = config.checkpoint.load_adapter
    base = Input("base", checkpoint_of_model_folder(Path(str(read_json_object(folder / LOAD_REPORT)["folder"]))))
    return [base, *([] if adapter is None else [Input("adapter", adapter)])]


def dataset_inputs(split: str, dataset: Any) -> Iterator[Input]:
    """Yields the entries of a dataset for lineage.json, one per member of a mixture; `split`: "train" or "val"."""
    for member in getattr(dataset, "members", {"": dataset}).values():
        yield Input("dataset", member.name, {"split": split, "records": member.num_records, "samples": len(member)})


def redact_settings(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns a copy of a nested config in which passwords and tokens are redacted.

    Args:
        tree: Config or config section as plain data.
        path: Path of the section with a trailing dot, "" for a complete config.
    """
    plain: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            plain[name] = redact_settings(value, f"{path}{name}.")
        else:
            plain[name] = redact_setting(f"{path}{name}", value) if isinstance(value, str) else value
    return plain


class MessageLog(logging.Handler):
    """Log handler and context manager that stores log records of `worldsmith` from INFO on in a JSON Lines file.

    Until `begin` the records are kept in memory, so that a rejected start leaves no file. An exception that leaves the
    block is recorded too. Records that cannot be written are dropped. Without another handler, warnings still reach
    standard error.
    """

    def __init__(self, path: Path | None, *, step: Callable[[], int]) -> None:
        """Prepares the log.

        Args:
            path: File; None: no record is stored.
            step: Returns the number of completed steps, which each record contains.
        """
        super().__init__(logging.INFO)
        self.path, self.step = path, step
        self.waiting: list[tuple[datetime.datetime, str, str]] | None = []

    def begin(self) -> None:
        """Writes the waiting records; from now on records are written to the file."""
        waiting, self.waiting = self.waiting or [], None
        for message in waiting:
            self._write(*message)

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning" if record.levelno > logging.INFO else "info"
        try:
            self.add(level, self.format(record), datetime.datetime.fromtimestamp(record.created, datetime.UTC))
            if logging.lastResort and record.levelno >= logging.lastResort.level and self._is_alone():
                logging.lastResort.handle(record)
        except Exception:
            self.handleError(record)

    def add(self, level: str, text: str, time: datetime.datetime | None = None) -> None:
        message = time or datetime.datetime.now(datetime.UTC), level, text
        if self.waiting is None:
            self._write(*message)
        else:
            self.waiting.append(message)

    def _is_alone(self) -> bool:
        """Returns whether no other handler gets the records of `worldsmith`; Python then uses `logging.lastResort`."""
        logger: logging.Logger | None = logging.getLogger("worldsmith")
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def _write(self, time: datetime.datetime, level: str, text: str) -> None:
        line = {"time": time.isoformat(timespec="milliseconds"), "step": self.step(), "level": level, "text": text}
        assert self.path is not None
        with contextlib.suppress(OSError):  # a message would itself need standard output
            append_line(self.path, json.dumps(line, ensure_ascii=False))

    def __enter__(self) -> MessageLog:
        if self.path is not None:
            logging.getLogger("worldsmith").addHandler(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        logging.getLogger("worldsmith").removeHandler(self)
        if error is not None and self.path is not None:
            self.add("error", describe_error(error))


class RunLock:
    """Creates the run folder and locks it until `release` or the end of rank 0. Collective.

    The lock is a POSIX record lock: it works over NFS, is not inherited by forked processes, and ends with its process.

    Raises:
        UserError: On all ranks, if another run has locked the folder, if it cannot be written, or if a rank does not
            see the folder of rank 0.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self._handle: int | None = None
        self._made: list[Path] = []
        problem, token = None, secrets.token_hex(8)
        if world.is_main:
            try:
                require_writable(folder, what="the run folder ")
                made = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
                self._handle = lock_folder(folder, token)
                self._made = made  # and not by another start, which has the folder then
            except UserError as error:
                problem = str(error)
        problem, token, host = world.broadcast((problem, token, socket.gethostname()))
        if problem is None and not world.is_main:
            problem = find_lock_problem(folder, token, rank=world.rank, host=host)
        problems = [found for found in world.gather(problem) if found is not None]
        if problems:
            self.withdraw()
            raise UserError(problems[0])

    def release(self) -> None:
        """Unlocks the folder."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def keep_folder(self) -> None:
        """Keeps the folder, which now contains a downloaded checkpoint, in `withdraw`."""
        self._made = []

    def require_held(self) -> None:
        """Raises SaveError on all ranks if the folder was moved, removed or replaced. Collective."""
        lost = self.world.broadcast(self._lost() if self.world.is_main else None)
        if lost is not None:
            raise SaveError(
                f"[E107] the run folder {self.folder} {lost} during the run: no more files are written. If it was "
                "moved, move it back and start again to resume from its last checkpoint"
            )

    def _lost(self) -> str | None:
        """Returns what happened to the run folder, for an error message; None while it is locked by this run."""
        if self._handle is None:
            return None
        try:
            same = os.path.samestat(os.fstat(self._handle), os.stat(self.folder / LOCK_FILE))
        except OSError:
            return "has lost its lock file" if self.folder.is_dir() else "was moved or removed"
        return None if same else "or its lock file was replaced"

    def withdraw(self) -> None:
        """Unlocks the run folder, and removes those folders (it and its parents) that taking the lock has created."""
        is_own = self._handle is not None and self._lost() is None
        for place in self._made[:1] if is_own else ():
            shutil.rmtree(place, ignore_errors=True)
        self.release()
        for place in self._made[1:] if is_own else ():
            with contextlib.suppress(OSError):  # somebody else has put something there
                place.rmdir()


def lock_folder(folder: Path, token: str) -> int:
    """Creates and locks the run folder, writes `token` into its lock file and returns the file descriptor of that file.

    Raises UserError if another process has locked the folder or the lock file cannot be written.
    """
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"[E127] {path} cannot be written: {error.strerror}") from None
    if not try_lock(handle, fcntl.LOCK_EX, path):
        os.close(handle)
        raise UserError(
            f"[E106] the run folder {folder} is in use: {holder(path)}. Wait until it ends, stop it (`touch "
            f"{folder}/STOP`), or set another job.name for this run"
        )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"host": socket.gethostname(), "pid": os.getpid(), "started_at": now, "token": token}
    os.ftruncate(handle, 0)
    os.pwrite(handle, (json.dumps(about) + "\n").encode(), 0)
    os.fsync(handle)
    return handle


def find_lock_problem(folder: Path, token: str, *, rank: int, host: str) -> str | None:
    """Returns why this rank cannot use the folder that rank 0, on `host`, has locked with `token`; None if it can."""
    for attempt in range(LOCK_READS):
        time.sleep(LOCK_READ_PAUSE if attempt else 0.0)
        try:
            found = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))["token"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if found == token:
            break
    else:
        return (
            f"process {rank} on {socket.gethostname()} does not see the files that process 0 on {host} writes to "
            f"the run folder {folder.absolute()}: it must be on storage that all nodes share. Set "
            "WORLDSMITH_OUTPUT_ROOT to such a folder, the same on all nodes"
        )
    try:
        require_writable(folder, what="the run folder ")
    except UserError as error:
        return f"process {rank} on {socket.gethostname()}: {error}"
    return None
