"""A trained CogVideoX as a diffusers pipeline: the same weights, answers and noise table, and a start of other runs."""

from __future__ import annotations

import copy
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import sat_network
import tiny_cogvideox
import torch
from diffusers import (
    CogVideoXDDIMScheduler,
    CogVideoXDPMScheduler,
    CogVideoXImageToVideoPipeline,
    CogVideoXPipeline,
)
from peft import PeftModel, get_peft_model_state_dict

from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.checkpoint.sources.warm_start import load_weights
from worldsmith.config.errors import UserError
from worldsmith.families.cogvideox.architecture import ImageConfig, cogvideox1_5_5b, cogvideox_5b
from worldsmith.families.cogvideox.formats import CogVideoXFormats
from worldsmith.families.cogvideox.model import CogVideoXGenerator
from worldsmith.families.diffusers_pipeline.formats import build_pipeline
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.v_prediction import VPrediction
from worldsmith.tools.export.convert import Convert
from worldsmith.tools.export.export import Export
from worldsmith.training.trainer import Trainer

FAMILY = CogVideoXFormats("cogvideox")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_cogvideox.make_world(tmp_path_factory.mktemp("cogvideox"))


def train_and_export(world: Path, folder: Path, recipe: str, **model: Any) -> Path:
    config = tiny_cogvideox.tiny_config(world, recipe, steps=2)
    for name, value in model.items():
        setattr(config.model.config, name, value)
    config.model.config.tokenizer.scaling_factor = 1.25
    Trainer(config, run_folder=folder / "run").train()
    Export.Config(model=str(folder / "run"), dtype="float32", out=str(folder / "out")).build().run()
    return folder / "out"


@torch.no_grad()
def answer(network: Any, rotary: Any) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    video, text = torch.randn(2, 3, 4, 8, 8, generator=draw), torch.randn(2, 16, 32, generator=draw)
    out: torch.Tensor = network(video, text, torch.tensor([3, 800]), image_rotary_emb=rotary).sample
    return out


@pytest.mark.parametrize(
    ("recipe", "adapters"),
    [("cogvideox_2b_tiny", False), pytest.param("cogvideox_5b_tiny", True, marks=pytest.mark.slow)],
    ids=["2b", "5b adapters"],
)
def test_the_pipeline_loads_and_answers_alike(world: Path, tmp_path: Path, recipe: str, adapters: bool) -> None:
    changes: dict[str, Any] = {"lora_enabled": True, "lora_rank": 4} if adapters else {}
    out = train_and_export(world, tmp_path, recipe, **changes)
    pipeline = CogVideoXPipeline.from_pretrained(out)
    own = load_model(tmp_path / "run")
    rotary = own.rotary((3, 8, 8))
    assert torch.equal(answer(pipeline.transformer, rotary), answer(own.network, rotary))
    assert pipeline.vae.config.scaling_factor == 1.25
    assert isinstance(pipeline.scheduler, CogVideoXDPMScheduler if adapters else CogVideoXDDIMScheduler)
    table = VPrediction(VPrediction.Config(shift_scale=1.0 if "5b" in recipe else 3.0)).alphas_cumprod
    torch.testing.assert_close(pipeline.scheduler.alphas_cumprod, table, atol=1e-12, rtol=0)
    pipeline.set_progress_bar_config(disable=True)
    drawn = pipeline(
        "a clip moves", height=64, width=64, num_frames=9, num_inference_steps=2, max_sequence_length=16,
        output_type="latent",
    ).frames  # fmt: skip
    assert drawn.isfinite().all()

    again = find_model(out)
    told = replace(own.defaults, height=64, width=64, num_frames=9, fps=8.0)
    assert (again.config.tokenizer.vae_path, again.defaults) == (str(out), told)
    read = again.load()
    assert torch.equal(answer(read.network, rotary), answer(own.network, rotary))
    if adapters:
        load_beside(world, own, tmp_path)
    else:
        start_from(world, out, own, tmp_path)


def load_beside(world: Path, own: Any, folder: Path) -> None:
    """The adapters alone, loaded by diffusers and by PEFT on the weights that the run started from."""
    Export.Config(model=str(folder / "run"), dtype="float32", format="adapter").build().run()
    config, rotary = tiny_cogvideox.tiny_config(world, "cogvideox_5b_tiny"), own.rotary((3, 8, 8))
    first = Trainer(config, run_folder=folder / "first").model.network
    by_peft = PeftModel.from_pretrained(copy.deepcopy(first), folder / "run/export_adapter")
    by_diffusers = copy.deepcopy(first)
    name = "adapter_model.safetensors"
    by_diffusers.load_lora_adapter(folder / "run/export_adapter", prefix="base_model.model", weight_name=name)
    assert not torch.allclose(answer(first, rotary), answer(own.network, rotary), atol=1e-4)
    for network in (by_peft.base_model.model, by_diffusers):
        torch.testing.assert_close(answer(network.eval(), rotary), answer(own.network, rotary), atol=1e-5, rtol=1e-5)
    load_as_a_pipeline_does(first, own, folder)
    carry_to_sat(own, folder)


