"""A run of one process needs no process group; several need a device each, and patience."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from worldsmith.distributed.coordination_group import PATIENCE
from worldsmith.distributed.world import World, device_remarks, start_world, world_size


def test_one_process_agrees_with_itself() -> None:
    world = World()
    assert (world.broadcast("x"), world.gather(3), world.sum(1, 2.5)) == ("x", [3], [1.0, 2.5])
    assert world.any(True)
    assert not world.any(False)
    assert (world.data_rank, world.data_size, world.context_parallel, world.data_sum(3)) == (0, 1, 1, [3.0])


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_a_process_for_which_there_is_no_gpu(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the process group, in which the others would wait for it."""
    for name, value in {"WORLD_SIZE": "4", "LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "4,5"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"4 processes .* found 2 \(CUDA_VISIBLE_DEVICES is '4,5'\); start 2 on each"):
        start_world()


def test_a_plan_for_more_processes_than_gpus_says_how_many_machines_it_needs(two_gpus: None) -> None:
    assert device_remarks(2) == []
    assert device_remarks(5) == ["this machine has 2 GPUs, but 5 processes need 3 such machines"]


def test_ranks_wait_for_each_other_as_long_as_reading_a_checkpoint_may_take(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs what is no tensor goes over gloo."""
    asked: list[Any] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *words, **named: asked.append((words, named)))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "rendezvous", lambda *words, **named: iter([(dist.HashStore(), 1, 2)]))
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "",
        "MASTER_PORT": "",
    }.items():
        monkeypatch.setenv(name, value)
    assert start_world().device == "cuda:1"
    device, (words, named) = asked
    assert (device, words) == (1, ("cpu:gloo,cuda:nccl",))
    assert named["timeout"] == PATIENCE


@pytest.mark.parametrize("value", ["0", "-3", "x", "1e3", "²"])
def test_a_number_of_processes_that_cannot_be_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(ValueError, match=rf"WORLD_SIZE: expected an integer, at least 1, found '{value}'"):
        world_size()
