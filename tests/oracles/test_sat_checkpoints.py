"""SAT's checkpoints of CogVideoX: what they compute under diffusers' names, and the way back, byte for byte."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import sat_network
import tiny_cogvideox
import torch
from diffusers import CogVideoXPipeline, CogVideoXTransformer3DModel
from peft import LoraConfig, get_peft_model_state_dict
from safetensors.torch import load_file
from sat_network import PREFIX, TINY, VARIANTS, draw_inputs, merged, sat_answer, sat_state, save_sat
from torch import Tensor

from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.families.cogvideox.sat_keys import locate_tensors, sat_keys
from worldsmith.models.video_vae.cogvideox import read_pt
from worldsmith.tools.export.convert import Convert, convert
from worldsmith.training.trainer import Trainer

LEARNED = "patch_embed.pos_embedding"


def tiny(folder: Path, variant: str, *, lora: int = 0, **more: Any) -> tuple[Path, dict[str, Tensor]]:
    state = sat_state(variant, lora=lora)
    save_sat(folder, state, **more)
    (folder / "config.json").write_text(json.dumps({**TINY, **VARIANTS[variant]}))
    return folder, state


def stored(folder: Path) -> dict[str, Tensor]:
    file = folder / (folder / "latest").read_text() / "mp_rank_00_model_states.pt"
    module: dict[str, Tensor] = torch.load(file, weights_only=True)["module"]
    return module


@torch.no_grad()
def answer(network: Any, variant: str) -> Tensor:
    video, text, steps = draw_inputs(variant)
    angles = sat_network.rotary_angles(2 if "1.5" in variant else 3)
    rotary = None if variant == "2b" else (angles.cos(), angles.sin())
    ofs = torch.full((1,), 2.0) if variant == "1.5_i2v" else None
    out: Tensor = network(video, text, steps, ofs=ofs, image_rotary_emb=rotary).sample
    return out


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_sat_computes_is_what_diffusers_computes(tmp_path: Path, variant: str) -> None:
    folder, state = tiny(tmp_path / "sat", variant)
    convert(str(folder), tmp_path / "out", to="diffusers")
    network = CogVideoXTransformer3DModel.from_pretrained(tmp_path / "out")
    if variant == "5b_i2v":
        assert torch.equal(network.patch_embed.pos_embedding, state[f"{PREFIX}mixins.pos_embed.pos_embedding"])
    told = answer(network, variant)
    inputs = draw_inputs(variant)
    torch.testing.assert_close(told, sat_answer(state, *inputs, eps=1e-5), atol=1e-5, rtol=1e-5)
    apart = (told - sat_answer(state, *inputs)).abs().max()  # the last norm has another epsilon in SAT
    assert 1e-7 < apart < 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("lora", [0, 4])
def test_the_way_there_and_back_keeps_every_byte(tmp_path: Path, variant: str, lora: int) -> None:
    folder, state = tiny(tmp_path / "sat", variant, lora=lora)
    convert(str(folder), tmp_path / "again", to="sat")
    back = stored(tmp_path / "again")
    computed = {name for name in back if "pos_embed" in name and not (variant == "5b_i2v" and "pos_embedding" in name)}
    assert back.keys() == state.keys()
    for name, tensor in state.items():
        if name in computed:
            torch.testing.assert_close(back[name], tensor, atol=1e-6, rtol=0)
        else:
            assert torch.equal(back[name], tensor), name


def test_diffusers_weights_come_back_from_sat(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = CogVideoXTransformer3DModel(**{**TINY, **VARIANTS["1.5_i2v"]})
    network.to(torch.bfloat16).save_pretrained(tmp_path / "transformer")
    convert(str(tmp_path / "transformer"), tmp_path / "sat", to="sat")
    convert(str(tmp_path / "sat"), tmp_path / "back", to="diffusers")
    first, last = (tmp_path / name / "diffusion_pytorch_model.safetensors" for name in ("transformer", "back"))
    before, after = load_file(first), load_file(last)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)


def test_a_checkpoint_of_ours_is_held_against_its_checksum(tmp_path: Path) -> None:
    folder, _ = tiny(tmp_path / "sat", "5b")
    convert(str(folder), tmp_path / "ours", to="sat")
    written = tmp_path / "ours/release/mp_rank_00_model_states.pt"
    content = bytearray(written.read_bytes())
    content[len(content) // 2] ^= 1
    written.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        open_weights(tmp_path / "ours")


def test_adapters_are_merged_with_the_scale_of_sat(tmp_path: Path) -> None:
    folder, state = tiny(tmp_path / "sat", "5b", lora=4)
    convert(str(folder), tmp_path / "out", to="diffusers")
    network = CogVideoXTransformer3DModel.from_pretrained(tmp_path / "out")
    inputs = draw_inputs("5b")
    torch.testing.assert_close(
        answer(network, "5b"), sat_answer(merged(state, 1 / 4), *inputs, eps=1e-5), atol=1e-5, rtol=1e-5
    )


def test_a_full_state_and_an_average_are_told_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = sat_state("2b")
    full = {
        **state,
        "conditioner.embedders.0.transformer.shared.weight": torch.zeros(2),
        **{f"first_stage_model.encoder.{n}": torch.zeros(2) for n in "ab"},
        "stranger": torch.zeros(2),
    }
    save_sat(tmp_path, full, average=sat_state("2b", seed=1))
    source = open_weights(tmp_path)
    assert "1 tensors of the text encoder, 2 tensors of the VAE" in caplog.text
    assert source.unknown == ["stranger"]
    assert source.shapes.keys() == source.average_shapes.keys()
    name = "transformer_blocks.1.attn1.to_k.bias"
    key = f"{PREFIX}transformer.layers.1.attention.query_key_value.bias"
    assert torch.equal(source.read(name), state[key][32:64])
    assert torch.equal(source.read(name, average=True), sat_state("2b", seed=1)[key][32:64])
    assert (source.dtype(name), source.settings["num_layers"]) == (torch.float32, 2)


SIZES: dict[str, tuple[dict[str, Any], int]] = {
    "2b": ({}, 557),
    "5b": ({"use_rotary_positional_embeddings": True}, 774),
    "5b_i2v": (
        {"in_channels": 32, "use_rotary_positional_embeddings": True, "use_learned_positional_embeddings": True},
        775,
    ),
    "1.5": ({"patch_size_t": 2, "patch_bias": False, "use_rotary_positional_embeddings": True}, 772),
    "1.5_i2v": (
        {"in_channels": 32, "patch_size_t": 2, "patch_bias": False, "use_rotary_positional_embeddings": True,
         "ofs_embed_dim": 512},
        776,
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_names_and_numbers_of_the_published_sizes(size: str) -> None:
    more, tensors = SIZES[size]
    large = {} if size == "2b" else {"num_attention_heads": 48, "num_layers": 42}
    with torch.device("meta"):
        network = CogVideoXTransformer3DModel(**large, **more)
    names = [name for name, _ in network.named_parameters()] + [LEARNED] * (size == "5b_i2v")
    keys = sat_keys(names)
    fixed = {"2b": 1, "5b": 2, "5b_i2v": 2}.get(size, 0)  # the sine table; the rotary angles
    assert len(keys) + fixed == tensors
    assert locate_tensors(keys).keys() == set(names)
    matrices = [
        f"transformer_blocks.{block}.attn1.{layer}.lora_{matrix}.weight"
        for block in range(len(network.transformer_blocks))
        for layer in ("to_q", "to_k", "to_v", "to_out.0")
        for matrix in "AB"
    ]
    adapted = sat_keys(names + matrices)
    assert sum(".matrix_" in key for key in adapted) == len(matrices) == (240 if size == "2b" else 336)
    assert len(adapted) == len(keys) + len(matrices)
    assert locate_tensors(adapted).keys() == {*names, *matrices}


def test_a_run_starts_from_a_checkpoint_of_sat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = sat_state("5b", lora=4)
    config = tiny_cogvideox.tiny_config(tiny_cogvideox.make_world(tmp_path), "cogvideox_5b_tiny", steps=1)
    config.checkpoint.load_path = str(save_sat(tmp_path / "sat", state))
    config.model.config.lora_enabled, config.model.config.lora_rank, config.model.config.lora_alpha = True, 4, 1
    network = Trainer(config, run_folder=tmp_path / "run").model.network
    inputs = draw_inputs("5b")
    told = sat_answer(merged(state, 1 / 4), *inputs, eps=1e-5)
    torch.testing.assert_close(answer(network, "5b"), told, atol=1e-5, rtol=1e-5)
    assert "adapters of rank 4; SAT scales them by lora_alpha / 4, where lora_alpha is 1" in caplog.text


def test_the_command_converts_both_ways(tmp_path: Path) -> None:
    folder, state = tiny(tmp_path / "sat", "5b", lora=4)
    said = Convert.Config(source=str(folder), out=str(tmp_path / "base"), to="native", lora_alpha=8).build().run()
    assert "with its adapters merged" in said.lines[0]
    tiny_cogvideox.make_parts(tmp_path / "pipeline")
    vae = str(tmp_path / "pipeline")
    Convert.Config(source=str(tmp_path / "base"), out=str(tmp_path / "back"), to="sat", vae=vae).build().run()
    written = read_pt(tmp_path / "back/vae/3d-vae.pt")
    of_folder = load_file(tmp_path / "pipeline/vae/diffusion_pytorch_model.safetensors")
    assert written.keys() == of_folder.keys()
    assert all(torch.equal(tensor, of_folder[name]) for name, tensor in written.items())
    expected = merged(state, 2)
    assert all(torch.allclose(tensor, expected[name], atol=1e-6) for name, tensor in stored(tmp_path / "back").items())


def test_the_commands_of_the_guide_about_checkpoints_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that convert; a run is exported in the tests of exports."""
    monkeypatch.chdir(tmp_path)
    tiny(tmp_path / "ckpts_5b_lora/lora-disney", "5b", lora=4)
    tiny_cogvideox.make_parts(tmp_path / "CogVideoX-5b")
    CogVideoXTransformer3DModel(**{**TINY, **VARIANTS["5b"]}).save_pretrained("CogVideoX-5b/transformer")
    network = CogVideoXTransformer3DModel(**{**TINY, **VARIANTS["5b"]})
    network.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_k", "to_v", "to_out.0"], init_lora_weights=False))
    CogVideoXPipeline.save_lora_weights("lora", transformer_lora_layers=get_peft_model_state_dict(network))
    guide = (Path(__file__).parents[2] / "docs/from_cogvideo.md").read_text().partition("## Checkpoints")[2]
    commands = [line.partition("  #")[0] for line in re.findall(r"^worldsmith (convert .*)", guide, re.M)]
    assert len(commands) == 4
    for number, command in enumerate(commands):
        words = shlex.split(command)
        words[words.index("-o") + 1] += str(number)
        assert main(words) == 0