def load_as_a_pipeline_does(first: Any, own: Any, folder: Path) -> None:
    """`load_lora_weights`, and files of that kind read back: of ours, and of a trainer that does not say alpha."""
    rotary, written = own.rotary((3, 8, 8)), folder / "run/export_adapter"
    told = answer(own.network, rotary)
    pipeline = CogVideoXPipeline.from_pretrained(folder / "out", transformer=copy.deepcopy(first))
    pipeline.load_lora_weights(written)
    torch.testing.assert_close(answer(pipeline.transformer.eval(), rotary), told, atol=1e-5, rtol=1e-5)
    alone = folder / "alone"
    alone.mkdir()
    shutil.copy(written / "pytorch_lora_weights.safetensors", alone)
    network = copy.deepcopy(first)
    formats_of("cogvideox").load_adapter(network, alone)
    torch.testing.assert_close(answer(network.eval(), rotary), told, atol=1e-5, rtol=1e-5)

    layers = get_peft_model_state_dict(pipeline.transformer, adapter_name="default_0")
    CogVideoXPipeline.save_lora_weights(folder / "silent", transformer_lora_layers=layers)
    with pytest.raises(UserError, match="does not state the alpha of its adapters"):
        formats_of("cogvideox").read_adapter(folder / "silent")
    source = str(folder / "silent/pytorch_lora_weights.safetensors")
    said = Convert.Config(source=source, out=str(folder / "told"), to="adapter", lora_alpha=64).build().run()
    assert said.lines[0] == "8 layers of a cogvideox network, rank 4, alpha 64"
    ours = formats_of("cogvideox").read_adapter(written)
    read = formats_of("cogvideox").read_adapter(folder / "told")
    assert (read.alpha, read.rank, read.layers) == (64, ours.rank, ours.layers)
    assert all(torch.equal(tensor, ours.weights[name]) for name, tensor in read.weights.items())


def carry_to_sat(own: Any, folder: Path) -> None:
    """The run for SAT with its adapters, whose own arithmetic gives the same; and the adapters back out of that."""
    out, config = folder / "for_sat", find_model(folder / "run").config
    run = str(folder / "run")
    Export.Config(model=run, format="sat", merge=False, dtype="float32", out=str(out)).build().run()
    assert f"r: 4, lora_alpha: {config.lora_alpha}" in (out / "README.md").read_text()
    state = torch.load(out / "2/mp_rank_00_model_states.pt", weights_only=True)["module"]
    draw = torch.Generator().manual_seed(0)
    video, text = torch.randn(2, 3, 4, 8, 8, generator=draw), torch.randn(2, 16, 32, generator=draw)
    merged = sat_network.merged(state, config.lora_alpha / 4)
    told = sat_network.sat_answer(merged, video, text, torch.tensor([3, 800]), eps=1e-5)
    torch.testing.assert_close(told, answer(own.network, own.rotary((3, 8, 8))), atol=1e-5, rtol=1e-5)
    alpha = config.lora_alpha
    Convert.Config(source=str(out), out=str(folder / "back"), to="adapter", lora_alpha=alpha).build().run()
    first, last = (formats_of("cogvideox").read_adapter(folder / place) for place in ("run/export_adapter", "back"))
    assert (first.alpha, first.rank) == (last.alpha, last.rank)
    assert all(torch.equal(tensor, last.weights[name]) for name, tensor in first.weights.items())


def start_from(world: Path, out: Path, own: Any, folder: Path) -> None:
    config = tiny_cogvideox.tiny_config(world, steps=1)
    config.checkpoint.load_path = str(out)
    started = native_parameters(Trainer(config, run_folder=folder / "next").model.network)
    for name, parameter in native_parameters(own.network).items():
        assert torch.equal(started[name], parameter), name
    config.model.config.network.use_rotary_positional_embeddings = True
    with pytest.raises(
        UserError, match="use_rotary_positional_embeddings is False in the weights and True in the config"
    ):
        Trainer(config, run_folder=folder / "other")


