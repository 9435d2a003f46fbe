"""Measures training steps of a recipe on this GPU, and compares their memory with the plan of the recipe.

    python benchmarks/gpu/recipe_step.py RECIPE [--steps 3] [--predict] [--profile] [-o result.json] [-- OVERRIDES]

The step is that of the trainer: forward and backward over the recipe's packs, gradient clipping, optimizer and EMA.
Weights and latents are random, and no data set and no released weights are needed. Results: seconds per step (median),
peak memory by phase, allocator retries, synchronizations of the host with the device in one step, and with `--profile`
the fraction of a step in which the GPU idles. `--predict` runs no step: it writes what the plan states for this one.
`--memory 24` imitates a card of 24 GiB; `--no-prefetch` starts the copies of offloaded weights when they are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from nano_step import fill, synchronised
from torch.distributed.fsdp import FSDPModule

import worldsmith
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.offload import pin_offloaded
from worldsmith.distributed.world import start_world
from worldsmith.families.diffusers_pipeline import model as pipeline_model
from worldsmith.families.wan import model as wan_model
from worldsmith.models.video_vae import posterior, wan_files
from worldsmith.planning.estimate_memory import CONTEXT, worst_phase
from worldsmith.planning.simulation.fake_world import replaced
from worldsmith.planning.simulation.simulate import simulate
from worldsmith.planning.simulation.tracked_run import TrackedRun
from worldsmith.planning.simulation_inputs import PlannedBatches, assumed_batches, substitute_missing_components

sys.path.append(str(Path(__file__).parents[1]))
from plan_memory_gpu import DevicePhases


@contextmanager
def prepared(recipe: str, overrides: list[str]) -> Iterator[tuple[Any, PlannedBatches]]:
    """Yields the recipe's config, with frozen encoders replaced by dummies, and the packs of one step."""
    folder = tempfile.gettempdir()
    for name in ("DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH"):
        os.environ.setdefault(name, folder)
    config = resolve(worldsmith.load_config(recipe, overrides=overrides, keep_unset=True), keep_unset="names")
    if hasattr(config.dataloader_train, "latent_cache"):
        config.dataloader_train.latent_cache = config.dataloader_train.latent_cache or folder
    with substitute_missing_components(config) as stated:
        batches = assumed_batches(stated.config)
        for batch in batches.batches:
            for sample in batch:
                if getattr(sample, "latents", None) is not None:
                    sample.latents = torch.randn(sample.latents.shape)
        yield stated.config, batches


def predict(recipe: str, overrides: list[str]) -> dict[str, Any]:
    """Returns what the plan states for one step: FLOPs, tokens and peak memory by phase."""
    with prepared(recipe, overrides) as (config, batches):
        work = simulate(config, batches.batches, ranks=1)
    return {
        "model_flops": work.model_flops,
        "hardware_flops": work.hardware_flops,
        "tokens": work.tokens,
        "peaks": {phase.name: phase.peak for phase in work.phases},
        "peak": worst_phase(work)[0].peak,
        "simulation_s": work.seconds,
    }


def measure(recipe: str, overrides: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Builds the recipe's run on this device and returns what its steps take."""
    world, warm_up = start_world(), options.warm_up
    on_gpu = world.device.startswith("cuda")
    if on_gpu and options.memory:
        total = torch.cuda.get_device_properties(world.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (options.memory * 2**30 - CONTEXT) / total))
    with ExitStack() as stack:
        config, batches = stack.enter_context(prepared(recipe, overrides))
        for module in (
            posterior,
            wan_files,
            wan_model,
            pipeline_model,
        ):  # no encoder reads its weights
            stack.enter_context(replaced(module, "in_simulation", lambda: True))
        start = time.perf_counter()
        tracker = DevicePhases()
        run = TrackedRun(config, world, tracker, batches.batches)
        run.build()
        if on_gpu and run.model.in_host_ram:
            pin_offloaded(run.model.network)
        if not options.prefetch:
            start_copies_late(run.model.network)
        torch.manual_seed(0)
        fill(run.model.network)
        built = synchronised(world) - start
        taken = []
        for index in range(warm_up + options.steps):
            if index == warm_up:
                tracker.peaks.clear()
            start = synchronised(world)
            result = run.step()
            taken.append(synchronised(world) - start)
        found: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if on_gpu else "CPU",
            "torch": torch.__version__,
            "build_s": built,
            "first_steps_s": taken[:warm_up],
            "step_s": statistics.median(taken[warm_up:]),
            "steps_s": taken[warm_up:],
            "tokens": result.tokens,
            "samples": result.samples,
            "loss": float(result.loss),
            "peaks": dict(tracker.peaks),
            "packs": batches.described,
            "memory_limit": torch.cuda.get_per_process_memory_fraction() if on_gpu else None,
        }
        if on_gpu:
            found["reserved"] = torch.cuda.max_memory_reserved()
            found["retries"] = torch.cuda.memory_stats()["num_alloc_retries"]
            found["synchronizations"] = count_synchronizations(run)
            if options.profile:
                found |= profile_step(run)
    return found


def start_copies_late(network: torch.nn.Module) -> None:
    """Makes each FSDP unit prefetch only itself, which has no effect, so that no copy overlaps with a computation."""
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_modules_to_forward_prefetch([module])
            module.set_modules_to_backward_prefetch([module])


def count_synchronizations(run: TrackedRun) -> dict[str, int]:
    """Counts in one step where the host waits for the device, by the line of the package that causes it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        run.step()
        torch.cuda.set_sync_debug_mode("default")
    where = [f"{Path(w.filename).name}:{w.lineno}" for w in seen if "synchroniz" in str(w.message)]
    return dict(Counter(where))


def profile_step(run: TrackedRun) -> dict[str, Any]:
    """Profiles one step: time in which no kernel runs, number of kernels, and the kernels that take most of it."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run.step()
        torch.cuda.synchronize()
    kernels = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    )
    busy, end, by_name = 0, kernels[0][0], Counter[str]()
    for first, last, name in kernels:
        busy += max(0, last - max(first, end))
        end = max(end, last)
        by_name[name[:90]] += last - first
    span = end - kernels[0][0]
    return {
        "profiled_s": span / 1e9,
        "idle": 1 - busy / span,
        "kernels": len(kernels),
        "largest": {name: round(total / span, 4) for name, total in by_name.most_common(12)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument(
        "overrides", nargs="*", help="overrides of the recipe, such as model.config.compile.enabled=true"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps that are timed")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before those")
    parser.add_argument("--predict", action="store_true", help="write the plan's numbers instead of measuring")
    parser.add_argument("--profile", action="store_true", help="profile one step too")
    parser.add_argument("--memory", type=float, help="GiB of the imitated card; no effect without a GPU")
    parser.add_argument("--no-prefetch", dest="prefetch", action="store_false", help="copy no weights ahead")
    parser.add_argument("-o", "--output", type=Path, help="JSON file of the result")
    options = parser.parse_args()
    if options.predict:
        found = predict(options.recipe, options.overrides)
    else:
        found = measure(options.recipe, options.overrides, options)
    text = json.dumps(found, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
