"""The copy of a run folder in an object store: checkpoints are uploaded by another process, and downloaded to resume.

A copy contains the checkpoints and the text files of the run folder. Of a checkpoint, the manifest is written last, and
then the pointers: a checkpoint without a manifest is incomplete and is ignored.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.run.find_checkpoint import (
    BEST_POINTER,
    NAME,
    POINTER,
    checkpoint_folders,
    folder_iteration,
    is_later,
    read_best,
)
from worldsmith.checkpoint.run.frozen_weights import FILE as FROZEN
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.checkpoint.run.write_checkpoint import outdated, temporary_folder
from worldsmith.config.errors import UserError
from worldsmith.distributed.process_signals import STOP_SIGNALS, signal_at_parents_end
from worldsmith.distributed.world import World
from worldsmith.files import atomic
from worldsmith.files.checksum_manifest import MANIFEST
from worldsmith.files.locks import lease
from worldsmith.files.remote import RemoteError, join_address, remote_exists
from worldsmith.files.remote_folder import (
    download_files,
    list_remote,
    read_remote_text,
    remove_remote,
    upload_files,
    write_remote,
)

if TYPE_CHECKING:
    from worldsmith.checkpoint.run.checkpointer import Checkpointer
    from worldsmith.config.sections import JobConfig

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
UPLOADED = "uploaded_checkpoint.txt"
"""Local file that names the newest uploaded checkpoint and the address of the copy."""
PROBE = "access_test"
RECORDS = (".yaml", ".json", ".jsonl", ".txt")
"""Suffixes of the files of the run folder that are copied with each checkpoint."""
NICE = 10
"""Priority of the process that uploads, so that training steps come first."""


def store_address(settings: Checkpointer.Config, job: JobConfig, run_folder: Path) -> str | None:
    """Returns the address of the copy of a run folder; None without `checkpoint.upload_to`."""
    if settings.upload_to is None:
        return None
    return join_address(settings.upload_to.rstrip("/"), f"{job.project}/{job.group}/{run_folder.name}")


def require_access(address: str, *, deletes: bool) -> None:
    """Writes, reads and deletes a small file in the store.

    Args:
        address: Address of the copy of a run folder.
        deletes: Whether the run deletes checkpoints; if not, the permission to delete files is not required.

    Raises:
        UserError: If the bucket does not exist or the storage denies access.
    """
    try:
        write_remote(join_address(address, f"{PROBE}/file"), b"test")
        with suppress(*(() if deletes else (RemoteError,))):
            remove_remote(join_address(address, PROBE))
    except OSError as error:
        raise UserError(f"checkpoints cannot be uploaded: {error}") from None


def newest_stored(address: str) -> str | None:
    """Returns the name of the checkpoint that the pointer in the store names; if it is incomplete, an earlier one.

    Without a pointer, the newest complete one is returned; None if the store has no complete checkpoint.
    """
    files = list_remote(join_address(address, CHECKPOINTS))
    found = [Path(name).parent for name in files if Path(name).name == MANIFEST]
    complete = sorted((path for path in found if NAME.fullmatch(str(path))), key=folder_iteration)
    pointer = (read_remote_text(join_address(address, f"{CHECKPOINTS}/{POINTER}")) or "").strip()
    if NAME.fullmatch(pointer):
        complete = [path for path in complete if not is_later(path, Path(pointer))]
    return complete[-1].name if complete else None


def newer_stored(address: str, run_folder: Path) -> str | None:
    """Returns the newest checkpoint in the store if all checkpoints in the run folder are of earlier steps."""
    stored, local = newest_stored(address), checkpoint_folders(run_folder / CHECKPOINTS)
    return stored if stored is not None and (not local or is_later(Path(stored), local[0])) else None


def is_partial_stored(address: str, name: str) -> bool:
    """Returns whether a checkpoint in the store has no frozen weights, so that a resume also needs the base weights."""
    return remote_exists(join_address(address, f"{CHECKPOINTS}/{name}/{FROZEN}"))


def is_uploaded(checkpoint: Path, address: str) -> bool:
    """Returns whether a checkpoint is the one that was uploaded last to `address`, as recorded in its run folder."""
    record = checkpoint.parent / UPLOADED
    return record.is_file() and record.read_text(encoding="utf-8").split() == [checkpoint.name, address]


def download_checkpoint(address: str, name: str, run_folder: Path) -> int:
    """Downloads a checkpoint, the best checkpoint and the records of a run; returns their size in bytes.

    Each checkpoint is published by an atomic rename, and the pointer is written last.

    Args:
        address: Address of the copy of the run folder.
        name: Name of the checkpoint.
        run_folder: Existing run folder.

    Raises:
        UserError: If the disk has not enough space.
        OSError: If a file cannot be read or written.
    """
    folder, size = run_folder / CHECKPOINTS, 0
    best = (read_remote_text(join_address(address, f"{CHECKPOINTS}/{BEST_POINTER}")) or "").strip()
    for wanted in dict.fromkeys([best, name]):
        source, target = join_address(address, f"{CHECKPOINTS}/{wanted}"), folder / wanted
        manifest = read_remote_text(join_address(source, MANIFEST)) if NAME.fullmatch(wanted) else None
        if manifest is None or (target / MANIFEST).exists():
            continue
        files = json.loads(manifest)["files"]
        needed, free = sum(entry[0] for entry in files.values()), shutil.disk_usage(folder).free
        if needed > free:
            raise UserError(
                f"{source} needs {needed / 2**20:.1f} MiB, but the disk of {folder} has {free / 2**20:.1f} MiB free. "
                "Free disk space, or choose another output root"
            )
        aside = temporary_folder(target)
        download_files(source, aside, files)
        (aside / MANIFEST).write_text(manifest, encoding="utf-8")
        atomic.publish_folder(aside, target)
        size += needed
        if wanted == best:
            atomic.write_text(folder / BEST_POINTER, f"{best}\n")
    records = {file: [info["size"]] for file, info in list_remote(address, recursive=False).items()}
    download_files(address, run_folder, {file: known for file, known in records.items() if file.endswith(RECORDS)})
    atomic.write_text(folder / UPLOADED, f"{name} {address}\n")
    atomic.write_text(folder / POINTER, f"{name}\n")
    return size


class Uploads:
    """Uploads the checkpoints of a run one after the other in a process with low priority, and downloads the newest.

    Only rank 0 uses the store, since all ranks see one run folder. Without `checkpoint.upload_to` no method has an
    effect.

    Args:
        settings: Checkpoint settings.
        address: Address of the copy of the run folder, see `store_address`; None: no uploads.
        run_folder: Run folder.
        world: Ranks of the run.
    """

    def __init__(self, settings: Checkpointer.Config, address: str | None, run_folder: Path, world: World) -> None:
        self.settings, self.address, self.run_folder, self.world = settings, address, run_folder, world
        self.failed = 0
        """Failed uploads since this process started."""
        self.downloaded = ""
        """Description of the checkpoint that was downloaded at the start; "": none."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._last: Future[str | None] | None = None
        self._unsent: list[str] = []

    def download(self) -> bool:
        """Downloads the newest checkpoint if the run folder has only earlier ones; returns whether it did. Collective.

        Raises UserError on all ranks if that fails.
        """
        problem = None
        if self.address is not None and self.world.is_main:
            try:
                if (name := newer_stored(self.address, self.run_folder)) is not None:
                    logger.info("downloading %s of %s", name, self.address)
                    start = time.monotonic()
                    size = download_checkpoint(self.address, name, self.run_folder)
                    seconds = time.monotonic() - start
                    self.downloaded = f"{name} downloaded, {size / 2**20:.1f} MiB in {seconds:.1f} s"
            except (UserError, OSError, ValueError, KeyError) as error:
                problem = f"the checkpoint in {self.address} cannot be downloaded: {error}"
        problem, self.downloaded = self.world.broadcast((problem, self.downloaded))
        if problem is not None:
            raise UserError(problem)
        return bool(self.downloaded)

    def start_lines(self) -> list[str]:
        """Returns the line on the store that a run prints at its start; empty without uploads."""
        what = f"; {self.downloaded}" if self.downloaded else ""
        return [] if self.address is None else [f"store        uploads checkpoints to {self.address}{what}"]

    def offer(self, checkpoint: Path | None, *, retire: bool = True) -> None:
        """Uploads a checkpoint in the background, after those offered before; None and the last upload are ignored.

        Args:
            checkpoint: Folder of a complete checkpoint. If it is removed before its turn, it is skipped.
            retire: Whether old checkpoints in the store are removed as in the run folder.
        """
        if self.address is None or not self.world.is_main or checkpoint is None:
            return
        if not is_uploaded(checkpoint, self.address):
            self._last = self._pool.submit(self._upload, checkpoint.name, retire)

    def finish(self) -> None:
        """Waits for the uploads. Raises SaveError on all ranks if the last one failed. Collective."""
        if self.address is None:
            return
        if self._last is not None and not self._last.done():
            logger.info("waiting for the upload of checkpoints to %s", self.address)
        problem = self.world.broadcast(None if self._last is None else self._last.result())
        if problem is not None:
            raise SaveError(
                f"the last checkpoint is in {self.run_folder / CHECKPOINTS}, but could not be uploaded: {problem}. The "
                "same command uploads it"
            )

    def cancel(self) -> None:
        """Gives up the uploads that have not started; the next start of the run uploads its newest checkpoint."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _upload(self, name: str, retire: bool) -> str | None:
        """Uploads a checkpoint, and those of failed uploads, in another process; returns the problem, if any."""
        names = [name, *(other for other in self._unsent if other != name)]
        keep = self.settings.keep_latest_k if retire else None
        job = Job(str(self.address), str(self.run_folder), names, keep, self.settings.keep_every, os.getpid())
        start = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__, json.dumps(asdict(job))],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True,
            )  # fmt: skip
            problem = None if done.returncode == 0 else (done.stdout.strip() or done.stderr.strip()).split("\n")[-1]
        except OSError as error:
            problem = str(error)
        if problem is None:
            self._unsent = []
            logger.info("uploaded %s to %s: %s in %.1f s", name, self.address, done.stdout, time.monotonic() - start)
            return None
        self.failed, self._unsent = self.failed + 1, names
        problem = problem or f"the process that uploads ended with exit code {done.returncode}"
        logger.warning(
            "UPLOAD FAILED (%d so far): %s to %s: %s. The training continues; the upload is repeated with the next "
            "checkpoint",
            self.failed, name, self.address, problem,
        )  # fmt: skip
        return problem


@dataclass(frozen=True, slots=True)
class Job:
    """Checkpoints to upload, as an argument of the process that uploads them."""

    address: str
    folder: str
    """Run folder."""
    names: list[str]
    """Names of the checkpoints; the first one is the newest."""
    keep_latest_k: int | None
    keep_every: int | None
    parent: int
    """ID of the training process."""


def run_job(job: Job) -> str:
    """Uploads the checkpoints of a job, sets the pointers and removes old checkpoints; returns the size as text.

    A checkpoint that the run has removed in the meantime is skipped.
    """
    folder, remote, size = Path(job.folder) / CHECKPOINTS, join_address(job.address, CHECKPOINTS), 0
    newest, names = job.names[0], [name for name in job.names if lease(folder / name / MANIFEST)]
    for name in names:
        size += upload_checkpoint(folder / name, job.address)
        if name == newest:
            set_pointers(folder / name, remote)
            atomic.write_text(folder / UPLOADED, f"{name} {job.address}\n")
    if newest not in names:
        return "it was removed before its turn"
    found = {Path(file).parts[0] for file in list_remote(remote)}
    stored = sorted((Path(name) for name in found if NAME.fullmatch(name)), key=folder_iteration, reverse=True)
    best = (read_remote_text(join_address(remote, BEST_POINTER)) or "").strip()
    for path in outdated(stored, Path(newest), Path(best), job.keep_latest_k, job.keep_every):
        remove_remote(join_address(remote, path.name), [MANIFEST])
    return f"{size / 2**20:.1f} MiB"


def upload_checkpoint(checkpoint: Path, address: str) -> int:
    """Uploads a checkpoint with the records of its run, its manifest last; returns the size of its files in bytes.

    A checkpoint that is already stored is not uploaded again.

    Args:
        checkpoint: Folder of the checkpoint.
        address: Address of the copy of the run folder.
    """
    target, manifest = join_address(address, f"{CHECKPOINTS}/{checkpoint.name}"), (checkpoint / MANIFEST).read_bytes()
    stored, size = read_remote_text(join_address(target, MANIFEST)), 0
    if stored is not None and stored.encode() != manifest:  # the run was resumed from an earlier step
        remove_remote(target, [MANIFEST])
    if stored is None or stored.encode() != manifest:
        files = json.loads(manifest)["files"]
        size = upload_files(checkpoint, files, target, files)
    with tempfile.TemporaryDirectory() as copy:  # the run appends to its records during the upload
        records = [path for path in checkpoint.parents[1].iterdir() if path.suffix in RECORDS and path.is_file()]
        for path in records:
            shutil.copyfile(path, Path(copy, path.name))
        upload_files(Path(copy), [path.name for path in records], address)
    write_remote(join_address(target, MANIFEST), manifest)
    return size


def set_pointers(checkpoint: Path, remote: str) -> None:
    """Names a complete checkpoint in the store as the newest, after the best one, if that is stored, too."""
    best = read_best(checkpoint.parent)
    if best is not None and remote_exists(join_address(remote, f"{best.name}/{MANIFEST}")):
        write_remote(join_address(remote, BEST_POINTER), f"{best.name}\n".encode())
    write_remote(join_address(remote, POINTER), f"{checkpoint.name}\n".encode())


def main(text: str) -> int:
    """Uploads the checkpoints of a job in JSON format; prints the size or the problem, and returns the exit code."""
    job = Job(**json.loads(text))
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # only the training process handles them: it waits for this process
    signal_at_parents_end(signal.SIGKILL, job.parent)
    os.nice(NICE)
    try:
        print(run_job(job))
    except OSError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
