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
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.run import find_checkpoint as local
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.checkpoint.run.write_checkpoint import outdated, temporary_folder
from worldsmith.checkpoint.sources.remote_model import CHECKPOINTS, RECORDS
from worldsmith.config.errors import UserError
from worldsmith.distributed.process_signals import STOP_SIGNALS, signal_at_parents_end
from worldsmith.distributed.world import World
from worldsmith.files import atomic, remote_folder
from worldsmith.files.checksum_manifest import MANIFEST, find_damage
from worldsmith.files.locks import lease
from worldsmith.files.remote import SECRETS, RemoteError, join_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from worldsmith.checkpoint.run.checkpointer import Checkpointer
    from worldsmith.config.sections import JobConfig

logger = logging.getLogger(__name__)

UPLOADED = "uploaded_checkpoint.txt"
"""Local file with the name and address of the newest uploaded checkpoint, written after the upload of the best one."""
PROBE = "access_test"
NICE = 10
"""Added to the nice value of the process that uploads, so that training steps come first."""


def store_address(settings: Checkpointer.Config, job: JobConfig, run_folder: Path) -> str | None:
    """Returns the address of the copy of a run folder; None without `checkpoint.upload_to`."""
    names = "/".join(name for name in (job.project, job.group, run_folder.name) if name)
    return None if settings.upload_to is None else join_address(settings.upload_to.rstrip("/"), names)


def require_access(address: str, *, deletes: bool) -> None:
    """Writes, reads and deletes a small file in the store.

    Args:
        address: Address of a folder.
        deletes: Whether old files will be deleted; if not, the permission to delete files is not required.

    Raises:
        UserError: If the bucket does not exist or the storage denies access.
    """
    try:
        remote_folder.write_remote(join_address(address, PROBE), b"test")
        with suppress(*(() if deletes else (RemoteError,))):
            remote_folder.remove_remote(address, [PROBE])
    except OSError as error:
        raise UserError(f"files cannot be uploaded: {error}") from None


def read_name(address: str, file: str) -> str:
    """Returns the name of a checkpoint in a pointer of the copy of a run folder; "" if there is no valid one."""
    name = (remote_folder.read_remote_text(join_address(address, f"{CHECKPOINTS}/{file}")) or "").strip()
    return name if local.NAME.fullmatch(name) else ""


def newest_stored(address: str) -> str | None:
    """Returns the name of the checkpoint that the pointer in the store names; if it is incomplete, an earlier one.

    Without a pointer, the newest complete one is returned; None if the store has no complete checkpoint.
    """
    files = remote_folder.list_remote(join_address(address, CHECKPOINTS))
    found = [Path(name).parent for name in files if Path(name).name == MANIFEST]
    complete = sorted((path for path in found if local.NAME.fullmatch(str(path))), key=local.folder_iteration)
    if named := read_name(address, local.POINTER):
        complete = [path for path in complete if not local.is_later(path, Path(named))]
    return complete[-1].name if complete else None


def newer_stored(address: str, run_folder: Path, latest: Path | None) -> str | None:
    """Returns the newest checkpoint in the store if all intact checkpoints in the run folder are of earlier steps.

    Args:
        address: Address of the copy of the run folder.
        run_folder: Run folder.
        latest: Checkpoint in the run folder from which the run would resume, which is not verified again; None: no
            checkpoint there is intact.
    """
    stored = newest_stored(address)
    if stored is None or (latest is not None and not local.is_later(Path(stored), latest)):
        return None
    # An intact one of a later step than `latest` exists if the user has set the pointer to an earlier checkpoint.
    present = [path for path in local.checkpoint_folders(run_folder / CHECKPOINTS) if path != latest]
    is_present = any(not local.is_later(Path(stored), path) and find_damage(path) is None for path in present)
    return None if is_present else stored


def is_uploaded(checkpoint: Path, address: str) -> bool:
    """Returns whether a checkpoint is the one that was uploaded last to `address`, as recorded in its run folder."""
    record = checkpoint.parent / UPLOADED
    return record.is_file() and record.read_text(encoding="utf-8").split() == [checkpoint.name, address]


