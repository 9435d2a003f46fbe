"""Rehearsals of the shipped recipes of full size."""

from __future__ import annotations

from typing import Any

import pytest
from recipe_environment import PLACES

from worldsmith.config import recipe_names
from worldsmith.config.load import load
from worldsmith.config.recipes.registry import find_recipe, get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.tools.rehearse.rehearsal import Rehearsal, rehearse

SMALL = {"moving_shapes", "cogvideox_demo", "wan_demo", "falling_objects", "falling_questions"}
OPEN = {"cosmos_rl"}
"""A spec says the rest of it."""
REFUSED = {"videophy2_sft_edge": "nvidia/Cosmos3-Edge"}
"""Its network is described by a folder that is not there, and is not trained here."""
SHIPPED = [name for name in recipe_names() if find_recipe(name).module.startswith("worldsmith.")]
FULL = [name for name in SHIPPED if not name.endswith("_tiny") and name not in SMALL | OPEN | REFUSED.keys()]

DEFAULT = {
    *("videophy2_sft_nano", "action_fd_droid_lora"),
    *("cogvideox_2b_lora", "flux_dev_lora", "ltx_video_2b_lora", "wan21_t2v_1b"),
}
"""The quickest of every family: all weights and adapters, from text, from images with actions, and answers."""


def full_size(*families: str) -> list[str]:
    """Recipes of full size of these families, or of all."""
    return [name for name in FULL if not families or get_recipe(name).model.name in families]  # type: ignore[attr-defined]


def rehearsals(*families: str) -> list[Any]:
    """(Recipe, ranks) as parameters of a test: one of each family on 2 ranks by default, all on 8 with `slow`."""
    names = full_size(*families)
    return [
        *((name, 2) for name in names if name in DEFAULT),
        *(pytest.param(name, 8, marks=pytest.mark.slow) for name in names),
    ]


def rehearsed(name: str, monkeypatch: pytest.MonkeyPatch, ranks: int = 8) -> Rehearsal:
    """With one layer of each kind: all of them are alike. Above 8 ranks there are replicas, below it fewer shards."""
    for place in PLACES:
        monkeypatch.setenv(place, f"/nowhere/{place.lower()}")
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    words = [f"data_parallel_shard_degree={ranks}"] if ranks < 8 else ["data_parallel_replicate_degree=-1"]
    config = resolve(load(name, [f"model.config.parallelism.{word}" for word in words if ranks != 8]).tree)
    parallelism = config.model.config.parallelism
    if parallelism.data_parallel_shard_degree == -1:
        parallelism.data_parallel_replicate_degree = 1
    return rehearse(config, ranks, layers=1)


def check_recipe(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe is sound on this number of ranks."""
    done = rehearsed(name, monkeypatch, ranks)
    assert [str(finding) for finding in done.findings] == []
    assert len(done.records) == ranks
    assert done.resumed[0] == ranks
    assert done.exports.written
