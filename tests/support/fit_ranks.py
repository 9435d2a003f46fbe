"""Real runs of a setting that was found: `fit_ranks.py OUT RECIPE WORDS SETTING` on several ranks, words as JSON lists.

Each rank writes the peak of a step's tensors to OUT/<rank>.txt.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from launch import fork_ranks
from torch.distributed.fsdp import fully_shard  # noqa: F401 (imported once for all forks)

from worldsmith.config.load import load
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.distributed.gpus import GIB, Gpu
from worldsmith.distributed.world import stop_world
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.simulate import measure_step
from worldsmith.planning.simulation.tracked_run import TrackedRun, as_simulated
from worldsmith.planning.simulation_inputs import substitute_missing_components
from worldsmith.planning.work import StepWork
from worldsmith.tools.plan.evaluate_settings import Fitting
from worldsmith.training.parallel import join_world

STEP = ("forward", "backward", "optimizer", "average")
VARIABLES = ("DATASET_PATH", "COGVIDEOX_PATH", "WAN_PATH", "FLUX_PATH", "LTX_PATH", "WAN_VAE_PATH", "TOKENIZER_PATH")


def fitting(recipe: str, words: Sequence[str], gpu: Gpu, ranks: int = 1) -> Fitting:
    def read(more: Sequence[str]) -> Loaded:
        return load(recipe, [*words, *more], keep_unset="names")

    return Fitting(read, ranks=ranks, gpu=gpu)


def real_peak(recipe: str, words: Sequence[str], setting: Sequence[str]) -> int:
    """Of a step of the run with the words of that setting, carried out by this process as one of its ranks."""
    torch.set_num_threads(1)
    search = fitting(recipe, words, Gpu("", GIB), int(os.environ.get("WORLD_SIZE", 1)))
    chosen = next(found for found in search.settings if list(found.words) == list(setting))
    with substitute_missing_components(search.read(setting).tree) as stated:
        config = as_simulated(stated.config)
        run = TrackedRun(config, join_world(config.model.config), MemoryTracker(), chosen.packs.batches)
        with run.tracker:
            run.build()
            run.model.draw_weights(0)
            run.tag_weights()
            return step_peak(measure_step(run, start=0.0))


def step_peak(work: StepWork) -> int:
    """Of a step alone: what is made before it, such as first values, a simulation does not have."""
    return max(phase.peak for phase in work.phases if phase.name in STEP)


def main(out: Path, recipe: str, words: list[str], setting: list[str]) -> None:
    (out / f"{os.environ['RANK']}.txt").write_text(str(real_peak(recipe, words, setting)))
    stop_world()


if __name__ == "__main__":
    recipe, *lists = sys.argv[2:]
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]), recipe, *map(json.loads, lists))))