def download_checkpoint(address: str, name: str, run_folder: Path) -> None:
    """Downloads a checkpoint, the best checkpoint and the records of a run.

    Each checkpoint is published by an atomic rename, and the pointer is written last. A local folder of the same name
    is kept only if it is intact and equal.

    Args:
        address: Address of the copy of the run folder.
        name: Name of the checkpoint.
        run_folder: Existing run folder.

    Raises:
        OSError: If a file cannot be read or written.
    """
    folder, best = run_folder / CHECKPOINTS, read_name(address, local.BEST_POINTER)
    for wanted in dict.fromkeys([best, name] if best else [name]):
        source, target = join_address(address, f"{CHECKPOINTS}/{wanted}"), folder / wanted
        manifest = remote_folder.read_remote_text(join_address(source, MANIFEST))
        if manifest is None:
            continue
        if find_damage(target) is not None or (target / MANIFEST).read_text(encoding="utf-8") != manifest:
            aside = temporary_folder(target)
            remote_folder.download_files(source, aside, json.loads(manifest)["files"])
            (aside / MANIFEST).write_text(manifest, encoding="utf-8")
            atomic.publish_folder(aside, target)
        if wanted == best:
            atomic.write_text(folder / local.BEST_POINTER, f"{best}\n")
    found = remote_folder.list_remote(address, recursive=False).items()
    records = {file: [info["size"]] for file, info in found if file.endswith(RECORDS)}
    remote_folder.download_files(address, run_folder, records)
    atomic.write_text(folder / UPLOADED, f"{name} {address}\n")
    atomic.write_text(folder / local.POINTER, f"{name}\n")


class Uploads:
    """Uploads the checkpoints of a run one after the other in a process with low priority, and downloads the newest.

    Only rank 0 uses the store, since all ranks see one run folder. Without `checkpoint.upload_to` no method has an
    effect.

    Args:
        settings: Checkpoint settings.
        job: Job section of the config.
        run_folder: Run folder.
        world: Ranks of the run.
    """

    def __init__(self, settings: Checkpointer.Config, job: JobConfig, run_folder: Path, world: World) -> None:
        self.settings, self.run_folder, self.world = settings, run_folder, world
        self.address = store_address(settings, job, run_folder)
        self.public_address = SECRETS.sub("", self.address or "")
        """Address without credentials, for messages."""
        self.failed = 0
        """Failed uploads since this process started."""
        self.downloaded = ""
        """Description of the checkpoint that was downloaded at the start; "": no download."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._last: Future[str] | None = None
        self._unsent: list[str] = []

    def download(self, find_latest: Callable[[], Path | None]) -> Path | None:
        """Downloads the newest checkpoint if the run folder has only earlier or damaged ones. Collective.

        Args:
            find_latest: Returns the latest intact checkpoint in the run folder; raises UserError if none is intact.

        Returns:
            Result of `find_latest`, after the download.

        Raises:
            UserError: If the download fails, or if the local checkpoints are damaged and the store has no newer one.
        """
        if self.address is None:
            return find_latest()
        problem, start, latest, damage = "", time.monotonic(), None, None
        try:
            latest = find_latest()
        except UserError as error:
            damage = error
        if self.world.is_main:
            try:
                if (name := newer_stored(self.address, self.run_folder, latest)) is not None:
                    logger.info("downloading %s from %s", name, self.public_address)
                    download_checkpoint(self.address, name, self.run_folder)
                    self.downloaded = f"; {name} was downloaded in {time.monotonic() - start:.1f} s"
            except (OSError, ValueError) as error:
                problem = f"the checkpoint in {self.address} cannot be downloaded: {error}"
        problem, self.downloaded = self.world.broadcast((problem, self.downloaded))
        if problem:
            raise UserError(problem)
        if not self.downloaded:
            if damage is not None:
                raise damage
            return latest
        if damage is not None and self.world.is_main:
            logger.warning("%s", damage)
        return find_latest()

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
            logger.info("waiting for the upload of checkpoints to %s", self.public_address)
        last = "" if self._last is None else self._last.exception() or self._last.result()
        problem = self.world.broadcast(str(last))
        if problem:
            raise SaveError(f"UPLOAD FAILED: {problem}. The checkpoint is in {self.run_folder}; the same command "
                            "uploads it")  # fmt: skip

    def cancel(self) -> None:
        """Gives up the uploads that have not started; the next start of the run uploads its newest checkpoint."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _upload(self, name: str, retire: bool) -> str:
        """Uploads a checkpoint, and those of failed uploads, in another process; returns the problem, "" if none."""
        names, start = [name, *(other for other in self._unsent if other != name)], time.monotonic()
        keep, every = self.settings.keep_latest_k if retire else None, self.settings.keep_every
        words = [str(self.run_folder), str(keep or ""), str(every or ""), str(os.getpid()), *names]
        done = subprocess.run(  # the address may contain credentials, and all users of the machine see the arguments
            [sys.executable, "-m", __name__, *words],
            input=self.address, capture_output=True, text=True, start_new_session=True,
        )  # fmt: skip
        if done.returncode == 0:
            self._unsent = []
            if is_uploaded(self.run_folder / CHECKPOINTS / name, str(self.address)):  # else it was skipped
                logger.info("uploaded %s to %s in %.1f s", name, self.public_address, time.monotonic() - start)
            return ""
        self.failed, self._unsent = self.failed + 1, names
        said = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").split("\n")[-1]
        problem = SECRETS.sub("", f"{name} to {self.address}: {said}")
        logger.warning("UPLOAD FAILED (%d so far): %s. It is repeated with the next checkpoint", self.failed, problem)
        return problem


