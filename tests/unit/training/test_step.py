"""The seed of what a network draws itself, and what a step reads from the device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_runs
import torch
from toy_family import Row

from worldsmith.distributed.world import World
from worldsmith.tasks.task import Task
from worldsmith.training.step import network_seed
from worldsmith.training.trainer import Trainer


def seed_of(position: int, *, seed: int = 1, rank: int = 0, group: int = 1) -> int:
    world: Any = World(rank=rank, size=4, context_group=SimpleNamespace(size=lambda: group) if group > 1 else None)  # type: ignore[arg-type]
    task: Any = SimpleNamespace(world=world, name_samples=lambda batch: Task.name_samples(task, batch))
    return network_seed(task, [Row("a", position, [], [], 0), Row("b", 99, [], [], 0)], seed)


def test_a_pack_has_one_seed_on_every_rank_and_each_rank_of_a_context_group_its_own() -> None:
    assert len({seed_of(7, rank=rank) for rank in range(4)}) == 1
    assert len({seed_of(7), seed_of(8), seed_of(7, seed=2)}) == 3
    shared = [seed_of(7, rank=rank, group=2) for rank in range(4)]
    assert shared[:2] == shared[2:]
    assert shared[0] != shared[1]


READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "cpu", "numpy")
"""Methods of a tensor that wait for its device, if it is on one."""


def test_a_step_reads_values_of_the_device_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and gradient norm are read together, after the last backward pass.

    Reads in the network are not counted: the simulation of a plan, where device tensors have no values, fails at
    each of them.
    """
    trainer = Trainer(
        tiny_runs.tiny_config(tiny_runs.make_world(tmp_path, clips=3), steps=4), run_folder=tmp_path / "run"
    )
    batches = iter(trainer.state.loader)
    trainer.training_step(batches)  # which checks gradients and fills the latent cache
    reads: list[str] = []

    def count(name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor, *args: Any) -> Any:
            caller = sys._getframe(1).f_code
            if "worldsmith/training/" in caller.co_filename and "/metrics.py" not in caller.co_filename:
                reads.append(f"{Path(caller.co_filename).name}: {caller.co_name}")
            return original(tensor, *args)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, count(name))
    trainer.training_step(batches)
    assert reads == ["step.py: reduce_metrics"]
