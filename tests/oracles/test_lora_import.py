"""Adapters that other programs have written are the initial weights of a run, with their scale.

The names in `musubi` are those that `networks/lora_wan.py` of musubi-tuner writes for a network of this size (run once:
20 layers, 60 tensors); ai-toolkit's are those of its `wan_lora_convert.py`, without alpha.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_wan
import torch
from diffusers import WanPipeline
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.config.errors import UserError
from worldsmith.models.lora import adapter_state
from worldsmith.models.parameter_names import native_parameters
from worldsmith.monitor.lineage import read_lineage
from worldsmith.tools.export.convert import Convert
from worldsmith.tools.export.export import Export
from worldsmith.training.trainer import Trainer

SIZES = {"q": (24, 24), "k": (24, 24), "v": (24, 24), "o": (24, 24), "0": (48, 24), "2": (24, 48)}
TARGETS = "to_q,to_k,to_v,to_out.0,ffn.net.0.proj,ffn.net.2"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_wan.make_world(tmp_path_factory.mktemp("wan"))
    Trainer(tiny_wan.tiny_config(folder, steps=1), run_folder=folder / "base").train()
    Export.Config(model=str(folder / "base"), weights="live", dtype="float32", out=str(folder / "out")).build().run()
    return folder


def matrices(stream: torch.Generator) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Block and layer in Wan's own code, A and B of rank 4."""
    for block in (0, 1):
        for part in (*(f"{kind}_attn.{name}" for kind in ("self", "cross") for name in "qkvo"), "ffn.0", "ffn.2"):
            rows, columns = SIZES[part.rpartition(".")[2]]
            low, high = (0.3 * torch.randn(shape, generator=stream) for shape in ((4, columns), (rows, 4)))
            yield f"blocks.{block}", part, low, high


def musubi(folder: Path, base: Any) -> tuple[Path, float]:
    tensors = {}
    for block, part, low, high in matrices(torch.Generator().manual_seed(1)):
        name = f"lora_unet_{block}_{part}".replace(".", "_")
        tensors |= {f"{name}.lora_down.weight": low, f"{name}.lora_up.weight": high, f"{name}.alpha": torch.tensor(2.0)}
    assert len(tensors) == 60
    save_file(tensors, folder / "musubi.safetensors", {"ss_network_dim": "4"})
    return folder / "musubi.safetensors", 2


def ai_toolkit(folder: Path, base: Any) -> tuple[Path, float]:
    tensors = {}
    for block, part, low, high in matrices(torch.Generator().manual_seed(2)):
        name = f"diffusion_model.{block}.{part}"
        tensors |= {f"{name}.lora_A.weight": low, f"{name}.lora_B.weight": high}
    save_file(tensors, folder / "toolkit.safetensors")
    return folder / "toolkit.safetensors", 4


def adapted(base: Any) -> Any:
    config = LoraConfig(r=4, lora_alpha=12, target_modules=TARGETS.split(","), init_lora_weights=False)
    torch.manual_seed(3)
    return get_peft_model(copy.deepcopy(base), config)


def diffusers_file(folder: Path, base: Any) -> tuple[Path, float]:
    network = copy.deepcopy(base)
    torch.manual_seed(3)
    network.add_adapter(LoraConfig(r=4, lora_alpha=12, target_modules=TARGETS.split(","), init_lora_weights=False))
    layers, metadata = get_peft_model_state_dict(network), network.peft_config["default"].to_dict()
    WanPipeline.save_lora_weights(folder, layers, transformer_lora_adapter_metadata=metadata)
    return folder / "pytorch_lora_weights.safetensors", 12


def peft_folder(folder: Path, base: Any) -> tuple[Path, float]:
    adapted(base).save_pretrained(folder / "peft")
    return folder / "peft", 12


def lora_config(world: Path, rank: int, alpha: float) -> Any:
    config: Any = tiny_wan.tiny_config(world, steps=1)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha, model.lora_target_modules = True, rank, alpha, TARGETS
    config.checkpoint.load_path, config.checkpoint.init = str(world / "base"), "pretrained"
    return config


@torch.no_grad()
def answer(network: Any) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    video = torch.randn(2, network.config.in_channels, 3, 8, 8, generator=draw)
    out: Tensor = network(video, torch.tensor([3.0, 800.0]), torch.randn(2, 16, 32, generator=draw)).sample
    return out