def upload_checkpoints(address: str, run_folder: Path, names: list[str], keep: int | None, every: int | None) -> None:
    """Uploads checkpoints and the best one, sets the pointers and removes old checkpoints from the store.

    A checkpoint that the run has removed in the meantime is skipped.

    Args:
        address: Address of the copy of the run folder.
        run_folder: Run folder.
        names: Names of the checkpoints; the first one is the newest.
        keep: Value of `checkpoint.keep_latest_k`.
        every: Value of `checkpoint.keep_every`.
    """
    folder, remote = run_folder / CHECKPOINTS, join_address(address, CHECKPOINTS)
    newest, best = names[0], local.read_best(folder)
    wanted = dict.fromkeys([*names, best.name] if best else names)  # an earlier process may not have uploaded the best
    names = [name for name in wanted if lease(folder / name / MANIFEST)]
    for name in names:
        upload_checkpoint(folder / name, address)
        if newest in names:
            set_pointers(folder / newest, remote)
    if newest not in names:
        return
    atomic.write_text(folder / UPLOADED, f"{newest} {address}\n")
    found = {Path(file).parts[0] for file in remote_folder.list_remote(remote)}
    stored = sorted((Path(name) for name in found if local.NAME.fullmatch(name)), key=local.folder_iteration)
    kept = Path(read_name(address, local.BEST_POINTER))
    for path in outdated(stored[::-1], Path(newest), kept, keep, every):
        remove_stored(join_address(remote, path.name))


def upload_checkpoint(checkpoint: Path, address: str) -> None:
    """Uploads a checkpoint with the records of its run, its manifest last; a stored one is not uploaded again.

    Args:
        checkpoint: Folder of the checkpoint.
        address: Address of the copy of the run folder.
    """
    target, manifest = join_address(address, f"{CHECKPOINTS}/{checkpoint.name}"), (checkpoint / MANIFEST).read_text()
    stored = remote_folder.read_remote_text(join_address(target, MANIFEST))
    if stored == manifest:
        return
    if stored is not None:  # the run was resumed from an earlier step
        remove_stored(target)
    files = json.loads(manifest)["files"]
    remote_folder.upload_files(checkpoint, files, target, files)
    with tempfile.TemporaryDirectory() as copy:  # the run appends to its records during the upload
        records = [path for path in checkpoint.parents[1].iterdir() if path.suffix in RECORDS and path.is_file()]
        for path in records:
            shutil.copyfile(path, Path(copy, path.name))
        remote_folder.upload_files(Path(copy), [path.name for path in records], address)
    remote_folder.write_remote(join_address(target, MANIFEST), manifest.encode())


def remove_stored(checkpoint: str) -> None:
    """Deletes a checkpoint in the store, its manifest first, so that the checkpoint is never taken as complete."""
    remote_folder.remove_remote(checkpoint, [MANIFEST])
    remote_folder.remove_remote(checkpoint, remote_folder.list_remote(checkpoint))


def set_pointers(checkpoint: Path, remote: str) -> None:
    """Names a complete checkpoint in the store as the newest, after the best one, if that is stored, too.

    The best one in the store stays if it is not known in the run folder. An empty local pointer clears the stored one.
    """
    best, pointer = local.read_best(checkpoint.parent), checkpoint.parent / local.BEST_POINTER
    is_stored = best and remote_folder.read_remote_text(join_address(remote, f"{best.name}/{MANIFEST}"))
    if is_stored or (pointer.is_file() and not pointer.read_bytes().strip()):
        name = best.name if best else ""
        remote_folder.write_remote(join_address(remote, local.BEST_POINTER), f"{name}\n".encode())
    remote_folder.write_remote(join_address(remote, local.POINTER), f"{checkpoint.name}\n".encode())


def main(address: str, run_folder: str, keep: str, every: str, parent: str, *names: str) -> int:
    """Uploads checkpoints in a process of its own; prints the problem and returns the exit code."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # only the training process handles them: it waits for this process
    signal_at_parents_end(signal.SIGKILL, int(parent))
    os.nice(NICE)
    try:
        upload_checkpoints(address, Path(run_folder), list(names), int(keep or 0) or None, int(every or 0) or None)
    except OSError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin.read(), *sys.argv[1:]))
