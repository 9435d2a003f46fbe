"""`worldsmith encode`: fills the latent cache of a run before the run starts.

Every sample is encoded once, with bitwise the same result as in the run. Several processes of this or another command
can fill the same cache.

Exit codes: 0 done, 1 a process was killed, 2 a mistake of the user.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.actions.processes import run_in_processes
from worldsmith.actions.run_action import RunAction
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World, launched_as, take_device
from worldsmith.files.write_checks import require_writable
from worldsmith.monitor.short_text import format_duration
from worldsmith.tasks.registry import task_of

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.tasks.task import SampleEncoder


@dataclass(slots=True)
class Encoded:
    """Numbers of samples that a process encoded, that were already in the latent cache, and that were skipped."""

    encoded: int = 0
    found: int = 0
    """Number of samples that were already cached, or that another process encoded meanwhile."""
    left_out: int = 0


class Encode(RunAction):
    """Encodes the clips of a run into dataloader_train.latent_cache, so that training only reads latents.

    The same command continues after a stop; `worldsmith launch … encode …` shares the work among its processes.
    """

    class Config(RunAction.Config):
        processes: Count = 1
        """Number of processes on this machine that share the work."""
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
        show, total, last = make_progress_reporter(f"{here}encoding"), self.total(rank, size), 0

        def shown(done: int) -> None:
            nonlocal last
            if rank == 0 and done > last:
                show(done, total)
            last = done

        if count > 1:
            shares = run_in_processes(self.encode_share, count, shown)
        else:
            shares = [self.encode_share(rank, size, shown, local_rank=local_rank)]
        done = Encoded(*(sum(column) for column in zip(*(asdict(share).values() for share in shares))))
        folders = ", ".join(dict.fromkeys(str(each.require_cache()) for each in self.encoders(World()).values()))
        summary = (
            f"{here}{done.encoded} samples encoded, {done.found} already cached, {done.left_out} skipped; "
            f"{format_duration(time.monotonic() - start)}; cache: {folders}"
        )
        return Result([summary], {**asdict(done), "processes": size * count, "cache": folders})

    def check(self) -> None:
        """Raises UserError if the run has no latent cache, or if the folder of the latent cache is not writable."""
        for encoder in self.encoders(World()).values():
            require_writable(encoder.require_cache(), what="the latent cache ")

    def total(self, rank: int = 0, size: int = 1) -> int:
        """Returns the number of samples, over all splits and epochs, that process `rank` of `size` encodes."""
        loaders = [encoder.task.loader(dry=True) for encoder in self.encoders(World()).values()]
        return sum(len(range(rank, self.config.passes * len(loader.dataset), size)) for loader in loaders)

    def encoders(self, world: World) -> dict[str, SampleEncoder]:
        """Returns a process's sample encoders by split: "train", and "val" if the run validates with a latent cache."""
        tree = self.tree
        model: Model = tree.model.config.build(device="meta")
        model.device = device_of(world)  # the encoder goes there; the network stays without memory
        splits = ["train", *["val"] * bool(tree.trainer.run_validation and tree.dataloader_val)]
        make = task_of(tree.model.name)
        found = {
            split: make(
                model=model,
                objective=tree.objective,
                data=getattr(tree, f"dataloader_{split}"),
                world=world,
                split="val" if split == "val" else "train",
            ).encoder
            for split in splits
        }
        for encoder in found.values():
            encoder.keep_all_samples()
        return {name: each for name, each in found.items() if name == "train" or each.task.data.latent_cache}

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
        place = rank if local_rank is None else local_rank
        done, before = Encoded(), 0
        world = World(rank=rank, size=size, local_rank=place, device=take_device(place))
        for encoder in self.encoders(world).values():
            loader, count = encoder.task.loader(), 0
            encoder.defer_captions()
            share = range(rank, self.config.passes * len(loader.dataset), size)
            for sample in loader.first_samples(self.config.passes):
                if encoder.encode(sample):
                    done.encoded += 1
                else:
                    done.found += 1
                count += 1
                shown(before + share.index(sample.position) + 1)
                require_written(encoder)
            encoder.encode_captions()
            require_written(encoder)
            done.left_out += len(share) - count
            before += len(share)
            shown(before)
        return done


def require_written(encoder: SampleEncoder) -> None:
    """Raises UserError if the encoder could not write some samples to the latent cache."""
    if lost := encoder.task.counts().get("cache_unwritten"):
        raise UserError(f"{lost} encoded samples cannot be written to {encoder.require_cache()}: free disk space")


def device_of(world: World) -> Any:
    """Returns the torch device of a rank."""
    import torch

    return torch.device(world.device)
