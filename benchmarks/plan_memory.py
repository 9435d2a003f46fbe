"""Is the memory of a step as it is planned? Middle-sized networks of the Nano kind, simulated and really run on a CPU.

For every kind of recomputation, with and without adapters: the peak that was predicted, that of a tracker in the real
run, that of PyTorch's profiler (which sees what kernels take inside), and by how much the process grew in all.

    python benchmarks/plan_memory.py [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from itertools import product
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.profiler import ProfilerActivity, profile

import worldsmith.families.recipes  # noqa: F401
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.world import World
from worldsmith.planning.estimate_memory import worst_phase
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.simulate import measure_step, simulate
from worldsmith.planning.simulation.tracked_run import TrackedRun, as_simulated
from worldsmith.planning.simulation_inputs import assumed_batches
from worldsmith.planning.work import StepWork
from worldsmith.training.trainer import Trainer

MODES = ("none", "full", "selective")
STATUS = "/proc/self/status"


def twin(mode: str, *, lora: bool, width: int = 1024, layers: int = 2) -> Trainer.Config:
    """A network of the Nano kind, on one pack of 4,096 tokens."""
    os.environ.setdefault("DATASET_PATH", "none")
    os.environ.setdefault("BASE_CHECKPOINT_PATH", "none")
    config = cast(Trainer.Config, get_recipe("vision_sft_nano_tiny"))
    model: Any = config.model.config
    network = model.network
    network.hidden_size, network.intermediate_size, network.num_hidden_layers = width, 3 * width, layers
    network.num_attention_heads, network.num_key_value_heads = width // 64, width // 128
    model.ema.enabled, model.activation_checkpointing.mode = False, mode
    config.trainer.grad_accum_iter = 1
    if lora:
        model.lora_enabled, config.optimizer.keys_to_select = True, ["lora_"]
    return resolve(config)


def predicted(config: Trainer.Config) -> StepWork:
    return simulate(config, assumed_batches(config).batches, ranks=1)


def real_run(config: Trainer.Config, tracker: MemoryTracker, world: World) -> TrackedRun:
    return TrackedRun(as_simulated(config), world, tracker, assumed_batches(config).batches)


def measured(config: Trainer.Config) -> tuple[int, int, int]:
    """Bytes at the worst moment of a real step: by the tracker, by the profiler, and by which the process grew."""
    before = resident("VmRSS")
    tracker = MemoryTracker()
    run = real_run(config, tracker, World())
    with tracker:
        run.build()
        run.model.draw_weights(0)
        run.tag_weights()
        work = measure_step(run, start=time.perf_counter())
    grown = resident("VmHWM") - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run.step()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = largest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        largest = max(largest, total)
    return worst_phase(work)[0].peak, tracker.total + largest, grown


def resident(name: str) -> int:
    """VmRSS or VmHWM, its largest value so far, in bytes."""
    with open(STATUS) as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small network")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("| recomputation | adapters | predicted MiB | tracker | ratio | profiler | ratio | process grew by | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for mode, lora in [("full", False)] if quick else product(MODES, (False, True)):
        config = twin(mode, lora=lora, width=128 if quick else 1024)
        peak = worst_phase(predicted(config))[0].peak
        with multiprocessing.get_context("fork").Pool(1) as fresh:  # whose largest size is of this case alone
            found = fresh.apply(measured, (config,))
        columns = "".join(f" {value / 2**20:.0f} | {peak / value:.3f} |" for value in found)
        print(f"| {mode} | {'yes' if lora else 'no'} | {peak / 2**20:.0f} |{columns}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
