"""A trained Wan as a diffusers pipeline and back, with the other expert as it was, and adapters for diffusers."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import tiny_wan
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline
from PIL import Image
from tiny_wan import CLIP_I2V, I2V, T2V, TI2V

from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.families.wan.image_encoder import PARTS
from worldsmith.models.parameter_names import native_parameters
from worldsmith.tools.export.export import Export
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_wan.make_world(tmp_path_factory.mktemp("wan"))


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@torch.no_grad()
def answer(network: Any) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    video = torch.randn(2, network.config.in_channels, 3, 8, 8, generator=draw)
    out: torch.Tensor = network(video, torch.tensor([3.0, 800.0]), torch.randn(2, 16, 32, generator=draw)).sample
    return out


def export(run: Path, out: Path, **options: Any) -> Path:
    Export.Config(model=str(run), dtype="float32", out=str(out), **options).build().run()
    return out


@pytest.mark.parametrize("recipe", [pytest.param(T2V, marks=pytest.mark.slow), TI2V])
def test_the_pipeline_loads_answers_alike_and_starts_other_runs(world: Path, tmp_path: Path, recipe: str) -> None:
    config = tiny_wan.tiny_config(world, recipe, steps=2)
    Trainer(config, run_folder=tmp_path / "run").train()
    out, own = export(tmp_path / "run", tmp_path / "out"), load_model(tmp_path / "run")
    pipeline = WanPipeline.from_pretrained(out)
    assert torch.equal(answer(pipeline.transformer), answer(own.network))
    assert pipeline.config.expand_timesteps == (recipe == TI2V)
    assert (pipeline.scheduler.config.flow_shift, pipeline.config.boundary_ratio) == (1.0, None)
    assert pipeline.vae.config.latents_std == tiny_wan.STATISTICS["latents_std"]
    again = find_model(out)
    assert (again.config.tokenizer.vae_path, again.defaults.height, again.defaults.shift) == (str(out), 64, 1.0)
    assert torch.equal(answer(again.load().network), answer(own.network))

    pipeline.save_pretrained(tmp_path / "theirs")  # a folder that says nothing of ours
    theirs = find_model(tmp_path / "theirs")
    assert theirs.config.tokenizer.spatial_factor == config.model.config.tokenizer.spatial_factor
    assert (theirs.config.expand_timesteps, theirs.config.network) == (recipe == TI2V, config.model.config.network)
    config.checkpoint.load_path, config.checkpoint.init = str(tmp_path / "theirs"), "pretrained"
    started = native_parameters(Trainer(config, run_folder=tmp_path / "next").model.network)
    for name, parameter in native_parameters(own.network).items():
        assert torch.equal(started[name], parameter), name


@pytest.mark.parametrize(
    ("expert", "own", "other"),
    [
        pytest.param("high_noise", "transformer", "transformer_2", marks=pytest.mark.slow),
        ("low_noise", "transformer_2", "transformer"),
    ],
)
def test_an_expert_starts_from_its_pipeline_and_leaves_the_other_as_it_was(
    world: Path, tmp_path: Path, expert: Any, own: str, other: str
) -> None:
    config: Any = tiny_wan.tiny_config(world, I2V, steps=2)
    for where, seed in (("transformer", 1), ("transformer_2", 2)):
        tiny_wan.make_expert(world / I2V, config, where, seed)
    config.model.config.expert, config.checkpoint.init = expert, "pretrained"
    trainer = Trainer(config, run_folder=tmp_path / "run")
    first = open_weights(world / I2V / own)
    for name, parameter in native_parameters(trainer.model.network).items():
        assert torch.equal(parameter, first.read(name)), name
    trainer.train()
    out = export(tmp_path / "run", tmp_path / "out")
    assert digests(out / other) == digests(world / I2V / other)
    assert digests(out / own) != digests(world / I2V / own)
    pipeline = WanImageToVideoPipeline.from_pretrained(out)
    assert pipeline.config.boundary_ratio == 0.9
    trained = load_model(tmp_path / "run")
    assert torch.equal(answer(getattr(pipeline, own)), answer(trained.network))
    again = load_model(out)
    assert (again.config.expert, again.config.pipeline) == (expert, str(out))
    assert torch.equal(answer(again.network), answer(trained.network))
    assert torch.equal(answer(again.other_expert), answer(getattr(pipeline, other)))


def test_the_image_encoder_goes_with_the_pipeline_as_it_was(world: Path, tmp_path: Path) -> None:
    """A run over cached latents learns as one over none, and its export makes the same answers."""
    config: Any = tiny_wan.tiny_config(world, CLIP_I2V, steps=2)
    first, cached = Trainer(config, run_folder=tmp_path / "run"), Trainer(config, run_folder=tmp_path / "cached")
    first.train()
    cached.train()
    for name, parameter in native_parameters(first.model.network).items():
        assert torch.equal(native_parameters(cached.model.network)[name], parameter), name
    out = export(tmp_path / "run", tmp_path / "out")
    for part in PARTS:
        assert digests(out / part) == digests(world / CLIP_I2V / part)
    pipeline = WanImageToVideoPipeline.from_pretrained(out)
    image = Image.fromarray(torch.full((64, 64, 3), 99, dtype=torch.uint8).numpy())
    again = find_model(out)
    assert (again.config.image_encoder.path, again.config.network.image_dim) == (str(out), 16)
    own = again.load().image_encoder.states([torch.full((3, 1, 64, 64), 99, dtype=torch.uint8)])
    torch.testing.assert_close(own, pipeline.encode_image(image, "cpu"))


def test_adapters_are_those_of_load_lora_weights(world: Path, tmp_path: Path) -> None:
    config: Any = tiny_wan.tiny_config(world, T2V, steps=2)
    config.model.config.lora_enabled, config.model.config.lora_rank = True, 4
    Trainer(config, run_folder=tmp_path / "run").train()
    adapters = export(tmp_path / "run", tmp_path / "adapters", format="adapter")
    out, own = export(tmp_path / "run", tmp_path / "out"), load_model(tmp_path / "run")
    pipeline = WanPipeline.from_pretrained(out)
    assert torch.equal(answer(pipeline.transformer), answer(own.network))
    config.model.config = config.model.config.without_adapters()
    pipeline.transformer = copy.deepcopy(Trainer(config, run_folder=tmp_path / "first").model.network).eval()
    before = answer(pipeline.transformer)
    pipeline.load_lora_weights(adapters)
    assert not torch.allclose(before, answer(own.network), atol=1e-5)
    torch.testing.assert_close(answer(pipeline.transformer), answer(own.network), atol=1e-5, rtol=1e-5)
