"""`worldsmith encode`: fills the latent cache of a run before the run starts.

Every sample is encoded once, with bitwise the same result as in the run. Several processes of this or another command
can fill the same cache, on this machine or on Ray.

Exit codes: 0 done, 1 a process was killed, 2 a mistake of the user.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.actions.pool_action import PoolAction
from worldsmith.actions.processes import FailedItem, run_in_processes
from worldsmith.actions.ray_processes import connect_ray, is_ray, map_on_ray
from worldsmith.actions.run_action import RunAction
from worldsmith.checkpoint.run.checkpoint_store import require_access
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict
from worldsmith.distributed.world import World, launched_as, take_device
from worldsmith.files.remote import is_remote
from worldsmith.files.write_checks import require_writable
from worldsmith.monitor.short_text import format_duration
from worldsmith.tasks.encode_samples import (
    Encoded,
    PositionEncoder,
    encode_samples,
    require_written,
    sample_encoders,
)
from worldsmith.tasks.task import SampleEncoder


class Encode(PoolAction, RunAction):
    """Encodes the clips of a run into dataloader_train.latent_cache, so that training only reads latents.

    The same command continues after a stop; `worldsmith launch … encode …` shares the work among its processes.
    """

    class Config(PoolAction.Config, RunAction.Config):
        passes: Count = 1
        """Number of epochs to encode, each with other random frames or windows."""

    config: Config

    def run(self) -> Result:
        """Encodes the samples. Raises UserError if the run has no latent cache, or if latents cannot be written."""
        rank, size, local_rank = launched_as()
        self.print_warnings()
        if rank:  # the first process logs the warnings
            logging.getLogger().setLevel(logging.ERROR)
        self.check()
        start, count, here = time.monotonic(), self.config.processes, f"process {rank} of {size}: " if size > 1 else ""
        if size > 1 and count > 1:
            raise UserError(f"the launch already has {size} processes, which share the work: omit --processes")
        if size > 1 and is_ray(self.config.on):
            raise UserError(f"--on {self.config.on} starts its processes itself: use it without `worldsmith launch`")
        show, total, last = make_progress_reporter(f"{here}encoding"), self.total(rank, size), 0

        def shown(done: int) -> None:
            nonlocal last
            if rank == 0 and done > last:
                show(done, total)
            last = done

        if is_ray(self.config.on):
            shares = [self.encode_on_ray(shown)]
        elif count > 1:
            shares = run_in_processes(self.encode_share, count, shown)
        else:
            shares = [self.encode_share(rank, size, shown, local_rank=local_rank)]
        done = Encoded(*(sum(column) for column in zip(*(asdict(share).values() for share in shares))))
        self.require_few_failures(done.failed, "encoded")
        folders = ", ".join(dict.fromkeys(each.require_cache() for each in self.encoders(World()).values()))
        failed = f", {done.failed} failed" if done.failed else ""
        summary = (
            f"{here}{done.encoded} samples encoded, {done.found} already cached, {done.left_out} skipped{failed}; "
            f"{format_duration(time.monotonic() - start)}; cache: {folders}"
        )
        return Result([summary], {**asdict(done), "on": self.config.on, "processes": size * count, "cache": folders})

    def check(self) -> None:
        """Raises UserError if the run has no latent cache, or if the latent cache is not writable."""
        for encoder in self.encoders(World()).values():
            if is_remote(folder := encoder.require_cache()):
                require_access(folder, deletes=False)
            else:
                require_writable(Path(folder), what="the latent cache ")

    def total(self, rank: int = 0, size: int = 1) -> int:
        """Returns the number of samples, over all splits and epochs, that process `rank` of `size` encodes."""
        loaders = [encoder.task.loader(dry=True) for encoder in self.encoders(World()).values()]
        return sum(len(range(rank, self.config.passes * len(loader.dataset), size)) for loader in loaders)

    def encoders(self, world: World) -> dict[str, SampleEncoder]:
        """Returns a process's sample encoders by split: "train", and "val" if the run validates with a latent cache."""
        return sample_encoders(self.tree, self.tree.model.config.build(device="meta"), world)

    def encode_share(
        self, rank: int, size: int, shown: Callable[[int], None], *, local_rank: int | None = None
    ) -> Encoded:
        """Encodes every `size`-th sample of each split and epoch, starting with sample `rank`; returns the counts.

        Args:
            rank: Number of the process.
            size: Number of processes that share the samples.
            shown: Called with the number of samples that this process has finished, to report progress.
            local_rank: Number of the process on this machine, which selects its GPU; None: `rank`.
        """
        import torch

        torch.set_num_threads(self.tree.trainer.cpu_threads or max(1, torch.get_num_threads() // self.config.processes))
        device = take_device(rank if local_rank is None else local_rank)
        world = World(rank=rank, size=size, device=device)
        return encode_samples(
            self.encoders(world),
            self.config.passes,
            lambda done, total: shown(done),
            max_failures=self.config.max_failures,
        )

    def encode_on_ray(self, shown: Callable[[int], None]) -> Encoded:
        """Encodes the samples of each split and epoch in processes on Ray, then their captions; returns the counts.

        Args:
            shown: Called with the number of finished samples, to report progress.

        Raises:
            DataError: If too many samples are broken, or no sample can be used.
            UserError: If more than `max_failures` samples cannot be encoded, or one caption.
        """
        import torch

        count, done, captions = self.config.processes, Encoded(), dict[tuple[str, Any], None]()
        loaders = {split: encoder.task.loader(dry=True) for split, encoder in self.encoders(World()).items()}
        places = [(split, p) for split, each in loaders.items() for p in range(self.config.passes * len(each.dataset))]
        threads = self.tree.trainer.cpu_threads or max(1, torch.get_num_threads() // count)
        process = ProcessOnRay(to_dict(self.tree, custom=True), threads)
        with connect_ray(self.config.on, count):
            found = map_on_ray(process.encode_positions, places, count, timeout=self.config.record_timeout)
            for number, each in enumerate(found, 1):
                if isinstance(each, FailedItem):
                    done.count_failure("sample {1} of dataloader_{0}".format(*each.item), each.reason)
                    self.require_few_failures(done.failed, "encoded")
                elif loaders[each.split].receive(each.made):
                    done.encoded, done.found = done.encoded + each.is_new, done.found + (not each.is_new)
                    captions |= {(each.split, caption): None for caption in each.captions}
                else:
                    done.left_out += 1
                shown(number)
            for loader in loaders.values():
                if not loader.counts["samples"] and not done.failed:
                    raise loader.unusable()
            for each in map_on_ray(process.encode_captions, list(captions), count):
                if isinstance(each, FailedItem):
                    raise UserError(f"a caption of dataloader_{each.item[0]} cannot be encoded: {each.reason}")
        return done


@dataclass(frozen=True, slots=True)
class ProcessOnRay:
    """A process on Ray that encodes samples or captions of a run."""

    run: dict[str, Any]
    """Resolved config of the run, as plain data."""
    threads: int
    """Number of threads of PyTorch on the CPU."""

    def encode_positions(self) -> PositionEncoder:
        """Returns the function that encodes the sample at (split, position), but not its captions."""
        return PositionEncoder(self.load())

    def encode_captions(self) -> Callable[[tuple[str, Any]], None]:
        """Returns a function that encodes the caption in (split, caption)."""
        return partial(encode_caption, self.load())

    def load(self) -> dict[str, SampleEncoder]:
        import torch

        torch.set_num_threads(self.threads)
        run = from_dict(self.run)
        return sample_encoders(run, run.model.config.build(device="meta"), World(device=take_device(0)))


def encode_caption(encoders: Mapping[str, SampleEncoder], item: tuple[str, Any]) -> None:
    """Encodes a caption that was skipped with its clip, `item` = (split, caption), into the cache of its split."""
    split, caption = item
    encoders[split].encode_caption(caption)
    require_written(encoders[split])
