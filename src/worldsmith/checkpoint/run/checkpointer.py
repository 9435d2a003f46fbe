"""Checkpoints of a run: `iter_<9 digits>/{model,optim,scheduler,trainer,dataloader}` and `latest_checkpoint.txt`.

The first four are torch.distributed.checkpoint folders that contain tensors only. A checkpoint is written into a hidden
folder, synced to disk and renamed when it is complete; then the pointer is updated. A manifest with checksums
identifies damaged checkpoints. See docs/checkpoints.md.
"""

from __future__ import annotations

import errno
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.checkpoint.run.find_checkpoint import find_latest, folder_name, gone_back
from worldsmith.checkpoint.run.save_error import SaveError, describe_causes, is_disk_full, is_expected
from worldsmith.checkpoint.run.staging_buffer import StagedLayout, Stager, allocate_private
from worldsmith.checkpoint.run.write_checkpoint import Save, WriterProcess, tidy_up, write_checkpoint
from worldsmith.config import Configurable, wrong
from worldsmith.config.declare.ranges import Count
from worldsmith.distributed.coordination_group import PeerError, SideGroup
from worldsmith.distributed.world import World
from worldsmith.files.remote import READ_ONLY, in_store, is_remote

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from torch import Tensor
    from torch.distributed.checkpoint.planner import SavePlanner


logger = logging.getLogger(__name__)

BYTES_PER_TENSOR = 2048
"""Estimated overhead of one tensor on disk, in bytes."""


