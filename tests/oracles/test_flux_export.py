"""A trained FLUX as a diffusers pipeline and as an adapter: the same weights and answers, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_flux
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from peft import PeftModel

from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.families.diffusers_pipeline.text_encoder import load_tokenizer
from worldsmith.models.parameter_names import native_parameters
from worldsmith.tools.export.convert import Convert
from worldsmith.tools.export.export import Export
from worldsmith.training.trainer import Trainer

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux.make_world(tmp_path_factory.mktemp("flux"))


@pytest.fixture(scope="module")
def run(world: Path) -> Path:
    """Adapters of rank 4, trained for two steps."""
    config = tiny_flux.tiny_config(world, steps=2)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha = True, 4, 8
    Trainer(config, run_folder=world / "run").train()
    Export.Config(model=str(world / "run"), dtype="float32", out=str(world / "out")).build().run()
    Export.Config(model=str(world / "run"), dtype="float32", format="adapter").build().run()
    return world / "run"


@torch.no_grad()
def answer(network: Any) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    ids = FluxPipeline._prepare_latent_image_ids(2, 4, 4, "cpu", torch.float32)
    found: torch.Tensor = network(
        hidden_states=torch.randn(2, 16, 16, generator=draw), timestep=torch.tensor([0.1, 0.9]),
        guidance=torch.tensor([1.0, 3.5]), pooled_projections=torch.randn(2, 64, generator=draw),
        encoder_hidden_states=torch.randn(2, 16, 64, generator=draw), txt_ids=torch.zeros(16, 3), img_ids=ids,
    ).sample  # fmt: skip
    return found


def test_the_pipeline_loads_and_is_a_start_again(world: Path, run: Path) -> None:
    own, pipeline = load_model(run), FluxPipeline.from_pretrained(world / "out")
    assert torch.equal(answer(pipeline.transformer), answer(own.network))
    for file in (f"vae/{WEIGHTS}", "text_encoder/model.safetensors", "text_encoder_2/model.safetensors"):
        assert (world / "out" / file).read_bytes() == (world / "pipeline" / file).read_bytes()
    assert (pipeline.vae.config.shift_factor, pipeline.vae.config.scaling_factor) == (0.1, 0.4)
    tokenizer = load_tokenizer(world / "pipeline/tokenizer")
    assert pipeline.tokenizer("a b").input_ids == tokenizer("a b").input_ids != pipeline.tokenizer_2("a b").input_ids
    schedule = pipeline.scheduler.config
    assert (schedule.use_dynamic_shifting, schedule.base_shift, schedule.max_shift) == (True, 0.5, 1.15)
    pipeline.set_progress_bar_config(disable=True)
    drawn = pipeline("a", height=64, width=64, num_inference_steps=2, max_sequence_length=16, output_type="latent")
    assert drawn.images.isfinite().all()

    again = find_model(world / "out")
    assert again.config.tokenizer.vae_path == again.config.text_encoder.path == str(world / "out")
    assert (again.defaults.steps, again.defaults.guidance, again.defaults.shift) == (28, 3.5, None)
    config = tiny_flux.tiny_config(world, steps=1)
    config.checkpoint.load_path = str(world / "out")
    started = native_parameters(Trainer(config, run_folder=world / "next").model.network)
    for name, parameter in native_parameters(own.network).items():
        assert torch.equal(started[name], parameter), name


def test_weights_of_diffusers_come_back_as_the_same_bytes(world: Path, run: Path, tmp_path: Path) -> None:
    """A pipeline that its own `save_pretrained` wrote, through a checkpoint of ours."""
    torch.manual_seed(1)
    config = FluxTransformer2DModel.load_config(world / "out" / "transformer")
    pipeline = FluxPipeline.from_pretrained(world / "out", transformer=FluxTransformer2DModel.from_config(config))
    pipeline.save_pretrained(tmp_path / "source")
    source = open_weights(tmp_path / "source")
    assert (source.family, source.unknown) == ("flux", [])
    Convert.Config(source=str(tmp_path / "source"), out=str(tmp_path / "ours"), to="dcp").build().run()
    Convert.Config(source=str(tmp_path / "ours"), out=str(tmp_path / "back"), to="diffusers").build().run()
    there = (tmp_path / "source/transformer" / WEIGHTS).read_bytes()
    assert (tmp_path / "back" / WEIGHTS).read_bytes() == there
    said = FluxTransformer2DModel.load_config(tmp_path / "back")
    assert said == {name: config[name] for name in said}


def test_adapters_load_into_the_pipeline_and_answer_alike(world: Path, run: Path) -> None:
    own = load_model(run)
    config = tiny_flux.tiny_config(world)
    first = Trainer(config, run_folder=world / "first").model.network
    before = answer(first)
    assert not torch.allclose(before, answer(own.network), atol=1e-4)
    pipeline = FluxPipeline.from_pretrained(world / "out", transformer=first)
    pipeline.load_lora_weights(run / "export_adapter")
    torch.testing.assert_close(answer(pipeline.transformer.eval()), answer(own.network), atol=1e-5, rtol=1e-5)
    pipeline.unload_lora_weights()
    assert torch.equal(answer(first), before)
    by_peft = PeftModel.from_pretrained(first, run / "export_adapter").base_model.model
    torch.testing.assert_close(answer(by_peft.eval()), answer(own.network), atol=1e-5, rtol=1e-5)
