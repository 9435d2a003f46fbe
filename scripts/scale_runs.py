"""The runs of docs/scale.md, and what a step of each is: simulated once, kept in docs/scale.json.

    python scripts/scale_runs.py [NAME …]

Without names those that are not in the file yet. A simulation takes from 10 seconds to two minutes of one core, and the
same for 8 ranks as for 4,096.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.degrees import Degrees
from worldsmith.families.cosmos3.recipes import GENERATION_TOWER

DEGREES = [2**power for power in range(13)]
FILE = Path(__file__).parents[1] / "docs" / "scale.json"


@dataclass(frozen=True)
class Run:
    """A recipe with `changes`, by path in its tree. A step of it is one pack on each share of the data."""

    recipe: str
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    shard: int = 8
    replicate: int = 1
    context: int = 1

    @property
    def ranks(self) -> int:
        return self.shard * self.replicate * self.context


ADAPTERS = {"model.config.lora_enabled": True, "model.config.lora_rank": 16, "model.config.lora_alpha": 32}
ADAPTERS |= {"optimizer.keys_to_select": ["lora_"], "model.config.ema.enabled": False}
ADAPTERS |= {"checkpoint.save_weights": "trained"}
TOWER = {"model.config.lora_enabled": False, "optimizer.keys_to_select": list(GENERATION_TOWER)}
TOWER |= {"checkpoint.save_weights": "all"}

RUNS = {
    "edge": Run("vision_sft_edge", "Cosmos3-Edge"),
    "nano": Run("vision_sft_nano", "Cosmos3-Nano"),
    "super": Run("vision_sft_super", "Cosmos3-Super", TOWER),
    "edge-lora": Run("vision_sft_edge", "Cosmos3-Edge LoRA", ADAPTERS),
    "nano-lora": Run("vision_sft_nano", "Cosmos3-Nano LoRA", ADAPTERS),
    "super-lora": Run("vision_sft_super", "Cosmos3-Super LoRA"),
    "cogvideox-5b": Run("cogvideox_5b", "CogVideoX-5B"),
    "wan-14b": Run("wan21_t2v_14b", "Wan 2.1 14B"),
    "qwen3-vl-8b": Run("pre_exp012_llava_ov", "Qwen3-VL-8B"),
    "qwen3-vl-32b": Run("videophy2_sft_super", "Qwen3-VL-32B"),
}
CHECKS = {
    "edge at 64": Run("vision_sft_edge", "Cosmos3-Edge", shard=64),
    "edge at 4096": Run("vision_sft_edge", "Cosmos3-Edge", shard=4096),
    "edge at 512 = 64 x 8": Run("vision_sft_edge", "Cosmos3-Edge", replicate=64),
    "nano at 4096 = 256 x 16": Run("vision_sft_nano", "Cosmos3-Nano", shard=16, replicate=256),
    "nano, context 2": Run("vision_sft_nano", "Cosmos3-Nano", shard=4, context=2),
    "nano, context 4": Run("vision_sft_nano", "Cosmos3-Nano", shard=2, context=4),
    "nano, context 8": Run("vision_sft_nano", "Cosmos3-Nano", shard=1, context=8),
}
"""Other layouts of the same runs: what the formulas of `scale_figures.py` are held against."""
CLIPS = {
    f"nano, tier {tier}": Run("vision_sft_nano", f"tier {tier}", {"dataloader_train.dataset.resolution": tier})
    for tier in ("480", "720")
}
"""Larger clips in packs of as many tokens."""
TWINS = {"nano_tiny at 64": Run("vision_sft_nano_tiny", "a twin", shard=64)}
"""What a test simulates again."""
ALL = RUNS | CHECKS | CLIPS | TWINS


def tree(run: Run) -> Any:
    """The run's tree, in which the names of environment variables stand for those that are not set."""
    degrees = {"shard": run.shard, "replicate": run.replicate}
    parallelism = {f"data_parallel_{name}_degree": degree for name, degree in degrees.items()}
    parallelism["context_parallel_shard_degree"] = run.context
    changes = {f"model.config.parallelism.{name}": degree for name, degree in parallelism.items()}
    config = get_recipe(run.recipe)
    for path, value in ({"trainer.grad_accum_iter": 1} | changes | dict(run.changes)).items():
        *sections, name = path.split(".")
        section: Any = config
        for part in sections:
            section = getattr(section, part)
        getattr(section, name)  # a path that is not there is a mistake
        setattr(section, name, value)
    return resolve(config, keep_unset="names")


