"""A run that is killed (SIGKILL) at any moment and started again equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pipeline_runs
import pytest
import torch
import toy_runs
from metrics_files import read_metrics
from runs import Runs

from worldsmith.config.sections import ParallelismConfig
from worldsmith.models.local_part import local_part
from worldsmith.training.optimizer import LossScaler
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Of 40 steps."""
    yield from whole_run(Runs(tmp_path_factory.mktemp("resume")))


@pytest.fixture(scope="module")
def reasoner_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The same of a reasoner that learns from clips, a picture and text: fewer steps, which take longer."""
    yield from whole_run(Runs(tmp_path_factory.mktemp("resume"), family="reasoner", steps=10))


@pytest.fixture(scope="module", params=list(pipeline_runs.FAMILIES))
def pipeline_runs_of(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The same of a family whose network is a class of diffusers."""
    yield from whole_run(Runs(tmp_path_factory.mktemp("resume"), family=request.param, steps=10))


def whole_run(runs: Runs) -> Iterator[Runs]:
    runs.start("whole")
    yield runs
    runs.close()


def require_equal(runs: Runs, name: str, uninterrupted: str = "whole") -> None:
    """Losses of all steps, weights, average, optimizer, schedule, counters and RNG are the same bits."""
    whole, resumed = runs.folder / uninterrupted, runs.folder / name
    losses = toy_runs.read_losses(resumed)
    assert [line[0] for line in losses] == list(range(1, runs.steps + 1))
    assert losses == toy_runs.read_losses(whole)
    last = f"checkpoints/iter_{runs.steps:09d}"
    expected, found = toy_runs.read_checkpoint(whole / last), toy_runs.read_checkpoint(resumed / last)
    assert found.keys() == expected.keys()
    assert {"model/net", "model/net_ema", "optim/state"} <= {key.partition(".")[0] for key in found}
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different
    data = "dataloader/rank_0.json"
    assert (resumed / last / data).read_text() == (whole / last / data).read_text()


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_after_a_save_and_during_the_last_one(runs: Runs, workers: int) -> None:
    kill_twice(runs, workers)


@pytest.mark.slow
def test_dropout_draws_the_same_masks_after_a_kill_with_other_workers(runs: Runs) -> None:
    """Killed in the middle of an epoch, after a save and between two; the uninterrupted run without dropout differs."""
    lora = {"lora_enabled": True, "lora_rank": 2, "lora_target_modules": "0", "lora_dropout": 0.25}
    jobs: dict[str, list[tuple[int, tuple[int, str] | None]]] = {
        "dropped": [(0, None)],
        "dropped_and_killed": [(2, (17, "backward")), (0, (31, "end")), (1, None)],
    }
    for name, starts in jobs.items():
        for workers, kill in starts:
            runs.start(name, workers=workers, kill=kill, job={"model": lora}, save_iter=10, async_save=False)
    require_equal(runs, "dropped_and_killed", uninterrupted="dropped")
    runs.start("not_dropped", job={"model": {**lora, "lora_dropout": 0.0}})
    losses = [toy_runs.read_losses(runs.folder / name) for name in ("dropped", "not_dropped")]
    assert losses[0][0][1] == losses[1][0][1]  # B is zero
    assert losses[0][1][1] != losses[1][1][1]


def test_a_reasoner_that_is_killed_after_a_save_and_during_the_last_one(reasoner_runs: Runs) -> None:
    kill_twice(reasoner_runs, workers=2)


@pytest.mark.slow
def test_a_pipeline_that_is_killed_after_a_save_and_during_the_last_one(pipeline_runs_of: Runs) -> None:
    kill_twice(pipeline_runs_of, workers=2)


@pytest.mark.parametrize(
    "family",
    ["cogvideox", *(pytest.param(name, marks=pytest.mark.slow) for name in ("flux", "wan"))],
)
def test_a_pipeline_that_is_stopped_ends_like_one_that_is_not(family: str, tmp_path: Path) -> None:
    """Clips that are encoded in the first pass come from the cache in the second run."""
    world = pipeline_runs.make_world(family, tmp_path / "world")
    for name, stops in (("stopped", (1, 4)), ("whole", (4,))):
        for steps in stops:
            config = pipeline_runs.pipeline_config(family, world, steps=4)
            config.trainer.max_iter, config.checkpoint.async_save = steps, False
            Trainer(config, run_folder=tmp_path / name).train()
    toy_runs.require_same_end(tmp_path / "stopped", tmp_path / "whole", 4)


