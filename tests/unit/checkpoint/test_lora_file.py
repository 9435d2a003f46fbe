"""LoRA files of other programs: which are refused, with the reason, and starts that they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_wan
import torch
from safetensors.torch import save_file
from torch import Tensor

from worldsmith.actions.dry_run import plan_run
from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.config.errors import UserError
from worldsmith.config.tree.checks import check_sections
from worldsmith.models.lora import adapter_state
from worldsmith.tools.export.export import Export
from worldsmith.training.preflight import check_files
from worldsmith.training.trainer import Trainer

Q = "diffusion_model.blocks.0.self_attn.q"


def lora(layer: str = Q, rank: int = 4, **more: Tensor) -> dict[str, Tensor]:
    return {f"{layer}.lora_A.weight": torch.ones(rank, 24), f"{layer}.lora_B.weight": torch.ones(24, rank), **more}


def write(folder: Path, tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> Path:
    save_file(tensors, folder / "lora.safetensors", header)
    return folder / "lora.safetensors"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {**lora(), "lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight": torch.ones(2, 2)},
            r"1 of 3 tensors are not those of a LoRA for a wan network: lora_te_text_model\S*\. Expected only",
        ),
        ({f"{Q}.lokr_w1": torch.ones(2, 2), f"{Q}.lokr_w2": torch.ones(2, 2)}, r"2 of 2 .*LoHa, LoKr and DoRA"),
        ({**lora(), f"{Q}.dora_scale": torch.ones(24)}, r"1 of 3 tensors .*dora_scale"),
        ({**lora(), "diffusion_model.blocks.0.norm3.diff": torch.ones(24)}, r"1 of 3 tensors .*norm3\.diff"),
        (lora(f"{Q}x"), r"2 of 2 tensors"),
        ({f"{Q}.lora_A.weight": torch.ones(4, 24)}, f"'{Q}' has only one of the matrices"),
        ({**lora(), **lora(f"{Q[:-1]}k", 8)}, r"several ranks: \[4, 8\]"),
        (
            {**lora(), f"{Q}.alpha": torch.tensor(2.0), **lora(f"{Q[:-1]}k"), f"{Q[:-1]}k.alpha": torch.tensor(3.0)},
            r"one alpha for all layers, found \[2\.0, 3\.0\]",
        ),
        ({**lora(), f"{Q}.alpha": torch.tensor(2.0), **lora(f"{Q[:-1]}k")}, r"found \[2\.0\] or none in a layer"),
        ({**lora(), f"{Q}.alpha": torch.tensor(-1.0)}, "alpha is -1"),
        ({**lora(), f"{Q}.alpha": torch.ones(2)}, r"1 of 3 tensors .*alpha"),
        ({**lora(), f"{Q}.alpha": torch.tensor(float("nan"))}, "alpha is nan"),
        ({**lora(), **lora("transformer.blocks.0.attn1.to_q")}, "several tensors belong to the same matrix"),
        ({**lora(), f"{Q}.lora_up.weight": torch.ones(24, 4)}, r"1 of 3 tensors .*lora_up"),
        ({f"{Q}.lora_A.weight": torch.ones(24), f"{Q}.lora_B.weight": torch.ones(24)}, r"found the shapes \[24\] and"),
        ({**lora(), f"{Q}.lora_B.weight": torch.ones(24, 3)}, r"found the shapes \[4, 24\] and \[24, 3\]"),
        ({"note": torch.ones(1)}, "1 of 1 tensors"),
    ],
)
def test_files_that_are_not_plain_lora_are_refused(tmp_path: Path, tensors: dict[str, Tensor], message: str) -> None:
    file = write(tmp_path, tensors)
    with pytest.raises(ValueError, match=message) as caught:
        formats_of("wan").read_adapter(file)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("prefix", "header", "alpha"),
    [
        ("diffusion_model.blocks.0.self_attn.q", {}, 4),
        ("transformer.blocks.0.attn1.to_q", {"software": json.dumps({"name": "ai-toolkit"})}, 4),
        ("transformer.blocks.0.attn1.to_q", {"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": 3})}, 3),
        ("transformer.blocks.0.attn1.to_q", {}, None),
        ("base_model.model.blocks.0.attn1.to_q", {}, None),
    ],
)
def test_alpha_is_found_or_its_lack_is_an_error(tmp_path: Path, prefix: str, header: Any, alpha: int | None) -> None:
    file = write(tmp_path, lora(prefix), header)
    if alpha is None:
        with pytest.raises(UserError, match=r"does not state the alpha .*--lora-alpha N"):
            formats_of("wan").read_adapter(file)
        return
    read = formats_of("wan").read_adapter(file)
    assert (read.alpha, read.rank, read.layers) == (alpha, 4, ["blocks.0.attn1.to_q"])


def test_names_in_files_belong_to_one_layer_each() -> None:
    for family in ("wan", "flux", "ltx_video", "cogvideox"):
        names = formats_of(family).lora_names  # type: ignore[attr-defined]
        for path in names.original:
            layer = path.replace("N", "11")
            for form in (f"transformer.{layer}", names.comfyui_layer(layer), f"lora_unet_{layer.replace('.', '_')}"):
                assert names.find_layer(form) == [layer]
        assert names.find_layer("transformer.nothing") == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_wan.make_world(tmp_path_factory.mktemp("wan"))
    Trainer(tiny_wan.tiny_config(folder, steps=1), run_folder=folder / "base").train()
    return folder


def lora_config(world: Path, file: Path) -> Any:
    config: Any = tiny_wan.tiny_config(world, steps=1)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha = True, 4, 4
    config.checkpoint.load_path, config.checkpoint.init = str(world / "base"), "pretrained"
    config.checkpoint.load_adapter = str(file)
    return config


def test_rank_and_alpha_of_the_config_must_be_those_of_the_file(world: Path, tmp_path: Path) -> None:
    """It is one of the problems that are reported together before a run is built."""
    config = lora_config(world, write(tmp_path, lora()))
    config.model.config.lora_rank, config.model.config.lora_alpha = 16, 32
    config.dataloader_train.dataset.path = str(tmp_path / "gone")
    found = {problem.path: problem.message for problem in check_files(config)}
    assert found["checkpoint"].endswith(
        "has rank 4 and alpha 4, expected 16 and 32. Set model.config.lora_rank=4 model.config.lora_alpha=4"
    )
    assert len(found) == 2
    config.checkpoint.load_adapter = str(tmp_path / "none.safetensors")
    assert "load_adapter" in {problem.path: problem.message for problem in check_files(config)}["checkpoint"]


def test_an_adapter_of_other_layers_or_on_adapters_is_refused(world: Path, tmp_path: Path) -> None:
    config = lora_config(world, write(tmp_path, lora("diffusion_model.blocks.1.cross_attn.o")))
    config.model.config.lora_target_modules = "attn1.to_q"
    with pytest.raises(
        UserError, match=r"adapts 1 layers .*Set model\.config\.lora_target_modules = \"attn2\.to_out\.0\""
    ):
        list(plan_run(config, tmp_path / "run", world_size=1))
    config = lora_config(world, write(tmp_path, lora()))
    Trainer(config, run_folder=tmp_path / "first").train()
    config.checkpoint.load_path = str(tmp_path / "first")
    with pytest.raises(UserError, match=r"already contains adapters; omit checkpoint\.load_adapter"):
        Trainer(config, run_folder=tmp_path / "second")


def test_layers_that_the_file_lacks_are_initialized_and_reported(world: Path, tmp_path: Path) -> None:
    """The base has EMA weights, but none of adapters: those of the run start from its raw weights."""
    config = lora_config(world, write(tmp_path, lora()))
    lines = "\n".join(plan_run(config, tmp_path / "run", world_size=1))
    assert "not in the source, initialized: 30 (" in lines  # of 16 layers
    assert "EMA weights that start from the raw weights: 30" in lines
    assert "lora.safetensors" in lines
    trainer = Trainer(config, run_folder=tmp_path / "run")
    ema: Any = trainer.state.ema
    assert all(
        torch.equal(ema.ema_weights[name], matrix) for name, matrix in adapter_state(trainer.model.network).items()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_enabled": False}, "the run has no adapters"),
        ({"load_path": None, "init": "scratch"}, "adapters belong to the base weights"),
        ({"load_training_state": True}, "the optimizer state belongs to the adapters in load_path"),
        ({"load_adapter": ""}, "an empty name"),
    ],
)
def test_settings_that_contradict_an_adapter(
    world: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = lora_config(world, tmp_path / "lora.safetensors")
    if "lora_enabled" in changes:
        config.model.config = config.model.config.without_adapters()
        config.model.config.lora_enabled = False
    for name, value in changes.items():
        if name != "lora_enabled":
            setattr(config.checkpoint, name, value)
    (problem,) = check_sections(config)
    assert message in problem.render()


def test_comfyui_is_refused_where_it_has_no_names(world: Path, tmp_path: Path) -> None:
    names = formats_of("wan").lora_names  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"no name for the layer vace_blocks\.0\.proj_in; omit it from model\.config"):
        names.comfyui_layer("vace_blocks.0.proj_in")
    with pytest.raises(ValueError, match="has no adapters"):
        Export.Config(model=str(world / "base"), format="comfyui", out=str(tmp_path / "out")).build().run()
    assert "comfyui" not in formats_of("cosmos3").exports()