class Checkpointer(Configurable):
    """Saves and restores the checkpoints of a run in one folder. All ranks must call every method together.

    - Only one save is written at a time. A background save is written from a copy of the tensors while training
      continues; `is_saving` reports its state and `wait_for_background_save` waits for it.
    - A failed save raises SaveError, leaves no file, and does not change complete checkpoints.
    """

    class Config(Configurable.Config):
        load_path: str | None = None
        """Initial weights of a new run: a run folder, a checkpoints/iter_… folder, a model folder, a Hub name, or the
        address of such a folder in an object store. None: as `init` states."""
        load_adapter: str | None = None
        """Initial LoRA adapters of a new run: an adapter folder in PEFT's format, or a LoRA file of diffusers, ComfyUI,
        kohya's trainers or ai-toolkit. None: those in load_path, or newly initialized ones."""
        init: Literal["pretrained", "scratch"] = "pretrained"
        """Initial weights of a new run without load_path: those that the model config names ("pretrained"), or random
        weights ("scratch")."""
        load_training_state: bool = False
        """Whether a new run also loads optimizer state, schedule, step count, RNG states and data loader state of
        load_path."""
        load_ema_to_reg: bool = False
        """Whether a new run starts from the EMA weights of load_path instead of its raw (non-EMA) weights."""
        keys_to_skip_loading: list[str] = field(default_factory=list)
        """Substrings of tensor names that are not loaded from load_path. Skipped EMA weights (net_ema.*) start from the
        raw weights (net.*)."""
        save_iter: Count = 100
        """Number of optimizer steps between two checkpoints; the last step is always saved."""
        async_save: bool = True
        """Whether periodic checkpoints are written in the background, from a copy in host RAM. The last save of a
        process is never in the background."""
        save_weights: Literal["all", "trained"] = "all"
        """Weights in a checkpoint: "all", or "trained" without the frozen weights, which a resumed run reads from
        load_path again."""
        keep_latest_k: Count | None = None
        """Number of newest checkpoints to keep. None: all."""
        keep_every: Count | None = None
        """Checkpoints whose step is a multiple of this number are kept, too, and never removed. None: no others."""
        keep_best: str | None = None
        """Validation metric, such as val/loss or val_ema/loss: the checkpoint with its best value is saved and kept."""
        best_mode: Literal["min", "max"] = "min"
        """Whether the smallest or the largest value of `keep_best` is the best."""
        upload_to: str | None = None
        """Folder in an object store, such as s3://bucket/runs. Each complete checkpoint is uploaded in the background,
        to project/group/name in it; a run whose folder has no or only earlier checkpoints resumes from there. None: no
        uploads."""
        stop_file: str = "STOP"
        """Name of a file in the run folder that makes the run save and stop, like SIGTERM. "": no such file."""

        def check(self) -> None:
            if self.load_path == "":
                raise wrong(self, "load_path", why="an empty name", remedy="set load_path, or use null for none")
            if self.load_training_state and in_store(self.load_path or ""):
                why = "of a run in an object store, only the weights are loaded"
                remedy = "copy the run folder to this machine and name the copy, or set load_training_state = false"
                raise wrong(self, "load_path", "load_training_state", why=why, remedy=remedy)
            if self.upload_to is not None and (not is_remote(self.upload_to) or self.upload_to.startswith(READ_ONLY)):
                remedy = "set the address of a folder in an object store, such as s3://bucket/runs"
                raise wrong(self, "upload_to", why="checkpoints cannot be uploaded there", remedy=remedy)
            for name, what in (("load_training_state", "training state"), ("load_ema_to_reg", "EMA weights")):
                if getattr(self, name) and self.load_path is None:
                    remedy = f"set load_path to the checkpoint with the {what} to load"
                    raise wrong(self, name, "load_path", why="without it there is no such state to load", remedy=remedy)
            if self.load_adapter == "":
                raise wrong(self, "load_adapter", why="an empty name", remedy="set a path, or use null for none")
            if self.load_adapter is not None and self.load_training_state:
                both = "load_adapter", "load_training_state"
                raise wrong(self, *both, why="the optimizer state belongs to the adapters in load_path")
            if self.load_ema_to_reg and self.load_training_state:
                both = "load_ema_to_reg", "load_training_state"
                raise wrong(self, *both, why="the optimizer state belongs to the raw weights")
            if self.keep_every is not None and self.keep_latest_k is None:
                raise wrong(self, "keep_every", "keep_latest_k", why="all checkpoints are kept anyway")
            if self.keep_best is not None and not self.keep_best.startswith(("val/", "val_ema/")):
                raise wrong(self, "keep_best", allowed="set a validation metric, such as val/loss or val_ema/loss")
            if self.stop_file != Path(self.stop_file).name:
                raise wrong(self, "stop_file", allowed="a plain file name, or empty")

    def __init__(
        self, config: Config, *, folder: Path, world: World | None = None, process: WriterProcess | None = None
    ) -> None:
        """Creates the folder of the checkpoints and removes the remains of interrupted saves in it.

        Args:
            config: Checkpoint settings.
            folder: Folder of the checkpoints.
            world: Ranks of the run; None: one process.
            process: Process that writes background saves, from `start_writer`; None: it is started here if the config
                enables background saves.
        """
        self.config = config
        self.folder = folder
        self.world = world or World()
        self._saving: Future[Path] | None = None
        # Connected now: if the launcher dies later, the ranks could not connect any more, but must still save.
        self._peers = SideGroup(self.world.rank, self.world.size)
        self._process = process or start_writer(config)
        if self.world.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            tidy_up(folder)
        self.world.barrier()

    def save(
        self,
        iteration: int,
        parts: Mapping[str, Mapping[str, Any]],
        *,
        dataloader: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
        background: bool = False,
        retire: bool = True,
        is_best: bool = False,
    ) -> Path:
        """Writes the checkpoint of `iteration`; waits for the previous save first. Collective.

        Args:
            iteration: Number of completed optimizer steps.
            parts: Tensors of "model", "optim", "scheduler" and "trainer" by name, sharded or not.
            dataloader: Data loader state of this rank as JSON data; None: not saved.
            texts: File name -> content of small text files in the checkpoint, such as config.yaml.
            background: Whether the tensors are only copied here and written in the background;
                `wait_for_background_save` then returns the folder or raises the error.
            retire: Whether old checkpoints are removed as the config states (`keep_latest_k`, `keep_every`).
            is_best: Whether the pointer to the best checkpoint is updated when the checkpoint is complete.

        Returns:
            Folder of the checkpoint, which does not exist yet if it is written in the background.

        Raises:
            SaveError: If this save or the previous background save failed; raised on all ranks.
        """
        self.wait_for_background_save()
        target, needed = self.folder / folder_name(iteration), state_bytes(parts)
        position, settings = None if dataloader is None else json.dumps(dataloader), self.config
        keep = settings.keep_latest_k if retire else None
        save = Save(target, texts or {}, position, self.world.data_rank, keep, settings.keep_every, is_best)
        staged: list[tuple[StagedLayout, Tensor]] = []  # not the result of `run`, which is sent to all ranks
        with self._all_or_nothing(target, needed):
            self._peers.run_on_main(partial(require_space, self.folder, needed))
            if background:
                self._peers.run(lambda: staged.append(self._stager.stage(parts)))
            else:
                self._write(save, lambda: {part: dcp.planner_of(state) for part, state in parts.items()}, staged=False)
        if background:
            self._saving = self._thread.submit(self._write_staged, save, needed, *staged[0])
        return target

    @property
    def is_saving(self) -> bool:
        """Whether this rank is still writing a background save."""
        return self._saving is not None and not self._saving.done()

    @property
    def has_saved(self) -> bool:
        """Whether a background save has ended on this rank, also with an error, and was not waited for yet."""
        return self._saving is not None and self._saving.done()

    def wait_for_background_save(self) -> Path | None:
        """Waits for the background save to end. Collective.

        Returns:
            Folder of the written checkpoint; None if no background save was started since the last call.

        Raises:
            SaveError: If the save failed.
        """
        if self._saving is None:
            return None
        saving, self._saving = self._saving, None
        return saving.result()

    def latest(self) -> Path | None:
        """Returns the latest intact checkpoint folder, to resume from; None if no checkpoint exists. Collective.

        Logs a warning if the next save will remove checkpoints of later steps.
        """
        found = find_latest(self.folder, self.world, own=True)
        lost = gone_back(found, self.config.keep_latest_k) if found and self.world.is_main else None
        if lost is not None:
            logger.warning("%s", lost)
        return found

    def load_part(self, checkpoint: Path, part: str, state: dict[str, Any]) -> None:
        """Reads a part of a checkpoint into the tensors of `state`, in place. Collective.

        Args:
            checkpoint: Folder of the checkpoint.
            part: Subfolder: "model", "optim", "scheduler" or "trainer".
            state: Tensor name -> tensor to fill; a DTensor gets this rank's shard.
        """
        from worldsmith.checkpoint.dcp.tensor_reader import load_part

        load_part(checkpoint / part, state, no_dist=self.world.size == 1)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(1, thread_name_prefix="checkpoint")

    @cached_property
    def _stager(self) -> Stager:
        allocate = allocate_private if self._process is None else self._process.allocate
        return Stager(allocate, on_cuda=self.world.device.startswith("cuda"))

    def _write_staged(self, save: Save, needed: int, layout: StagedLayout, buffer: Tensor) -> Path:
        """Writes a background save and returns its folder; in the writer process if it is alive, else in this thread.

        Args:
            save: Target and metadata.
            needed: Estimated bytes on disk, for messages.
            layout: Layout of the tensors in `buffer`.
            buffer: Copy of the tensors in host RAM.
        """
        with self._all_or_nothing(save.target, needed):
            if self._process is not None and self._process.is_alive:
                error = self._process.write(save, layout, self._peers)
                self._peers.run(partial(fail_with, error))
            else:
                self._write(save, lambda: layout.planners(buffer), staged=True)
        return save.target

    def _write(self, save: Save, planners: Callable[[], Mapping[str, SavePlanner]], *, staged: bool) -> None:
        """Writes a checkpoint in this process. Collective; an error on one rank is raised on all ranks.

        Args:
            save: Target and metadata.
            planners: Returns the save planner of each part: part name -> planner.
            staged: Whether the tensors are in host RAM and CUDA must not be used.
        """
        error = None
        try:
            write_checkpoint(save, planners(), self._peers, staged=staged)
        except PeerError:
            raise
        except Exception as own:
            error = own
        self._peers.run(partial(fail_with, error))

    @contextmanager
    def _all_or_nothing(self, target: Path, needed: int) -> Iterator[None]:
        """Context manager: converts an error in the block to SaveError and removes the incomplete files of the save.

        The block must raise on all ranks or on none. `needed`, the estimated bytes on disk, is used in the message.
        """
        try:
            yield
        except Exception as error:
            if self.world.is_main:
                with suppress(OSError):  # only the first error is reported
                    tidy_up(self.folder)
            if not is_expected(error):
                logger.warning("an unexpected error in a save", exc_info=error)
            raise SaveError(self._complaint(target, needed, error)) from error

    def _complaint(self, target: Path, needed: int, error: BaseException) -> str:
        text = f"[E110] the checkpoint {target.name} could not be written to {self.folder}: {describe_causes(error)}."
        free = free_space(self.folder)
        if free is not None and (is_disk_full(error) or free < needed):
            fewer = "" if self.config.keep_latest_k else ", or keep fewer checkpoints with checkpoint.keep_latest_k"
            text += f" It needs {needed / 2**20:.1f} MiB, but {free / 2**20:.1f} MiB are free. Free disk space{fewer}."
        return f"{text} Earlier complete checkpoints are unchanged."


