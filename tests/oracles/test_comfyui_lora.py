"""LoRA files for ComfyUI: the names that ComfyUI has, and the merged weights that it makes of them.

GOLDEN was written down by running the networks, `model_lora_keys_unet`, `load_lora` and `calculate_weight` of ComfyUI
0.33.0 (commit 783545f6, August 2026, fork yzkee/ComfyUI) on files for these networks: no key was left over, and
all merged weights were equal to the bit. diffusers' conversion of single files related its weights to ours, for
CogVideoX a table written by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny_cogvideox
import tiny_flux
import tiny_wan
import torch
from diffusers import CogVideoXPipeline, FluxPipeline, WanPipeline
from safetensors import safe_open
from torch import Tensor

from worldsmith.checkpoint.formats.export_weights import exports_of
from worldsmith.checkpoint.formats.family_formats import ExportOptions, formats_of
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.formats.lora_file import comfyui_tensors
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.models.lora import adapter_state, inject_adapters, merge_adapters
from worldsmith.models.parameter_names import native_parameters
from worldsmith.tools.export.export import Export
from worldsmith.training.trainer import Trainer

GOLDEN = {  # layer in the file, layer in diffusers ("=": the same), and a weighted sum of ComfyUI's merged weights
    "wan21_i2v_tiny": """
        diffusion_model.blocks.N.cross_attn.k blocks.N.attn2.to_k 38.7477
        diffusion_model.blocks.N.cross_attn.k_img blocks.N.attn2.add_k_proj 8.9140
        diffusion_model.blocks.N.cross_attn.o blocks.N.attn2.to_out.0 13.5445
        diffusion_model.blocks.N.cross_attn.q blocks.N.attn2.to_q 71.0605
        diffusion_model.blocks.N.cross_attn.v blocks.N.attn2.to_v 22.5403
        diffusion_model.blocks.N.cross_attn.v_img blocks.N.attn2.add_v_proj 60.2681
        diffusion_model.blocks.N.ffn.0 blocks.N.ffn.net.0.proj -8.7396
        diffusion_model.blocks.N.ffn.2 blocks.N.ffn.net.2 -2.1237
        diffusion_model.blocks.N.self_attn.k blocks.N.attn1.to_k 68.4739
        diffusion_model.blocks.N.self_attn.o blocks.N.attn1.to_out.0 10.9803
        diffusion_model.blocks.N.self_attn.q blocks.N.attn1.to_q 45.6191
        diffusion_model.blocks.N.self_attn.v blocks.N.attn1.to_v 56.7534
        diffusion_model.head.head proj_out 16.9348
        diffusion_model.img_emb.proj.1 condition_embedder.image_embedder.ff.net.0.proj -1.6629
        diffusion_model.img_emb.proj.3 condition_embedder.image_embedder.ff.net.2 -2.2170
        diffusion_model.text_embedding.0 condition_embedder.text_embedder.linear_1 7.7691
        diffusion_model.text_embedding.2 condition_embedder.text_embedder.linear_2 7.5544
        diffusion_model.time_embedding.0 condition_embedder.time_embedder.linear_1 -1.2120
        diffusion_model.time_embedding.2 condition_embedder.time_embedder.linear_2 -12.4592
        diffusion_model.time_projection.1 condition_embedder.time_proj 2.0769
    """,
    "flux_tiny": """
        transformer.context_embedder = -1.7569
        transformer.norm_out.linear = 4.3172
        transformer.proj_out = 6.4914
        transformer.single_transformer_blocks.N.attn.to_k = 8.1647
        transformer.single_transformer_blocks.N.attn.to_q = 6.3921
        transformer.single_transformer_blocks.N.attn.to_v = 6.7138
        transformer.single_transformer_blocks.N.norm.linear = -3.6557
        transformer.single_transformer_blocks.N.proj_mlp = 2.2144
        transformer.single_transformer_blocks.N.proj_out = -0.0165
        transformer.time_text_embed.guidance_embedder.linear_1 = 1.1202
        transformer.time_text_embed.guidance_embedder.linear_2 = 6.8393
        transformer.time_text_embed.text_embedder.linear_1 = -1.2287
        transformer.time_text_embed.text_embedder.linear_2 = 8.1894
        transformer.time_text_embed.timestep_embedder.linear_1 = -0.0220
        transformer.time_text_embed.timestep_embedder.linear_2 = 6.1405
        transformer.transformer_blocks.N.attn.add_k_proj = 7.9911
        transformer.transformer_blocks.N.attn.add_q_proj = 7.4067
        transformer.transformer_blocks.N.attn.add_v_proj = 6.1014
        transformer.transformer_blocks.N.attn.to_add_out = 6.0734
        transformer.transformer_blocks.N.attn.to_k = 7.3546
        transformer.transformer_blocks.N.attn.to_out.0 = 8.0570
        transformer.transformer_blocks.N.attn.to_q = 6.1272
        transformer.transformer_blocks.N.attn.to_v = 7.0793
        transformer.transformer_blocks.N.ff.net.0.proj = 3.4216
        transformer.transformer_blocks.N.ff.net.2 = -0.9639
        transformer.transformer_blocks.N.ff_context.net.0.proj = 1.5685
        transformer.transformer_blocks.N.ff_context.net.2 = -0.0190
        transformer.transformer_blocks.N.norm1.linear = -8.0345
        transformer.transformer_blocks.N.norm1_context.linear = -7.1751
        transformer.x_embedder = -3.6400
    """,
    "ltx_video_tiny": """
        diffusion_model.adaln_single.emb.timestep_embedder.linear_1 time_embed.emb.timestep_embedder.linear_1 2.1989
        diffusion_model.adaln_single.emb.timestep_embedder.linear_2 time_embed.emb.timestep_embedder.linear_2 8.9486
        diffusion_model.adaln_single.linear time_embed.linear 39.6049
        diffusion_model.caption_projection.linear_1 caption_projection.linear_1 9.5985
        diffusion_model.caption_projection.linear_2 caption_projection.linear_2 19.6376
        diffusion_model.patchify_proj proj_in 0.6724
        diffusion_model.proj_out proj_out 47.8463
        diffusion_model.transformer_blocks.N.attn1.to_k transformer_blocks.N.attn1.to_k 39.4042
        diffusion_model.transformer_blocks.N.attn1.to_out.0 transformer_blocks.N.attn1.to_out.0 14.0968
        diffusion_model.transformer_blocks.N.attn1.to_q transformer_blocks.N.attn1.to_q 69.5168
        diffusion_model.transformer_blocks.N.attn1.to_v transformer_blocks.N.attn1.to_v 23.8264
        diffusion_model.transformer_blocks.N.attn2.to_k transformer_blocks.N.attn2.to_k 30.6218
        diffusion_model.transformer_blocks.N.attn2.to_out.0 transformer_blocks.N.attn2.to_out.0 67.4858
        diffusion_model.transformer_blocks.N.attn2.to_q transformer_blocks.N.attn2.to_q 9.9995
        diffusion_model.transformer_blocks.N.attn2.to_v transformer_blocks.N.attn2.to_v 46.8074
        diffusion_model.transformer_blocks.N.ff.net.0.proj transformer_blocks.N.ff.net.0.proj 27.6192
        diffusion_model.transformer_blocks.N.ff.net.2 transformer_blocks.N.ff.net.2 4.9058
    """,
    "cogvideox1_5_5b_i2v_tiny": """
        diffusion_model.blocks.N.attn_out transformer_blocks.N.attn1.to_out.0 15.3495
        diffusion_model.blocks.N.ff_out transformer_blocks.N.ff.net.2 0.5194
        diffusion_model.blocks.N.ff_proj transformer_blocks.N.ff.net.0.proj 4.4700
        diffusion_model.blocks.N.k transformer_blocks.N.attn1.to_k 12.3076
        diffusion_model.blocks.N.norm1.linear transformer_blocks.N.norm1.linear 0.1502
        diffusion_model.blocks.N.norm2.linear transformer_blocks.N.norm2.linear -2.4364
        diffusion_model.blocks.N.q transformer_blocks.N.attn1.to_q 15.3030
        diffusion_model.blocks.N.v transformer_blocks.N.attn1.to_v 12.3666
        diffusion_model.norm_out.linear norm_out.linear 0.7816
        diffusion_model.ofs_embedding_linear_1 ofs_embedding.linear_1 -0.3785
        diffusion_model.ofs_embedding_linear_2 ofs_embedding.linear_2 0.0652
        diffusion_model.patch_embed.proj patch_embed.proj -1.1460
        diffusion_model.patch_embed.text_proj patch_embed.text_proj -0.7877
        diffusion_model.proj_out proj_out 4.1026
        diffusion_model.time_embedding_linear_1 time_embedding.linear_1 1.6926
        diffusion_model.time_embedding_linear_2 time_embedding.linear_2 -0.1952
    """,
}


def fill(tensors: dict[str, Tensor]) -> None:
    """Values that depend only on the place of a name among all names."""
    for index, name in enumerate(sorted(tensors)):
        values = (torch.arange(tensors[name].numel(), dtype=torch.float64) + index).cos()
        tensors[name].copy_(values.reshape(tensors[name].shape))


def weighted_sum(tensor: Tensor) -> float:
    values = tensor.double().flatten()
    return float((values * (torch.arange(values.numel(), dtype=torch.float64) * 0.1).sin()).sum())


def without_block(name: str) -> str:
    return re.sub(r"blocks\.\d+", "blocks.N", name)


@pytest.mark.parametrize("recipe", GOLDEN)
@torch.no_grad()
def test_comfyui_has_every_key_and_makes_the_same_weights(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAN_PATH", "LTX_PATH", "COGVIDEOX_PATH", "DATASET_PATH"):
        monkeypatch.setenv(name, "/none")
    spec: Any = resolve(get_recipe(recipe)).model
    network = spec.config.build(device="cpu").network
    fill({name: parameter.detach() for name, parameter in network.named_parameters()})
    base = {name: parameter.clone() for name, parameter in native_parameters(network).items()}
    inject_adapters(network, rank=4, alpha=8, target_modules="all-linear")
    adapters = adapter_state(network)
    fill(adapters)
    file = comfyui_tensors(formats_of(spec.name).adapter_layout, adapters, 8, "float32")
    merge_adapters(network)
    ours = native_parameters(network)

    names = [line.split() for line in GOLDEN[recipe].split("\n") if line.strip()]
    table = {key: (key.removeprefix("transformer.") if layer == "=" else layer) for key, layer, _ in names}
    sums = dict.fromkeys(table, 0.0)
    keys = sorted(key.removesuffix(".alpha") for key in file if key.endswith(".alpha"))
    assert len(keys) == len(adapters) / 2
    assert len(file) == 3 * len(keys)
    for key in keys:
        # ComfyUI's rule: `.alpha` over the rank of the file, else 1
        scale = file[f"{key}.alpha"].item() / len(file[f"{key}.lora_A.weight"])
        number = re.search(r"(?<=blocks\.)\d+", key)
        layer = table[without_block(key)].replace("N", number[0] if number else "")
        change = file[f"{key}.lora_B.weight"] @ file[f"{key}.lora_A.weight"]
        merged = base[f"{layer}.weight"] + scale * change
        torch.testing.assert_close(merged, ours[f"{layer}.weight"], atol=1e-6, rtol=1e-6)
        sums[without_block(key)] += weighted_sum(merged)
    assert sums == {key: pytest.approx(float(value), abs=1e-4) for key, _, value in names}


@torch.no_grad()
def draw(trainer: Any) -> None:
    """Adapters with an effect that is seen in the videos."""
    stream = torch.Generator().manual_seed(0)
    for matrix in adapter_state(trainer.model.network).values():
        matrix.copy_(0.3 * torch.randn(matrix.shape, generator=stream))


def lora_run(config: Any, folder: Path, out: Path, **options: Any) -> Path:
    """A run with adapters of rank 4 and alpha 8, and its export for ComfyUI."""
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha, model.ema.enabled = True, 4, 8, False
    config.optimizer.lr = 1e-9
    trainer = Trainer(config, run_folder=folder)
    draw(trainer)
    trainer.train()
    Export.Config(model=str(folder), dtype="float32", format="comfyui", out=str(out), **options).build().run()
    return out


CASES: dict[str, Any] = {
    "wan": (tiny_wan, tiny_wan.T2V, WanPipeline, ".safetensors", {"num_frames": 5}),
    "flux": (tiny_flux, "flux_tiny", FluxPipeline, ".safetensors", {"max_sequence_length": 16}),
    "cogvideox": (tiny_cogvideox, "cogvideox_2b_tiny", CogVideoXPipeline, "_diffusers_names.safetensors",
                  {"num_frames": 5, "max_sequence_length": 16}),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", ["wan", *(pytest.param(name, marks=pytest.mark.slow) for name in ("flux", "cogvideox"))]
)
def test_pipelines_of_diffusers_draw_the_same_with_the_file(case: str, tmp_path: Path) -> None:
    """Their own readers of files of other programs apply alpha / rank = 2; a wrong scale is seen."""
    support, recipe, pipeline_class, end, words = CASES[case]
    world = support.make_world(tmp_path / "world")
    config = support.tiny_config(world, recipe, steps=1)
    out = lora_run(config, tmp_path / "run", tmp_path / "out")
    Export.Config(model=str(tmp_path / "run"), dtype="float32", out=str(tmp_path / "merged")).build().run()
    (file,) = (found for found in out.glob("*.safetensors") if found.name == config.job.name + end)
    config.model.config = config.model.config.without_adapters()
    base = Trainer(config, run_folder=tmp_path / "base").model.network.eval()

    def video(network: Any) -> Any:
        pipeline.transformer = network
        stream = torch.Generator().manual_seed(0)
        drawn = pipeline(
            "a", height=64, width=64, num_inference_steps=2, output_type="latent", generator=stream, **words
        )
        return drawn[0]

    pipeline = pipeline_class.from_pretrained(tmp_path / "merged")
    pipeline.set_progress_bar_config(disable=True)
    wanted, before = video(pipeline.transformer), video(base)
    assert not torch.allclose(wanted, before, atol=1e-2)
    pipeline.load_lora_weights(str(file))
    torch.testing.assert_close(video(base), wanted, atol=1e-4, rtol=1e-4)
    pipeline.set_adapters(pipeline.get_active_adapters(), adapter_weights=[0.5])
    assert not torch.allclose(video(base), wanted, atol=1e-2)


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    """Of two experts each has its file, whose header has the keys that file browsers of LoRA read."""
    world = tiny_wan.make_world(tmp_path / "world")
    config: Any = tiny_wan.tiny_config(world, tiny_wan.I2V, steps=1)
    for where, seed in (("transformer", 1), ("transformer_2", 2)):
        tiny_wan.make_expert(world / tiny_wan.I2V, config, where, seed)
    config.model.config.expert, config.checkpoint.init, config.job.name = "low_noise", "pretrained", "mine"
    out = lora_run(config, tmp_path / "run", tmp_path / "out")
    assert sorted(file.name for file in out.glob("*.safetensors")) == ["mine_low_noise.safetensors"]
    with safe_open(out / "mine_low_noise.safetensors", framework="pt") as file:
        header = file.metadata()
        assert file.get_tensor("diffusion_model.blocks.0.self_attn.q.alpha") == 8
    about = json.loads(header.pop("worldsmith"))
    assert about["source"] == {"run": "worldsmith/sft/mine", "iteration": 1, "weights": "live", "merged": False}
    stored = json.loads((out / "worldsmith.json").read_text())
    assert about == {name: value for name, value in stored.items() if name not in ("files", "checksums")}
    base = str(world / tiny_wan.I2V / "transformer_2")
    assert header == {
        "format": "pt", "modelspec.sai_model_spec": "1.0.0", "modelspec.title": "mine_low_noise",
        "ss_output_name": "mine_low_noise", "ss_network_dim": "4", "ss_network_alpha": "8", "ss_steps": "1",
        "ss_base_model_version": base, "ss_sd_model_name": base,
    }  # fmt: skip
    assert (
        "Copy `mine_low_noise.safetensors` to `ComfyUI/models/loras` and use strength 1."
        in (out / "README.md").read_text()
    )
    assert (out / "lineage.json").is_file()

    again = Export.Config(model=str(tmp_path / "run"), dtype="float32", format="comfyui", out=str(out)).build()
    assert "already complete" in again.run().lines[0]
    other = Export.Config(model=str(tmp_path / "run"), format="comfyui", out=str(out)).build()
    with pytest.raises(FileExistsError, match="another export: replace it with --force"):
        other.run()
    captioned = ExportOptions(dtype="float32", caption="a red square")
    exports_of("wan")["comfyui"].write(find_model(tmp_path / "run"), tmp_path / "captioned", captioned)
    with safe_open(tmp_path / "captioned/mine_low_noise.safetensors", framework="pt") as file:
        assert file.metadata()["modelspec.trigger_phrase"] == "a red square"
    assert "of this kind: `a red square`" in (tmp_path / "captioned/README.md").read_text()