@pytest.mark.parametrize("setting", ["bfloat16", "float16", "bfloat16_weights", "nan"])
@pytest.mark.parametrize("order", [("all", "none"), ("none", "all")])
def test_a_run_resumes_with_other_weights_in_host_ram(
    setting: str, order: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validations, EMA weights, loss scale, and gradients that are repaired or skipped, are those of one run."""
    world = toy_runs.make_world(tmp_path / "world")
    if setting == "nan":
        spoil_gradients(monkeypatch)
    for name, parts in (("whole", [(4, "none")]), ("parts", list(zip((2, 4), order, strict=True)))):
        for steps, offload in parts:
            config = toy_runs.validated(toy_runs.toy_config(world, steps=4, save_iter=2, layers=3), every=2)
            model = config.model.config
            model.precision = "bfloat16"
            model.parallelism = ParallelismConfig(offload=offload, offload_fraction=0.5 if offload == "all" else 1)
            if setting == "float16":
                model.precision, config.trainer.loss_scale.init_scale = "float16", 2.0**17
            if setting == "bfloat16_weights":
                model.parallelism.fsdp_master_dtype = "bfloat16"
            config.trainer.max_iter, config.checkpoint.async_save = steps, False
            Trainer(config, run_folder=tmp_path / name, resume_changed=True).train()
    toy_runs.require_same_end(tmp_path / "parts", tmp_path / "whole", 4)
    validations = [toy_runs.read_validations(tmp_path / name) for name in ("parts", "whole")]
    assert validations[0] == validations[1]
    assert len(validations[0]) == 3
    skipped = [line["skipped"] for line in read_metrics(tmp_path / "parts" / "metrics.jsonl") if "skipped" in line]
    assert any(skipped) == (setting == "float16")


def spoil_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step has a gradient with a NaN, which gradient clipping sets to zero."""
    unscale = LossScaler.unscale

    def spoil(scaler: LossScaler) -> bool:
        gradient = scaler.optimizer.param_groups[0]["params"][0].grad
        local_part(gradient).view(-1)[0] = torch.nan
        return unscale(scaler)

    monkeypatch.setattr(LossScaler, "unscale", spoil)


def kill_twice(runs: Runs, workers: int) -> None:
    """SIGKILL between backward and update of step 21 of 40; goes on from 20; SIGKILL in the last save; goes on."""
    name, half = f"twice_{workers}", runs.steps // 2
    runs.start(name, workers=workers, async_save=False, kill=(half + 1, "backward"))
    assert runs.done(name) == half
    runs.start(name, workers=workers, kill=(runs.steps, "save:6"))
    assert runs.done(name) == half
    runs.start(name, workers=workers)
    require_equal(runs, name)


@pytest.mark.slow
def test_the_validation_curve_of_a_reasoner_is_one_on_two_ranks_and_after_a_resume(reasoner_runs: Runs) -> None:
    """To the last bit where the readers of the data change at a resume; to rounding on two ranks."""
    job = {"accumulate": 2, "samples": 1, "steps": 4, "validate": 1}
    reasoner_runs.start("curve", job=job, save_iter=4)
    reasoner_runs.start("curve_again", job=job, workers=2, save_iter=2, async_save=False, kill=(3, "backward"))
    reasoner_runs.start("curve_again", job=job, workers=1, save_iter=2)
    reasoner_runs.start("curve_on_two", job={**job, "accumulate": 1, "ranks": 2}, save_iter=4)
    curve, again, two = (
        toy_runs.read_validations(reasoner_runs.folder / name) for name in ("curve", "curve_again", "curve_on_two")
    )
    assert [(line[0], line[3]) for line in curve] == [(step, 6) for step in range(5)]
    assert len({line[1] for line in curve}) == 5
    assert again == curve
    for line, other in zip(two, curve, strict=True):
        assert (line[0], line[3]) == (other[0], other[3])
        assert line[1:3] == pytest.approx(other[1:3], rel=1e-5)


def test_twelve_random_kills_and_damages_in_one_run(runs: Runs) -> None:
    """Killed at random steps and moments of saves, also background ones; in between the newest checkpoint is hurt."""
    kill_often(runs, "random", kills=12, workers=[0, 0, 0, 0, 2], seed=1)


@pytest.mark.slow
def test_a_reasoner_that_is_killed_and_damaged_at_random(reasoner_runs: Runs) -> None:
    kill_often(reasoner_runs, "random", kills=4, workers=[0, 2], seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_sixty_random_kills_in_one_run(runs: Runs, workers: int) -> None:
    """The same, longer, with one number of workers throughout."""
    kill_often(runs, f"often_{workers}", kills=60, workers=[workers], seed=2)


def kill_often(runs: Runs, name: str, *, kills: int, workers: list[int], seed: int) -> None:
    """Starts and kills a run again and again, damages its newest checkpoint now and then, and lets it finish."""
    chance = random.Random(seed)
    for number in range(kills):
        before, hurt = runs.usable(name), ""
        if number % 4 == 3 and before > runs.usable(name, below=before) > 0:
            hurt = damage(runs.checkpoint(name, before), chance)
            before = runs.usable(name)
        # A first checkpoint is waited for: on a slow machine none that is saved in the background might be in time.
        step = min(before + (chance.randint(1, 7) if before else chance.randint(6, 9)), runs.steps)
        phase = f"save:{chance.randint(1, 24)}" if step % 5 == 0 else chance.choice(["start", "backward", "end"])
        background = before > 0 and chance.random() < 0.7
        worker = workers[number % len(workers)]
        said = runs.start(name, workers=worker, save_iter=5, async_save=background, kill=(step, phase))
        assert not hurt or f"DAMAGED CHECKPOINT skipped: {hurt}" in said, said
        assert runs.usable(name) >= before, "a checkpoint that was complete is lost"
    assert runs.usable(name) > 0
    runs.start(name, workers=workers[-1], save_iter=5)
    require_equal(runs, name)


def damage(checkpoint: Path, chance: random.Random) -> str:
    """Flips a bit of a shard, cuts it, or removes it; returns the checkpoint's name."""
    shard = chance.choice(sorted(checkpoint.glob("*/__*.distcp")))
    kind = chance.choice(["flip", "cut", "remove"])
    if kind == "flip":
        content = bytearray(shard.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        shard.write_bytes(content)
    elif kind == "cut":
        os.truncate(shard, chance.randrange(shard.stat().st_size))
    else:
        shard.unlink()
    return checkpoint.name
