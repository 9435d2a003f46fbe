"""Adapters of a reasoner against PEFT on the model of transformers: the same logits, beside the weights and merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from reasoners import from_pretrained, logits, model_config, write_decoder, write_qwen2_5, write_reasoner, write_run

from worldsmith.checkpoint.formats.export_weights import exports_of
from worldsmith.checkpoint.formats.family_formats import ExportOptions, formats_of
from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.models.lora import adapted_layers, adapter_state, match_targets
from worldsmith.models.parameter_names import native_parameters

TARGETS = {
    "qwen3_vl": "q_proj,v_proj,language_model.layers.1.mlp.down_proj,attn.qkv,merger.linear_fc1",
    "qwen2_5_vl": "q_proj,v_proj,language_model.layers.1.mlp.down_proj,attn.qkv,merger.mlp.0",
    "text": "q_proj,up_proj",
}
WRITERS = {"qwen3_vl": write_reasoner, "qwen2_5_vl": write_qwen2_5, "text": write_decoder}


@pytest.fixture(params=list(WRITERS))
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    WRITERS[request.param](tmp_path / "base")
    return tmp_path / "base"


def adapted(base: Path, *, trained: bool = True) -> VisionLanguageModel:
    """The base with adapters in both towers, which move every logit visibly when `trained`."""
    kind = json.loads((base / "config.json").read_text())["model_type"]
    config = model_config(
        base, lora_enabled=True, lora_rank=4, lora_alpha=6, lora_target_modules=TARGETS.get(kind, TARGETS["text"])
    )
    model = VisionLanguageModel(config, seed=5)
    weights, stream = from_pretrained(base).state_dict(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in native_parameters(model.network).items():
            if name in weights:
                parameter.copy_(weights[name])
            elif "lora_B" in name and trained:
                parameter.normal_(0, 0.3, generator=stream)
    return model


def stored_run(model: VisionLanguageModel, folder: Path, base: Path | None = None) -> Any:
    return find_model(write_run(folder, model.config, model.network, load_path=None if base is None else str(base)))


def test_peft_on_transformers_and_the_merged_folder_give_our_logits(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    ours, plain = logits(model.network), logits(from_pretrained(base))
    assert (ours - plain).abs().mean() > 0.05 * plain.abs().mean()
    run = stored_run(model, tmp_path / "run", base)
    formats = exports_of(run.spec.name)
    assert formats["adapter"].write(run, tmp_path / "adapter", ExportOptions(dtype="float32"))
    assert formats["hf"].write(run, tmp_path / "merged", ExportOptions(dtype="float32"))
    assert PeftConfig.from_pretrained(tmp_path / "adapter").base_model_name_or_path == str(base)
    theirs = PeftModel.from_pretrained(from_pretrained(base), tmp_path / "adapter")
    by_name = type(theirs.get_base_model()).from_pretrained(tmp_path / "adapter")
    found = {"peft": logits(theirs.get_base_model()), "merged": logits(from_pretrained(tmp_path / "merged")),
             "transformers, from the adapter": logits(by_name),
             "ours, from the adapter": logits(find_model(tmp_path / "adapter").load(full_precision=True).network),
             "ours again": logits(load_model(tmp_path / "merged").network)}  # fmt: skip
    for how, values in found.items():
        assert (values - ours).abs().max() < 1e-5 * ours.abs().max(), how
    about = json.loads((tmp_path / "merged" / "worldsmith.json").read_text())
    assert about["source"]["merged"]


def test_an_adapter_comes_back_to_the_bit(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    run = stored_run(model, tmp_path / "run")
    assert exports_of(run.spec.name)["adapter"].write(run, tmp_path / "adapter", ExportOptions(dtype="float32"))
    other = VisionLanguageModel(model_config(base), seed=5)
    layers = formats_of("vision_language").load_adapter(other.network, tmp_path / "adapter")
    expected = adapter_state(model.network)
    assert len(expected) == 2 * len(layers)
    assert all(torch.equal(value, expected[name]) for name, value in adapter_state(other.network).items())
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert f"(rank 4, alpha 6, {len(layers)} layers)" in card
    assert str(base) in card


@pytest.mark.parametrize("form", ["hf", "adapter"])
def test_adapters_that_change_nothing_are_not_exported(base: Path, tmp_path: Path, form: str) -> None:
    run = stored_run(adapted(base, trained=False), tmp_path / "run")
    with pytest.raises(ValueError, match="zero, as before training"):
        exports_of(run.spec.name)[form].write(run, tmp_path / "out", ExportOptions())


def test_all_linear_names_the_layers_that_peft_means_by_it(base: Path) -> None:
    network = from_pretrained(base)
    linear = [name for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)]
    ours = {layer for layers in match_targets("all-linear", linear).values() for layer in layers}
    adapted_by_us = VisionLanguageModel(model_config(base, lora_enabled=True, lora_target_modules="all-linear"))
    assert set(adapted_layers(adapted_by_us.network)) == ours
    adapted_by_peft = get_peft_model(network, LoraConfig(r=2, target_modules="all-linear"))
    theirs = [name for name, module in adapted_by_peft.named_modules() if isinstance(module, LoraLayer)]
    assert ours == {name.removeprefix("base_model.model.") for name in theirs}