@pytest.mark.parametrize("recipe", ["cogvideox_5b_i2v_tiny", "cogvideox1_5_5b_i2v_tiny"])
def test_an_image_to_video_pipeline_goes_out_and_comes_back(world: Path, tmp_path: Path, recipe: str) -> None:
    config: Any = tiny_cogvideox.tiny_config(world, recipe).model.config
    own = CogVideoXGenerator(config, seed=3)
    config.image.latent_scale = 1 / 0.7
    pipeline = build_pipeline(FAMILY, own, native_parameters(own.network), "float32")
    pipeline.save_pretrained(tmp_path / "out")
    read = CogVideoXImageToVideoPipeline.from_pretrained(tmp_path / "out")
    assert read.vae.config.invert_scale_latents
    stored = read.transformer.state_dict()
    assert stored.keys() == native_parameters(own.network).keys()
    assert all(torch.equal(stored[name], p) for name, p in native_parameters(own.network).items())
    read.set_progress_bar_config(disable=True)
    drawn = read(
        torch.zeros(1, 3, 64, 64), "a clip moves", height=64, width=64, num_frames=9, num_inference_steps=1,
        max_sequence_length=16, output_type="latent",
    ).frames  # fmt: skip
    assert drawn.isfinite().all()

    again = find_model(tmp_path / "out")
    assert again.config.image == ImageConfig()
    assert asdict(again.config.network) == asdict(config.network)
    loaded = again.load(full_precision=True)
    assert loaded.vae.image_scaling_factor == pytest.approx(1 / 0.7)
    for name, parameter in native_parameters(loaded.network).items():
        assert torch.equal(parameter, native_parameters(own.network)[name]), name
    config.image.latent_scale = 1.0
    with pytest.raises(ValueError, match=r"latent_scale = 1: .* by 0.7 or 1.42857"):
        build_pipeline(FAMILY, own, native_parameters(own.network), "float32")
    config.image.repeat = True
    with pytest.raises(ValueError, match="repeat = true"):
        FAMILY.check_exportable(config)


def test_weights_with_a_learned_table_start_a_run_without_it(world: Path, tmp_path: Path) -> None:
    config: Any = tiny_cogvideox.tiny_config(world, "cogvideox_5b_i2v_tiny").model.config
    own = CogVideoXGenerator(config, seed=3)
    own.library_class().save_pretrained(own.network, tmp_path)
    config.network.use_learned_positional_embeddings = False
    model = CogVideoXGenerator(config, seed=4)
    tensors = {f"net.{name}": p.detach() for name, p in native_parameters(model.network).items()}
    report = load_weights(str(tmp_path), tensors, spec=ModelSpec(name="cogvideox", config=config))
    assert report.unexpected == ["net.patch_embed.pos_embedding"]
    assert report.notes == ["use_learned_positional_embeddings is True in the weights and False in the config"]
    name = "transformer_blocks.0.attn1.to_q.weight"
    assert torch.equal(native_parameters(model.network)[name], native_parameters(own.network)[name])


def test_published_folders_make_videos_of_the_size_and_rate_of_their_training(tmp_path: Path) -> None:
    found = [FAMILY.published_defaults(CogVideoXGenerator.Config(network=network), tmp_path) for network in
             (cogvideox_5b(), cogvideox1_5_5b())]  # fmt: skip
    assert [(d.height, d.width, d.num_frames, d.fps) for d in found] == [(480, 720, 49, 8), (768, 1360, 81, 16)]


def test_a_folder_of_diffusers_is_read_under_its_own_names(tmp_path: Path) -> None:
    from diffusers import CogVideoXTransformer3DModel

    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "time_embed_dim": 8}
    network = CogVideoXTransformer3DModel(**sizes, use_rotary_positional_embeddings=True, sample_width=8)
    network.save_pretrained(tmp_path / "transformer")
    source = open_weights(tmp_path)
    assert (source.family, source.unknown) == ("cogvideox", [])
    assert source.shapes.keys() == dict(network.named_parameters()).keys()
    assert {name: source.settings[name] for name in sizes} == sizes


def test_names_of_other_families_are_left_to_them() -> None:
    known = formats_of("cogvideox")
    assert known.find_naming(["model.net.language_model.lm_head.weight"], {}) is None
    marks = type(known).marks  # type: ignore[attr-defined]
    native = [f"model.net.{name}" for name in marks]
    naming = known.find_naming(native, {})
    assert naming is not None
    assert dict(naming.keys) == dict(zip(marks, native, strict=True))