@pytest.mark.parametrize(
    "make", [musubi, pytest.param(ai_toolkit, marks=pytest.mark.slow), diffusers_file, peft_folder]
)
def test_a_run_starts_with_the_answers_that_diffusers_and_peft_give(
    world: Path, tmp_path: Path, make: Callable[[Path, Any], tuple[Path, float]]
) -> None:
    pipeline = WanPipeline.from_pretrained(world / "out")
    base = pipeline.transformer
    file, alpha = make(tmp_path, base)
    before = answer(base)
    if file.is_dir():
        wanted = answer(PeftModel.from_pretrained(copy.deepcopy(base), file).base_model.model.eval())
    else:
        pipeline.load_lora_weights(str(file))
        wanted = answer(pipeline.transformer.eval())
    assert not torch.allclose(before, wanted, atol=1e-2)

    config = lora_config(world, 4, alpha)
    config.checkpoint.load_adapter = str(file)
    trainer = Trainer(config, run_folder=tmp_path / "run")
    network = trainer.model.network
    torch.testing.assert_close(answer(network.eval()), wanted, atol=1e-5, rtol=1e-5)
    trained = {name for name, parameter in native_parameters(network).items() if parameter.requires_grad}
    assert trained == set(adapter_state(network))
    ema: Any = trainer.state.ema
    assert all(torch.equal(ema.ema_weights[name], matrix) for name, matrix in adapter_state(network).items())
    inputs = {entry["role"]: entry["path"] for entry in read_lineage(tmp_path / "run").inputs}
    assert inputs["adapter"] == str(file)
    trainer.train()
    file.rename(tmp_path / "gone")
    config.trainer.max_iter = 2
    assert Trainer(config, run_folder=tmp_path / "run").iteration == 1, "a resumed run does not need the file"
    (tmp_path / "gone").rename(file)
    started = find_model(tmp_path / "run", weights="untrained").load(full_precision=True)
    torch.testing.assert_close(answer(started.network), wanted, atol=1e-5, rtol=1e-5)


def test_the_export_for_comfyui_is_a_start_again(world: Path, tmp_path: Path) -> None:
    config = lora_config(world, 4, 6)
    config.model.config.ema.enabled = False
    trainer = Trainer(config, run_folder=tmp_path / "first")
    for matrix in adapter_state(trainer.model.network).values():
        torch.nn.init.normal_(matrix, std=0.3)
    trainer.train()
    out = tmp_path / "comfyui"
    Export.Config(model=str(tmp_path / "first"), dtype="float32", format="comfyui", out=str(out)).build().run()
    (file,) = out.glob("*.safetensors")
    config.checkpoint.load_adapter = str(file)
    again = Trainer(config, run_folder=tmp_path / "again").model.network.eval()
    wanted = answer(load_model(tmp_path / "first").network)
    torch.testing.assert_close(answer(again), wanted, atol=1e-5, rtol=1e-5)


def test_fused_layers_of_kohya_are_divided(tmp_path: Path) -> None:
    """FLUX.1 in its own names: B's rows go to Q, K, V and the MLP, A goes to all of them."""
    stream, tensors = torch.Generator().manual_seed(0), dict[str, Tensor]()
    for name, rows in (
        ("double_blocks_1_img_attn_qkv", 96),
        ("single_blocks_0_linear1", 224),
        ("single_blocks_0_linear2", 32),
    ):
        columns = 160 if name.endswith("linear2") else 32
        low, high = torch.randn(4, columns, generator=stream), torch.randn(rows, 4, generator=stream)
        tensors |= {f"lora_unet_{name}.lora_down.weight": low, f"lora_unet_{name}.lora_up.weight": high}
        tensors[f"lora_unet_{name}.alpha"] = torch.tensor(1.0)
    save_file(tensors, tmp_path / "kohya.safetensors")
    read = formats_of("flux").read_adapter(tmp_path / "kohya.safetensors")
    assert (read.rank, read.alpha, len(read.layers)) == (4, 1, 8)
    for fused, parts in (
        ("double_blocks_1_img_attn_qkv", [f"transformer_blocks.1.attn.to_{name}" for name in "qkv"]),
        (
            "single_blocks_0_linear1",
            [f"single_transformer_blocks.0.{name}" for name in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")],
        ),
        ("single_blocks_0_linear2", ["single_transformer_blocks.0.proj_out"]),
    ):
        change = tensors[f"lora_unet_{fused}.lora_up.weight"] @ tensors[f"lora_unet_{fused}.lora_down.weight"]
        ours = [read.weights[f"{path}.lora_B.weight"] @ read.weights[f"{path}.lora_A.weight"] for path in parts]
        torch.testing.assert_close(torch.cat(ours), change)


def test_convert_makes_a_folder_of_a_file(tmp_path: Path) -> None:
    file, _ = musubi(tmp_path, None)
    done = Convert.Config(source=str(file), out=str(tmp_path / "out"), to="adapter").build().run()
    assert done.lines[0] == "20 layers of a wan network, rank 4, alpha 2"
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["lora_alpha"] == 2
    tensors = {"transformer.blocks.0.unknown.lora_A.weight": torch.ones(4, 4)}
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"unknown network: .*1 of 1 tensors .*blocks\.0\.unknown\.lora_A\.weight"):
        Convert.Config(source=str(tmp_path / "other.safetensors"), out=str(tmp_path / "no"), to="adapter").build().run()
