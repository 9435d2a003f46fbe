"""Every full-size recipe is sound on 8 ranks, and on many."""

from __future__ import annotations

import pytest
from recipe_environment import PLACES

from worldsmith.config import recipe_names
from worldsmith.config.load import load
from worldsmith.config.recipes.registry import find_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.planning.rehearsal.rehearse import Rehearsal, rehearse

SMALL = {"moving_shapes", "cogvideox_demo", "wan_demo", "falling_objects", "falling_questions"}
OPEN = {"cosmos_rl"}
"""A spec says the rest of it."""
REFUSED = {"videophy2_edge": "nvidia/Cosmos3-Edge"}
"""Its network is described by a folder that is not there, and is not trained here."""
SHIPPED = [name for name in recipe_names() if find_recipe(name).module.startswith("worldsmith.")]
FULL = [name for name in SHIPPED if not name.endswith("_tiny") and name not in SMALL | OPEN | REFUSED.keys()]


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in PLACES:
        monkeypatch.setenv(name, f"/nowhere/{name.lower()}")
    monkeypatch.setenv("WORLD_SIZE", "8")


def rehearsed(name: str, ranks: int = 8) -> Rehearsal:
    """With one layer of each kind: all of them are alike. More ranks than a recipe asks for are replicas."""
    words = [] if ranks == 8 else ["model.config.parallelism.data_parallel_replicate_degree=-1"]
    config = resolve(load(name, words).tree)
    parallelism = config.model.config.parallelism
    if parallelism.data_parallel_shard_degree == -1:
        parallelism.data_parallel_replicate_degree = 1
    return rehearse(config, ranks, layers=1)


def test_there_are_full_size_recipes_of_every_family() -> None:
    assert len(FULL) >= 29


@pytest.mark.parametrize("name", FULL)
def test_a_full_size_recipe_on_8_ranks(name: str) -> None:
    done = rehearsed(name)
    assert [str(finding) for finding in done.findings] == []
    assert len(done.records) == 8
    assert done.resumed[0] == 8
    assert done.exports.written


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_recipe_that_no_start_accepts(name: str) -> None:
    (found,) = rehearsed(name).findings
    assert REFUSED[name] in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [64, 512])
@pytest.mark.parametrize("name", [name for name in FULL if not name.endswith("_lora")])
def test_a_full_size_recipe_on_many_ranks(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last, and those at the borders of groups."""
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    done = rehearsed(name, ranks)
    assert [str(finding) for finding in done.findings] == []
    assert {0, 1, ranks - 1} <= set(done.rehearsed)
