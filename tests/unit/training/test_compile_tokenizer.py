"""The callback that compiles the VAE's encoder: when it does, what it compiles ahead, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny_runs
import torch

from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.training.callbacks.step_speed import CompileTokenizer
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("compile") / "world")


@pytest.fixture(autouse=True)
def _quick_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and run as it is: code from inductor takes minutes here, and has its own slow test."""
    compile_encoder: Callable[..., None] = WanVAE.compile_encoder
    monkeypatch.setattr(WanVAE, "compile_encoder", lambda vae: compile_encoder(vae, "eager"))


@pytest.fixture
def untraced() -> Iterator[None]:
    """What is compiled is called as it is: tracing takes a second for each size, and one test of this file does it."""
    with torch.compiler.set_stance("force_eager"):
        yield


def config_with(world: Path, *, cache: bool = False, steps: int = 3, **fields) -> Trainer.Config:
    config = tiny_runs.tiny_config(world, steps=steps, save_iter=2, cache=cache)
    config.trainer.callbacks["compile_tokenizer"] = CompileTokenizer.Config(**fields)
    return config


def compiled_at(trainer: Trainer) -> list[bool]:
    """For each step, whether its clips were encoded by compiled code."""
    seen = []
    callback = trainer.callbacks["metrics"]
    original = callback.on_training_step_end

    def record(trainer, step):
        seen.append(trainer.model.vae.compiled is not None)
        original(trainer, step)

    callback.on_training_step_end = record
    trainer.train()
    return seen


def test_the_encoder_is_compiled_after_the_given_steps_and_losses_stay(world: Path, tmp_path: Path) -> None:
    trainer = Trainer(config_with(world, enabled=True, compile_after_iterations=2), run_folder=tmp_path / "compiled")
    assert compiled_at(trainer) == [False, False, True]
    assert trainer.model.vae.compiled.shapes, "the third step's clips"
    Trainer(config_with(world), run_folder=tmp_path / "plain").train()
    pairs = zip(tiny_runs.read_losses(tmp_path / "compiled"), tiny_runs.read_losses(tmp_path / "plain"), strict=True)
    for (step, loss, _, samples), (other_step, other_loss, _, other_samples) in pairs:
        assert (step, samples) == (other_step, other_samples)
        assert loss == pytest.approx(other_loss, rel=1e-5)


@pytest.mark.usefixtures("untraced")
def test_a_resumed_run_compiles_before_its_first_step(world: Path, tmp_path: Path) -> None:
    config = config_with(world, steps=4, enabled=True, compile_after_iterations=1)
    first = Trainer(config, run_folder=tmp_path / "run")
    batches = iter(first.state.loader)
    for _ in range(2):
        first.training_step(batches)
    first.save()
    assert compiled_at(Trainer(config, run_folder=tmp_path / "run")) == [True, True]


@pytest.mark.usefixtures("untraced")
def test_tiers_are_compiled_ahead_of_use(world: Path, tmp_path: Path) -> None:
    """All five sizes of the tier, for the clip length that the data set fixes."""
    config = config_with(world, enabled=True, compile_after_iterations=0, warmup_resolutions=["64"])
    config.dataloader_train.dataset.num_video_frames = 6
    trainer = Trainer(config, run_folder=tmp_path / "run")
    trainer.training_step(iter(trainer.state.loader))
    shapes = trainer.model.vae.compiled.shapes
    assert {shape[3:5] for shape in shapes} == {(32, 32), (48, 32), (32, 48), (64, 32), (32, 64)}
    assert {shape[2] for shape in shapes} == {1, 4}


def test_an_unknown_tier_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        ValueError, match=r'warmup_resolutions.1. = "300": it is not a resolution bucket; choose one of 64'
    ):
        CompileTokenizer.Config(warmup_resolutions=["256", "300"]).check()


def test_compiling_with_a_latent_cache_is_refused(world: Path) -> None:
    with pytest.raises(ValueError, match=r"latent_cache.*enabled = false, or latent_cache"):
        config_with(world, cache=True, enabled=True).check()
    config_with(world, cache=True, enabled=False).check()