def test_adapters_elsewhere_have_no_place_in_sat() -> None:
    matrices = [f"transformer_blocks.0.attn1.to_out.0.lora_{matrix}.weight" for matrix in "AB"]
    with pytest.raises(ValueError, match=r"to_q, to_k, to_v and to_out\.0 of every block"):
        sat_keys(matrices)
    with pytest.raises(ValueError, match=r"1 of 1 tensors have no equivalent .* stranger"):
        sat_keys(["stranger"])


@pytest.mark.parametrize(
    ("latest", "said"),
    [("12x", "expected an iteration number or 'release', found '12x'"), ("7", "names 7, but")],
)
def test_a_folder_that_is_not_whole(tmp_path: Path, latest: str, said: str) -> None:
    save_sat(tmp_path, sat_state("2b"))
    (tmp_path / "latest").write_text(latest)
    with pytest.raises(UserError, match=said):
        open_weights(tmp_path)


def test_weights_cut_among_processes_code_and_other_networks_are_refused(tmp_path: Path) -> None:
    folder = save_sat(tmp_path / "cut", sat_state("2b"))
    (folder / "1000/mp_rank_01_model_states.pt").touch()
    with pytest.raises(UserError, match="split into several files"):
        open_weights(folder)
    with pytest.raises(UserError, match="contains more than tensors"):
        open_weights(save_sat(tmp_path / "code", sat_state("2b"), code=Path("x")))
    with pytest.raises(UserError, match="expected the tensors of a CogVideoX network"):
        open_weights(save_sat(tmp_path / "other", {"a": torch.zeros(1)}))
    (folder / "1000/mp_rank_01_model_states.pt").unlink()
    file = folder / "1000/mp_rank_00_model_states.pt"
    assert open_weights(file).shapes == open_weights(folder).shapes
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(UserError, match="cannot be read as PyTorch weights"):
        open_weights(folder)