def load_positions(checkpoint: Path) -> list[dict[str, Any]]:
    """Returns the data loader states in a checkpoint as JSON data, one per data-parallel rank of the saving run."""
    files = (checkpoint / "dataloader").glob("rank_*.json")
    ordered = sorted(files, key=lambda path: int(path.stem.removeprefix("rank_")))
    return [json.loads(path.read_text(encoding="utf-8")) for path in ordered]


def start_writer(config: Checkpointer.Config) -> WriterProcess | None:
    """Starts the process that writes background saves.

    Call this function before the network, a process group or a CUDA context exists, because the process is forked and
    would inherit them.

    Returns:
        The process; None if the config disables background saves, and on systems other than Linux, where a thread
        writes them because a fork is not safe.
    """
    return WriterProcess() if config.async_save and sys.platform == "linux" else None


def state_bytes(parts: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Returns the estimated bytes on disk of a checkpoint, over all ranks.

    Args:
        parts: Part name -> tensor name -> tensor, sharded or not.
    """
    tensors = [tensor for state in parts.values() for tensor in state.values()]
    return sum(tensor.numel() * tensor.element_size() + BYTES_PER_TENSOR for tensor in tensors)


def free_space(folder: Path) -> int | None:
    """Returns the number of free bytes on the disk of `folder`; None if it cannot be determined."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def require_space(folder: Path, needed: int) -> None:
    """Raises OSError (ENOSPC) if the disk of `folder` has less than `needed` free bytes."""
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, "there is not enough space for the checkpoint")


def fail_with(error: Exception | None) -> None:
    if error is not None:
        raise error