def simulated(run: Run) -> dict[str, Any]:
    """What rank 0 does and holds in a step, without what differs from machine to machine."""
    from worldsmith.planning.plan import quick_plan, run_table
    from worldsmith.planning.simulation.simulate import measure_step
    from worldsmith.planning.simulation.tracked_run import simulated_run
    from worldsmith.planning.simulation_inputs import assumed_batches, substitute_missing_components, task_for
    from worldsmith.training.state_bytes import checkpoint_bytes

    config = tree(run)
    thousands = checkpoint_bytes(run_table(config), config, Degrees(replicate=1, shard=DEGREES[-1])).files
    with substitute_missing_components(config) as stated:
        quick = quick_plan(stated.config, run.ranks)
        data = assumed_batches(stated.config, task_for(stated.config, run.ranks))
        with simulated_run(stated.config, data.batches, ranks=run.ranks) as simulation:
            passes = Passes(simulation.tracker)
            simulation.callbacks["passes"] = passes
            measured = measure_step(simulation, start=0.0)
            work = measured.to_json()
        parameters = list(simulation.model.network.parameters())
        shapes = [(tuple(parameter.shape), parameter.requires_grad) for parameter in parameters]
    assert not measured.copied_bytes, "copies to host RAM are not scaled"
    for name in ("seconds", "rank", "model_flops", "to_device_bytes", "to_host_bytes", "activation_copy_bytes"):
        del work[name]
    for phase in work["phases"]:
        del phase["modules"], phase["main_memory"]
    return {
        "layout": {name: getattr(run, name) for name in ("shard", "replicate", "context")},
        "parameters": quick.parameters,
        "trained": quick.trained,
        "checkpoint_bytes": quick.checkpoint_bytes,
        "checkpoint_bytes_of_4096": thousands,
        "compiled": config.model.config.compile.enabled,
        "data": data.described,
        "sample_bytes": data.sample_bytes,
        "cache_bytes": data.cache_bytes,
        **work,
        "moved_in_passes": passes.moved,
        "padded": padded(shapes, trained=False),
        "padded_trained": padded(shapes, trained=True),
    }


def padded(shapes: Sequence[tuple[tuple[int, ...], bool]], *, trained: bool) -> list[int]:
    """Numbers that 1, 2, 4, … 4,096 ranks send when they gather all weights, or those that are trained.

    Weights are cut along their first dimension, and every rank sends as many rows as the first one has.
    """
    kept = [shape for shape, trains in shapes if shape and (trains or not trained)]
    return [sum(-(-shape[0] // ranks) * ranks * prod(shape[1:]) for shape in kept) for ranks in DEGREES]


class Passes:
    """Reads, at the end of the backward pass, what was moved until then: the rest is the update's."""

    def __init__(self, tracker: Any) -> None:
        self.tracker, self.moved = tracker, 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: {}

    def on_before_optimizer_step(self, *arguments: Any) -> None:
        self.moved = self.tracker.operations.moved_bytes


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def text(entries: Mapping[str, Any]) -> str:
    """The file: an entry a line."""
    ordered = [name for name in ALL if name in entries]
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(entries[name])}" for name in ordered) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    for name in parser.parse_args().names or [name for name in ALL if name not in load()]:
        start = time.process_time()
        entry = simulated(ALL[name])
        FILE.write_text(text(load() | {name: entry}), encoding="utf-8")
        print(f"{name}: {time.process_time() - start:.0f} s of a core", flush=True)


if __name__ == "__main__":
    main()
