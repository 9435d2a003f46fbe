"""CogVideoX's component against diffusers: counts, layers, first values, position tables, moments and texts."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import tiny_cogvideox
import torch
from torch import nn

from worldsmith.families.cogvideox.architecture import (
    ImageConfig,
    NetworkConfig,
    cogvideox1_5_5b,
    cogvideox1_5_5b_i2v,
    cogvideox_2b,
    cogvideox_5b,
    cogvideox_5b_i2v,
    tiny,
)
from worldsmith.families.cogvideox.model import CogVideoXGenerator
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder, read_caption
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE

LATER = {"patch_size_t": 2, "patch_bias": False, "use_rotary_positional_embeddings": True, "sample_frames": 13}
VARIANTS: dict[str, tuple[dict[str, Any], int]] = {
    "2b": ({}, 35_616),
    "5b": ({"use_rotary_positional_embeddings": True}, 35_616),
    "images": (
        {"in_channels": 8, "use_rotary_positional_embeddings": True, "use_learned_positional_embeddings": True},
        36_128 + 64 * 32,
    ),
    "1.5": (LATER, 36_656),
    "1.5 images": ({**LATER, "in_channels": 8, "ofs_embed_dim": 8}, 37_824),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    tiny_cogvideox.make_parts(folder)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_and_layers_are_those_of_the_network(variant: str) -> None:
    fields, count = VARIANTS[variant]
    network = tiny_cogvideox.network_of(**fields)
    config = config_of(network)
    made = CogVideoXGenerator(config, device="meta").network
    assert config.count_parameters() == sum(parameter.numel() for parameter in made.parameters()) == count
    linear = {name for name, module in made.named_modules() if isinstance(module, nn.Linear)}
    assert set(config.adaptable_layers() or ()) == linear
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float32}


def config_of(network: NetworkConfig) -> CogVideoXGenerator.Config:
    image = ImageConfig() if network.in_channels > network.out_channels else None
    return CogVideoXGenerator.Config(network=network, text_encoder=short(), image=image)


def short() -> T5TextEncoder.Config:
    return T5TextEncoder.Config(max_length=16)


def test_a_learned_table_is_trained_with_all_weights_and_stays_below_adapters() -> None:
    fields, _ = VARIANTS["images"]
    config = config_of(tiny_cogvideox.network_of(**fields))
    whole = CogVideoXGenerator(config, device="meta").network
    assert whole.get_parameter("patch_embed.pos_embedding").requires_grad
    config.lora_enabled = True
    adapted = CogVideoXGenerator(config, device="meta").network
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(trained) == 8 * config.network.num_layers
    assert all(".attn1.to_" in name and "lora_" in name for name in trained)


def test_counts_of_the_released_networks() -> None:
    networks = [cogvideox_2b(), cogvideox_5b(), cogvideox_5b_i2v(), cogvideox1_5_5b(), cogvideox1_5_5b_i2v()]
    assert [sum(map(prod, network.shapes().values())) for network in networks] == [
        1_693_783_872, 5_570_283_072, 5_570_479_680 + 54_607_872, 5_570_676_352, 5_571_594_880,
    ]  # fmt: skip


RELEASED = {"i2v": cogvideox_5b_i2v, "1.5 i2v": cogvideox1_5_5b_i2v}


@pytest.mark.parametrize("name", RELEASED)
def test_the_released_networks_have_diffusers_names_and_sizes(name: str) -> None:
    from diffusers import CogVideoXTransformer3DModel

    network = RELEASED[name]()
    config = config_of(network)
    config.text_encoder.max_length = network.max_text_seq_length
    if network.sample_height == 300:  # diffusers makes the grid's table, which these do not use
        network = config.network = replace(network, sample_height=96, sample_width=170)
    made = CogVideoXGenerator(config, device="meta").network
    with torch.device("meta"):
        judge = CogVideoXTransformer3DModel(**asdict(network))
    assert {name: p.shape for name, p in made.named_parameters()} == {n: t.shape for n, t in judge.state_dict().items()}
    assert sum(p.numel() for p in made.parameters()) == config.count_parameters()


def test_first_values_depend_on_seed_and_name_and_the_position_table_is_computed() -> None:
    from diffusers import CogVideoXTransformer3DModel

    config = CogVideoXGenerator.Config(network=tiny(), text_encoder=short())
    model = CogVideoXGenerator(config, seed=1)
    before = {name: p.detach().clone() for name, p in model.network.named_parameters()}
    assert all(bool(value.isfinite().all()) for value in before.values())
    name = "transformer_blocks.1.attn1.to_q.weight"
    with torch.no_grad():
        model.network.get_parameter(name).zero_()
    model.init_weights(1, [name])
    assert torch.equal(model.network.get_parameter(name), before[name])
    other = CogVideoXGenerator(config, seed=2).network.get_parameter(name)
    assert not torch.equal(other, before[name])
    with pytest.raises(ValueError, match="no parameter nothing"):
        model.init_weights(1, ["nothing"])
    judge = CogVideoXTransformer3DModel(**asdict(tiny()))
    assert torch.equal(model.network.patch_embed.pos_embedding, judge.patch_embed.pos_embedding)


@pytest.mark.parametrize("variant", ["5b", "1.5"])
@pytest.mark.parametrize("shape", [(4, 8, 8), (2, 8, 12), (2, 4, 8)])
def test_rotary_positions_are_those_of_the_pipeline(shape: tuple[int, int, int], variant: str) -> None:
    from diffusers import CogVideoXPipeline

    network = tiny_cogvideox.network_of(**VARIANTS[variant][0], sample_width=12)
    model = CogVideoXGenerator(config_of(network), device="meta")
    model.device = torch.device("cpu")
    pipeline = CogVideoXPipeline(None, None, None, model.network, None)
    pipeline.vae_scale_factor_spatial = 8
    frames, height, width = shape
    judge = pipeline._prepare_rotary_positional_embeddings(8 * height, 8 * width, frames, "cpu")
    for own, wanted in zip(model.rotary(shape) or (), judge, strict=True):
        assert torch.equal(own, wanted)


def test_moments_are_those_of_diffusers_and_the_scale_is_outside_of_them(parts: Path) -> None:
    from diffusers import AutoencoderKLCogVideoX

    vae = CogVideoXVAE(CogVideoXVAE.Config(vae_path=str(parts), precision="float32"))
    judge = AutoencoderKLCogVideoX.from_pretrained(parts / "vae")
    video = torch.randint(0, 256, (3, 9, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    moments = vae.encode(video)
    with torch.no_grad():
        posterior = judge.encode(video[None].float() / 127.5 - 1).latent_dist
    torch.testing.assert_close(moments, posterior.parameters[0], rtol=1e-5, atol=1e-5)
    assert list(moments.shape) == [8, 3, 8, 8]
    noise = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    drawn = posterior.sample(torch.Generator().manual_seed(1))[0] * 0.7
    torch.testing.assert_close(vae.latents(moments, noise), drawn, rtol=1e-5, atol=1e-5)
    other = CogVideoXVAE(CogVideoXVAE.Config(vae_path=str(parts / "vae"), precision="float32", scaling_factor=1.5))
    assert (other.scaling_factor, other.fingerprint) == (1.5, vae.fingerprint)
    torch.testing.assert_close(other.latents(moments, noise), drawn / 0.7 * 1.5, rtol=1e-5, atol=1e-5)
    half = CogVideoXVAE(CogVideoXVAE.Config(vae_path=str(parts), precision="bfloat16"))
    assert half.fingerprint != vae.fingerprint


def test_texts_are_padded_without_a_mask_and_cut_as_the_tokenizer_cuts(parts: Path) -> None:
    config = T5TextEncoder.Config(path=str(parts), max_length=16, precision="float32")
    encoder = T5TextEncoder(config)
    encoder.load("cpu")
    for caption in ("a clip", "", "a caption that is far longer than sixteen letters"):
        judge = encoder.tokenizer(caption, padding="max_length", max_length=16, truncation=True, return_tensors="pt")
        ids = read_caption(encoder.tokenizer, caption)
        assert encoder.padded(ids) == encoder.padded(ids[:16]) == judge.input_ids[0].tolist()
        with torch.no_grad():
            wanted = encoder.encoder(judge.input_ids)[0]  # as the pipeline: no attention mask
        torch.testing.assert_close(encoder.encode(ids), wanted[0])


def test_a_folder_with_nothing_in_it_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"vae_path.*contains no AutoencoderKLCogVideoX"):
        CogVideoXVAE.Config(vae_path=str(tmp_path)).check_files()
    with pytest.raises(FileNotFoundError, match=r"text_encoder.path.*config.json"):
        T5TextEncoder.Config(path=str(tmp_path)).check_files()
