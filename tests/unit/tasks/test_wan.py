"""The task of Wan: an expert's own noise levels, what is refused, and runs over a cache that stop and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import tiny_wan
import torch
from tiny_wan import I2V, T2V, TI2V

from worldsmith.config import WrongValueError
from worldsmith.data.latent_cache import LatentCache
from worldsmith.families.wan.task import WanTask
from worldsmith.objectives.noise_schedule import sample_sigma
from worldsmith.training.callbacks.step_speed import CompileTokenizer
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_wan.make_world(tmp_path_factory.mktemp("wan"))


@pytest.mark.parametrize("distribution", ["logitnormal", "uniform", "waver", "ltx2"])
def test_no_noise_level_outside_of_an_experts_own_is_drawn(distribution: str) -> None:
    def drawn(within: tuple[float, float]) -> list[float]:
        return [sample_sigma(distribution, 3, seed=1, position=n, within=within) for n in range(400)]

    whole, high, low = drawn((0.0, 1.0)), drawn((0.875, 1.0)), drawn((0.0, 0.875))
    assert min(high) >= 0.875 > max(low)
    assert max(whole) > 0.875 > min(whole)
    for own, inside in ((high, lambda sigma: sigma >= 0.875), (low, lambda sigma: sigma < 0.875)):
        kept = [(a, b) for a, b in zip(whole, own, strict=True) if inside(a)]
        assert all(a == b for a, b in kept)  # what is inside is drawn as if there were no other network
    with pytest.raises(ValueError, match=r"hardly any noise level from 0\.5 to 0\.5"):
        sample_sigma(distribution, 3, seed=1, position=0, within=(0.5, 0.5))


def test_an_experts_levels_are_those_of_its_config(world: Path) -> None:
    config: Any = tiny_wan.tiny_config(world, I2V).model.config
    assert config.noise_levels == (0.9, 1.0)
    config.expert = "low_noise"
    assert config.noise_levels == (0.0, 0.9)
    assert tiny_wan.tiny_config(world, T2V).model.config.noise_levels == (0.0, 1.0)


@pytest.mark.parametrize(
    ("recipe", "field", "value", "named"),
    [
        (TI2V, "resolution", "720", "1104x832"),
        (TI2V, "conditioning_config", {"0": 0.5, "2": 0.5}, "supports conditioning only on the first latent frame"),
        (T2V, "conditioning_config", {"1": 1.0}, "does not support conditioning frames"),
        (T2V, "resolution", "72x72", "72x72"),
    ],
)
def test_data_that_it_cannot_learn_from_are_refused(
    world: Path, recipe: str, field: str, value: Any, named: str
) -> None:
    run = tiny_wan.tiny_config(world, recipe)
    WanTask.check(run)
    setattr(run.dataloader_train.dataset, field, value)
    with pytest.raises(WrongValueError, match=named):
        WanTask.check(run)


@pytest.mark.parametrize("recipe", [pytest.param(TI2V, marks=pytest.mark.slow), I2V])
def test_a_run_over_a_cache_that_was_stopped_goes_on(
    world: Path, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that opens a clip is encoded once, with nothing after it, and is not what a clip's first frame is."""
    config = tiny_wan.tiny_config(world, recipe, steps=4)
    config.dataloader_train.latent_cache = str(tmp_path / "latents")
    config.checkpoint.save_iter = 2
    kept: list[tuple[int, ...]] = []
    put = LatentCache.put
    monkeypatch.setattr(LatentCache, "put", lambda cache, key, x: (kept.append(tuple(x.shape)), put(cache, key, x))[1])
    Trainer(config, run_folder=tmp_path / "whole").train()
    cells = 4 if recipe == TI2V else 8
    assert set(kept) == {(4, frames, cells, cells) for frames in (2, 3)}
    config.trainer.max_iter, made = 2, len(kept)
    Trainer(config, run_folder=tmp_path / "parts").train()
    config.trainer.max_iter = 4
    Trainer(config, run_folder=tmp_path / "parts").train()
    assert len(kept) == made
    ends = [tmp_path / name / "checkpoints/iter_000000004" for name in ("whole", "parts")]
    whole, parts = map(tiny_runs.read_checkpoint, ends)
    assert all(torch.equal(whole[name], parts[name]) for name in whole if isinstance(whole[name], torch.Tensor))


def test_adapters_learn_in_bfloat16(world: Path, tmp_path: Path) -> None:
    config: Any = tiny_wan.tiny_config(world, T2V, steps=2)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.precision = True, 4, "bfloat16"
    trainer = Trainer(config, run_folder=tmp_path / "run")
    assert sum(p.requires_grad for p in trainer.model.network.parameters()) == 16 * model.network.num_layers
    trainer.train()
    assert all(0.2 < line[1] < 4 for line in tiny_runs.read_losses(tmp_path / "run"))


def test_an_encoder_that_cannot_be_compiled_is_refused(world: Path) -> None:
    run = tiny_wan.tiny_config(world, T2V)
    run.trainer.callbacks["compile_tokenizer"] = CompileTokenizer.Config(enabled=True)
    with pytest.raises(WrongValueError, match="models of the family 'wan' have no encoder to compile"):
        run.check()
