"""Memory of a machine, disk and time around a step."""

from __future__ import annotations

from typing import Any

import pytest
from fixed_plan import WORK

from worldsmith.config.load import load
from worldsmith.distributed.degrees import Degrees
from worldsmith.distributed.gpus import GIB, GPUS
from worldsmith.planning.estimate_memory import PROCESS, WORKER, disk, host_memory
from worldsmith.planning.estimate_time import FORWARD, NOTHING, run_time, step_seconds


def config(*words: str) -> Any:
    return load("vision_sft_nano", words, keep_unset=True).tree


@pytest.mark.parametrize(
    ("degrees", "copies"), [(Degrees(1, 8), 80), (Degrees(2, 8), 80), (Degrees(1, 4), 40), (Degrees(16, 1), 80)]
)
def test_copies_for_saves(degrees: Degrees, copies: int) -> None:
    """Of all ranks of a machine: also those copy whose replica does not write."""
    parts = host_memory(config(), degrees, per_machine=8, staged=10 * GIB, sample_bytes=0).parts
    assert parts["copies for saves"] == copies * GIB
    assert parts["processes"] == copies // 10 * PROCESS


def test_a_start_that_needs_more_than_what_follows() -> None:
    needed = {"per_machine": 8, "staged": GIB, "sample_bytes": 0}
    parts = host_memory(config("dataloader_train.num_workers=0"), Degrees(1, 8), loaded=2 * GIB, **needed).parts
    assert parts == {"processes": 8 * PROCESS, "weights being loaded": 16 * GIB}


def test_readers_hold_samples_ready() -> None:
    words = ["dataloader_train.num_workers=3", "dataloader_train.prefetch_factor=4"]
    parts = host_memory(config(*words), Degrees(1, 2), per_machine=8, staged=0, sample_bytes=1000).parts
    assert parts == {"processes": 2 * PROCESS, "loader workers": 6 * (WORKER + 4000)}


def test_disk_counts_the_checkpoints_that_are_kept() -> None:
    words = ["trainer.max_iter=1000", "checkpoint.save_iter=100"]
    assert disk(config(*words), checkpoint_bytes=7, cached_bytes=0).parts == {"checkpoints": 70}
    words.append("checkpoint.keep_latest_k=2")
    assert disk(config(*words), checkpoint_bytes=7, cached_bytes=5).parts == {"checkpoints": 21, "latent cache": 5}


def test_the_time_of_a_run() -> None:
    step = step_seconds(WORK, GPUS["h100-80"], compiled=True)
    assert step is not None
    words = ["trainer.max_iter=1000", "checkpoint.save_iter=100"]
    sizes = {"ranks": 16, "staged_bytes": int(25e9), "checkpoint_bytes": int(4e9)}
    time = run_time(config(*words), step, **sizes)
    assert time.steps.fast == 1000 * step.total.fast
    assert (time.saves.fast, time.saves.slow) == (9 * 1 + 1, pytest.approx(9 * 25 / 8 + 8))
    assert time.validation == NOTHING
    waiting = run_time(config(*words, "checkpoint.async_save=false"), step, **sizes)
    assert (waiting.saves.fast, waiting.saves.slow) == (10, 80)
    words += ["trainer.run_validation=true", "trainer.validation_iter=300", "trainer.run_validation_on_start=true"]
    assert run_time(config(*words), step, **sizes).validation is None
    words += ["trainer.max_val_iter=6", "trainer.grad_accum_iter=2", "model.config.ema.enabled=true"]
    seen = run_time(config(*words), step, **sizes).validation
    assert seen is not None
    assert seen.fast == pytest.approx(5 * 6 * 2 / 2 * FORWARD.fast * step.total.fast)
