"""Wan's component against diffusers: counts and names of every size, rotary tables, texts, and what is refused."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import tiny_wan
import torch
from torch import nn

from worldsmith.config import WrongValueError
from worldsmith.families.diffusers_pipeline.text_encoder import UMT5TextEncoder, read_caption
from worldsmith.families.wan.architecture import (
    NetworkConfig,
    tiny,
    wan21_1b,
    wan21_i2v_14b,
    wan22_5b,
    wan22_i2v_14b,
    wan_14b,
)
from worldsmith.families.wan.image_encoder import WanImageEncoder
from worldsmith.families.wan.model import WanGenerator, pipeline_part_name

CLIP = replace(tiny(), in_channels=12, image_dim=8, added_kv_proj_dim=24)
CLIP_ENCODER, SHORT = WanImageEncoder.Config(path="pipeline"), UMT5TextEncoder.Config(max_length=16)
SIZES = {
    "1.3B": (wan21_1b, 1_418_996_800),
    "14B": (wan_14b, 14_288_491_584),
    "I2V A14B": (wan22_i2v_14b, 14_288_901_184),
    "I2V 14B": (wan21_i2v_14b, 16_394_878_784),
    "5B": (wan22_5b, 4_999_787_712),
    "tiny": (tiny, 21_784),
}


@pytest.mark.parametrize("size", SIZES)
def test_counts_and_names_are_those_of_the_network(size: str) -> None:
    from diffusers import WanTransformer3DModel

    make, count = SIZES[size]
    network = make()
    with torch.device("meta"):
        judge = WanTransformer3DModel(**asdict(network))
    config = WanGenerator.Config(network=network)
    config.image_encoder.path = "pipeline" if network.image_dim else ""
    own = WanGenerator(config, device="meta").network
    assert config.count_parameters() == count
    assert {name: p.shape for name, p in own.named_parameters()} == {n: p.shape for n, p in judge.named_parameters()}
    assert sum(p.numel() for p in judge.parameters()) == count
    assert set(config.adaptable_layers() or ()) == {
        name for name, m in judge.named_modules() if isinstance(m, nn.Linear)
    }


def test_rotary_tables_are_computed_and_first_values_depend_on_seed_and_name() -> None:
    from diffusers import WanTransformer3DModel

    model, judge = WanGenerator(WanGenerator.Config(network=tiny()), seed=1), WanTransformer3DModel(**asdict(tiny()))
    model.cast(torch.bfloat16)
    model.materialize("cpu")
    assert torch.equal(model.network.rope.freqs_cos, judge.rope.freqs_cos)
    assert torch.equal(model.network.rope.freqs_sin, judge.rope.freqs_sin)
    assert model.network.condition_embedder.time_embedder.linear_1.weight.dtype == torch.float32
    model.init_weights(1)
    table = model.network.blocks[1].scale_shift_table.float()
    assert float(table.detach().std()) == pytest.approx(24**-0.5, rel=0.3)
    assert not torch.equal(table, model.network.blocks[0].scale_shift_table.float())


def test_texts_are_masked_and_zeros_behind_them(tmp_path: Path) -> None:
    tiny_wan.make_parts(tmp_path)
    encoder = UMT5TextEncoder(UMT5TextEncoder.Config(path=str(tmp_path), max_length=16, precision="float32"))
    ids = read_caption(encoder.tokenizer, "a clip")
    found = encoder.states([ids], "cpu")[0]
    judge = encoder.tokenizer("a clip", padding="max_length", max_length=16, return_tensors="pt")
    with torch.no_grad():
        wanted = encoder.encoder(judge.input_ids, judge.attention_mask)[0][0]
    torch.testing.assert_close(found[: len(ids)], wanted[: len(ids)])
    assert found[: len(ids)].abs().max() > 0
    assert not found[len(ids) :].any()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"network": CLIP}, "image_encoder.path"),
        ({"network": CLIP, "image_encoder": CLIP_ENCODER, "text_encoder": SHORT}, "512"),
        ({"network": replace(CLIP, added_kv_proj_dim=8)}, "added_kv_proj_dim"),
        ({"network": replace(CLIP, pos_embed_seq_len=8)}, "pos_embed_seq_len"),
        ({"network": replace(tiny(), in_channels=7)}, "in_channels"),
        ({"network": replace(tiny(), patch_size=[2, 2, 2])}, "patch_size"),
        ({"expert": "low_noise"}, "boundary_ratio"),
        ({"pipeline": "somewhere"}, "two experts"),
        ({"expand_timesteps": True, "network": replace(tiny(), in_channels=12)}, "expand_timesteps"),
        ({"expand_timesteps": True, "expert": "low_noise", "boundary_ratio": 0.9, "pipeline": "x"}, "expand_timesteps"),
    ],
    ids=[
        "clip",
        "clip and text",
        "clip's channels",
        "two images",
        "channels",
        "patch",
        "expert",
        "pipeline",
        "timesteps",
        "timesteps of an expert",
    ],
)
def test_what_does_not_go_together_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    fields: dict[str, Any] = {"network": tiny(), **change}
    config = WanGenerator.Config(**fields)

    def check() -> None:
        config.network.check()
        config.check()

    with pytest.raises(WrongValueError, match=named):
        check()


def test_the_default_network_is_the_largest_and_parts_of_pipelines_have_names(tmp_path: Path) -> None:
    assert NetworkConfig() == wan_14b()
    assert pipeline_part_name(str(tmp_path), "transformer_2") == f"{tmp_path}/transformer_2"
    assert pipeline_part_name("Wan-AI/Wan2.2@main", "transformer_2") == "hf://Wan-AI/Wan2.2@main/transformer_2"
    assert pipeline_part_name("Wan2.2-T2V-A14B", "transformer") == "hf://Wan-AI/Wan2.2-T2V-A14B-Diffusers/transformer"
