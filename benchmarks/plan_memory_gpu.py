"""Is the memory of a step on this GPU as it is planned? The goal: within 10 % in every phase.

For a network of the Nano kind, for every kind of recomputation, with and without adapters, in bfloat16 over float32
weights: the peak of each phase that was predicted against `torch.cuda.max_memory_allocated` in it, and what PyTorch's
allocator had reserved in the end against the predicted peak with the margin that a plan states for fragments.

    python benchmarks/plan_memory_gpu.py [--width 4096] [--layers 2]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from itertools import product

import torch
from plan_memory import MODES, predicted, real_run, twin

from worldsmith.distributed.world import start_world, stop_world
from worldsmith.planning.estimate_memory import FRAGMENTATION, worst_phase
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.training.trainer import Trainer


class DevicePhases(MemoryTracker):
    """Reads what the device's allocator says in place of following tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: dict[str, int] = defaultdict(int)

    def _enter_phase(self, name: str) -> None:
        if torch.cuda.is_available():
            self.peaks[self._phase] = max(self.peaks[self._phase], torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
        self._phase = name


def measured(config: Trainer.Config) -> tuple[dict[str, int], int]:
    """Bytes allocated at the worst moment of each phase of a steady step, and reserved at its end."""
    tracker = DevicePhases()
    run = real_run(config, tracker, start_world())
    run.build()
    run.model.draw_weights(0)
    run.step()
    tracker.peaks.clear()
    run.step()
    return dict(tracker.peaks), torch.cuda.max_memory_reserved()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            f"There is no GPU here, so nothing is measured. With one, this compares for {len(MODES)} kinds of "
            "recomputation, with and without adapters, the planned memory of each phase of a step with "
            "torch.cuda.max_memory_allocated (goal: within 10 %), and what the allocator reserves with the planned "
            f"peak and its margin of {FRAGMENTATION:.0%} for fragments."
        )
        return 0
    print("| recomputation | adapters | phase | predicted MiB | allocated | ratio |")
    print("|---|---|---|---|---|---|")
    worst = 1.0
    for mode, lora in product(MODES, (False, True)):
        config = twin(mode, lora=lora, width=options.width, layers=options.layers)
        config.model.config.precision = "bfloat16"
        work = predicted(config)
        found, reserved = measured(config)
        stop_world()
        torch.cuda.empty_cache()
        name = f"| {mode} | {'yes' if lora else 'no'} |"
        for phase in work.phases:
            if phase.name in found and phase.name != "building":
                ratio = phase.peak / found[phase.name]
                worst = max(worst, ratio, 1 / ratio)
                print(
                    f"{name} {phase.name} | {phase.peak / 2**20:.0f} | {found[phase.name] / 2**20:.0f} | {ratio:.3f} |"
                )
        room = worst_phase(work)[0].peak * (1 + FRAGMENTATION)
        print(f"{name} reserved | {room / 2**20:.0f} | {reserved / 2**20:.0f} | {room / reserved:.3f} |", flush=True)
    print(f"The largest difference of a phase: {worst - 1:.1%}; {'within' if worst <= 1.1 else 'MORE THAN'} 10 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
