"""What ranks of real runs hold while they start, save and go on: `launch` runs `plan_starts.py FOLDER OUT CASE…`.

Each rank writes OUT/<case>.<rank>.json, what `carry_out` returns. FOLDER is that of `plan_cases.write_parts`.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from launch import fork_ranks
from plan_cases import case_config, use_parts
from plan_ranks import allocations, largest_sum
from torch.distributed.fsdp import fully_shard  # noqa: F401 (imported once for all forks)
from torch.profiler import ProfilerActivity, profile

from worldsmith.distributed.world import World, stop_world
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.tracked_run import TrackedRun, as_simulated, held_on_device
from worldsmith.training.parallel import join_world
from worldsmith.training.trainer import Trainer


def write_weights(parts: Path) -> None:
    """Those of the reasoner, in the folder that transformers writes."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    folder = parts / "reasoner"
    AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)


def start_config(case: str) -> Trainer.Config:
    """A cosmos3 draws its weights; a reasoner reads those that transformers has written."""
    config = as_simulated(case_config(case))
    config.checkpoint.load_path = None
    return config


def carry_out(case: str, world: World, folder: Path) -> dict[str, dict[str, int]]:
    """Of "loading", "saving" and "resuming": the `peak` on the device and what is in `main_memory` beside it, by the
    tracker, and by PyTorch's profiler what was `allocated` for both."""
    found: dict[str, dict[str, int]] = {}
    run, tracker = tracked(case, world)
    with tracker:
        with judged(found, "loading", tracker):
            run.build(loads=True)
        run.prime()
        keep(run, folder)
        with judged(found, "saving", tracker), tracker.phase("saving"):
            run.state.save(background=True)
        run.state.checkpointer.wait_for_background_save()
        checkpoint = run.state.checkpointer.latest()
    assert checkpoint is not None
    run, tracker = tracked(case, world)
    with tracker:
        run.build()
        for layer in run.model.quantized_layers.values():  # as it is before a start
            for name in ("packed", "scale", "zero"):
                delattr(layer, name)
            layer.quantize = held_on_device(layer.quantize, tracker)
        keep(run, folder)
        state: Any = run.state
        state.checkpointer.load_part = elsewhere(tracker, state.checkpointer.load_part)
        state.weights.load_initial = elsewhere(tracker, state.weights.load_initial)
        state._restore_position = lambda *_, **__: None
        with judged(found, "resuming", tracker), tracker.phase("resuming"):
            state.restore(checkpoint)
    return found


def tracked(case: str, world: World) -> tuple[TrackedRun, MemoryTracker]:
    tracker = MemoryTracker()
    return TrackedRun(start_config(case), world, tracker, []), tracker


def keep(run: TrackedRun, folder: Path) -> None:
    """Gives the run a real checkpointer, whose copies are in main memory."""
    state: Any = run.state
    state.checkpointer = run.config.checkpoint.build(folder=folder / "checkpoints", world=run.world)
    state.loader, state.run_folder = SimpleNamespace(state_dict=dict), folder
    stager = state.checkpointer._stager
    stager.stage = elsewhere(run.tracker, stager.stage)


def elsewhere(tracker: MemoryTracker, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with tracker.in_host_ram():
            return function(*args, **kwargs)

    return call


@contextmanager
def judged(found: dict[str, dict[str, int]], name: str, tracker: MemoryTracker) -> Iterator[None]:
    gc.collect()  # garbage of an earlier run would be freed, and subtracted, while this one is measured
    before = tracker.total
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        yield
    phase = next(phase for phase in tracker.phases() if phase.name == name)
    found[name] = {"peak": phase.peak, "main_memory": phase.main_memory}
    found[name]["allocated"] = before + largest_sum(allocations(seen))


def run_rank(parts: Path, out: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    use_parts(parts)
    for case in cases:
        world = join_world(case_config(case).model.config)
        found = carry_out(case, world, out / case)
        (out / f"{case}.{world.rank}.json").write_text(json.dumps(found))
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(run_rank, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
