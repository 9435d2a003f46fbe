"""Two ranks start from a LoRA file of another program: each has its shards of it."""

from __future__ import annotations

from pathlib import Path

import lora_ranks
import tiny_wan
import torch
from launch import launch
from safetensors.torch import save_file

from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.training.trainer import Trainer


def test_two_ranks_start_with_the_adapters_of_the_file(tmp_path: Path) -> None:
    world = tiny_wan.make_world(tmp_path / "world")
    Trainer(tiny_wan.tiny_config(world, steps=1), run_folder=world / "base").train()
    tensors = {}
    for block in (0, 1):
        for index, name in enumerate("qkvo"):
            key = f"lora_unet_blocks_{block}_self_attn_{name}"
            tensors[f"{key}.lora_down.weight"] = torch.randn(4, 24, generator=torch.Generator().manual_seed(index))
            tensors[f"{key}.lora_up.weight"] = torch.randn(24, 4, generator=torch.Generator().manual_seed(block))
            tensors[f"{key}.alpha"] = torch.tensor(2.0)
    save_file(tensors, tmp_path / "lora.safetensors")
    launch(Path(lora_ranks.__file__), 2, [str(world), str(tmp_path / "lora.safetensors"), str(tmp_path / "run")])
    wanted = formats_of("wan").read_adapter(tmp_path / "lora.safetensors").weights
    for weights in ("live", "ema"):
        model = find_model(tmp_path / "run", weights=weights)  # type: ignore[arg-type]
        stored = model.open_adapters()
        assert len(wanted) == 16
        for name, matrix in wanted.items():
            assert torch.equal(stored.read(name, average=model.average), matrix), name
