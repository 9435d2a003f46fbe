"""What ranks of real runs hold, compute and send: `launch` runs `plan_ranks.py FOLDER OUT CASE…`.

Each rank writes OUT/<case>.<rank>.json: {"work": its `StepWork`, "allocated": …, "carried": …}, see `carry_out`. FOLDER
is that of `plan_cases.write_parts`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import socket
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from launch import fork_ranks
from plan_cases import case_batches, case_config, use_parts
from torch.distributed.fsdp import fully_shard  # noqa: F401 (imported once for all forks)
from torch.profiler import ProfilerActivity, profile

from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.world import World, stop_world
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.simulate import measure_step
from worldsmith.planning.simulation.tracked_run import TrackedRun, as_simulated, group_names
from worldsmith.training.parallel import join_world


def carry_out(case: str, world: World) -> dict[str, Any]:
    """A real run of the case on this rank, and what was seen of a step: by the tracker ("work"), by PyTorch's profiler
    (the peak of what is "allocated"), and by the system (what all ranks together "carried" over their network; None
    where they get none of their own)."""
    config = as_simulated(case_config(case))
    batches = case_batches(case, config)
    tracker, degrees = MemoryTracker(), plan_degrees(config.model.config.parallelism, world.size)
    tracker.traffic.names = group_names(degrees, world.rank, world.size)
    run = TrackedRun(config, world, tracker, batches)
    start = time.perf_counter()
    with tracker:
        run.build()
        run.model.draw_weights(0)
        run.tag_weights()
        work = measure_step(run, start=start)
    with (
        counted_network(world) as carried,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as seen,
    ):
        run.step()
    return {
        "work": work.to_json(),
        "allocated": tracker.total + largest_sum(allocations(seen)),
        "carried": sum(carried) if carried else None,
    }


@contextmanager
def counted_network(world: World) -> Iterator[list[int]]:
    """After the block the list has what the network carried meanwhile; it stays empty where others use it too."""
    found: list[int] = []
    world.barrier()
    before = received()
    world.barrier()
    yield found
    world.barrier()
    if PRIVATE:
        found.append(received() - before)
    world.barrier()


def received() -> int:
    """Bytes that the interface of this machine with itself has passed on."""
    return int(Path("/proc/net/dev").read_text().split("lo:")[1].split()[0])


PRIVATE: list[bool] = []


def leave_network() -> None:
    """From here on this process, and what it forks, have a network of their own, if the machine lets it."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_network, new_user = 0x40000000, 0x10000000
    if libc.unshare(new_network) and libc.unshare(new_user | new_network):
        return
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
    PRIVATE.append(True)


def allocations(seen: profile) -> list[int]:
    """Bytes that were given (and taken, negative), in the order of time."""
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def largest_sum(changes: list[int]) -> int:
    total = largest = 0
    for change in changes:
        total += change
        largest = max(largest, total)
    return largest


def run_rank(folder: Path, out: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    use_parts(folder)
    for case in cases:
        world = join_world(case_config(case).model.config)
        found = carry_out(case, world)
        (out / f"{case}.{world.rank}.json").write_text(json.dumps(found))
    stop_world()


if __name__ == "__main__":
    leave_network()
    sys.exit(fork_ranks(partial(run_rank, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
