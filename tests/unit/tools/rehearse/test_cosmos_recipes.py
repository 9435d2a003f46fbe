"""Every full-size recipe of Cosmos3 and of the reasoners is sound on 8 ranks; all of them on many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reasoners import write_qwen2_5
from rehearsals import DEFAULT, FULL, REFUSED, check_recipe, full_size, rehearsals, rehearsed

from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.tools.rehearse.rehearsal import reduce_config_layers, rehearse


@pytest.mark.parametrize(("name", "ranks"), rehearsals("cosmos3", "vision_language"))
def test_a_full_size_recipe_is_sound(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_recipe(name, ranks, monkeypatch)


def test_there_are_full_size_recipes_of_every_family() -> None:
    assert len(FULL) >= 29
    families = [full_size(family) for family in ("cosmos3", "vision_language", "cogvideox", "flux", "ltx_video", "wan")]
    assert all(families)
    assert sum(map(len, families)) == len(FULL)
    assert all(DEFAULT & set(names) for names in families)
    assert set(FULL) >= DEFAULT


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_recipe_that_no_start_accepts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = rehearsed(name, monkeypatch).findings
    assert REFUSED[name] in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [64, 512])
@pytest.mark.parametrize("name", [name for name in FULL if not name.endswith("_lora")])
def test_a_full_size_recipe_on_many_ranks(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last, and those at the borders of groups."""
    done = rehearsed(name, monkeypatch, ranks)
    assert [str(finding) for finding in done.findings] == []
    assert {0, 1, ranks - 1} <= set(done.rehearsed)


def test_windows_of_a_vision_encoder_are_rehearsed(tmp_path: Path) -> None:
    """Their sizes follow from values, which a simulation lacks; a layer that sees whole frames stays in the cut."""
    write_qwen2_5(tmp_path / "model")
    config = get_recipe("cosmos_rl")
    config.model.config.policy.backbone.model_name = str(tmp_path / "model")
    config.dataloader_train.max_sequence_length = 500
    done = rehearse(resolve(config, keep_unset="names"), 2, layers=1)
    assert [str(finding) for finding in done.findings] == []
    fewer = reduce_config_layers(json.loads((tmp_path / "model/config.json").read_text()), 1)
    assert (fewer["vision_config"]["depth"], fewer["vision_config"]["fullatt_block_indexes"]) == (1, [0])
