"""Faults in the names of exports are found by a rehearsal, beside the classes of the libraries that read them."""

from __future__ import annotations

import pytest

from worldsmith.config import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.families.cosmos3.weights import diffusers_keys
from worldsmith.tools.rehearse.check_exports import rehearse_exports
from worldsmith.training.trainer import Trainer


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Trainer.Config:
    monkeypatch.setenv("DATASET_PATH", "data")
    config = get_recipe("vision_sft_tiny")
    assert isinstance(config, Trainer.Config)
    return resolve(config)


def test_an_export_that_the_librarys_class_does_not_read(
    config: Trainer.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(diffusers_keys.ROOT_MODULES, "vae2llm", "proj_into")
    found = rehearse_exports(config).findings
    assert [str(finding) for finding in found] == [
        "export: diffusers: missing in the export: proj_in.weight, proj_in.bias, which Cosmos3OmniTransformer expects",
        "export: diffusers: unexpected in Cosmos3OmniTransformer: proj_into.weight, proj_into.bias",
    ]


def test_an_export_that_has_no_name_for_a_weight(config: Trainer.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(diffusers_keys.LAYER_MODULES, "self_attn.q_proj")
    (found,) = rehearse_exports(config).findings
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    assert str(found) == f"export: diffusers: '{name}' is not an internal parameter name of the generator"


def test_adapters_of_layers_that_the_librarys_network_does_not_have(
    config: Trainer.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(diffusers_keys.LAYER_MODULES, "self_attn.v_proj", "self_attn.to_values")
    config.model.config.lora_enabled, config.model.config.lora_target_modules = True, "q_proj,v_proj"
    found = [str(finding) for finding in rehearse_exports(config).findings]
    assert found[-1].startswith("export: adapter: unexpected in PEFT around Cosmos3OmniTransformer: ")
    assert "self_attn.to_values.lora_A.weight" in found[-1]
