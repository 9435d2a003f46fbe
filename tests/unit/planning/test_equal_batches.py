"""Of many equal batches of a step three are carried out; of clips and updates of a size, two are."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from recipe_environment import PLACES

import worldsmith.families.recipes  # noqa: F401 (registers them)
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.adamw_8bit import AdamW8bit
from worldsmith.planning.simulation import tracked_run
from worldsmith.planning.simulation.simulate import simulate
from worldsmith.planning.simulation_inputs import assumed_batches, substitute_missing_components


@pytest.mark.parametrize("every_pack", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_step_of_five_equal_batches_is_found_from_three(every_pack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    config = resolve(get_recipe("cogvideox_2b_tiny"), keep_unset="names")
    config.trainer.grad_accum_iter = 5
    config.model.config.parallelism.reduce_every_pack = every_pack
    with substitute_missing_components(config) as stated:
        batches = assumed_batches(stated.config, fill=0.1).batches
        short = simulate(stated.config, batches, ranks=2)
        whole = simulate(stated.config, [list(batch) for batch in batches], ranks=2)
    assert len(batches) == 5
    few = {"rel": 1e-3}  # bytes: each batch has a loss, and the losses of all are added up at the end
    assert short.moved_bytes == pytest.approx(whole.moved_bytes, **few)
    assert [phase.peak for phase in short.phases] == pytest.approx([phase.peak for phase in whole.phases], **few)
    but = {"phases": (), "seconds": 0, "moved_bytes": 0}
    assert replace(short, **but) == replace(whole, **but)


@pytest.mark.parametrize("optimizer", [pytest.param("AdamW", marks=pytest.mark.slow), "AdamW8bit"])
def test_a_step_is_found_from_two_encodings_and_two_updates_of_a_size(
    optimizer: Literal["AdamW", "AdamW8bit"], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    config = resolve(get_recipe("vision_sft_tiny"), keep_unset="names")
    config.dataloader_train.latent_cache, config.optimizer.name = "", optimizer
    with substitute_missing_components(config) as stated:
        sample = assumed_batches(stated.config, fill=0.1).batches[0][0]
        batches, updates, read = [[sample] * 6], list[str](), AdamW8bit._read
        monkeypatch.setattr(
            AdamW8bit, "_read", lambda self, state, name: updates.append(name) or read(self, state, name)
        )
        few = simulate(stated.config, batches, ranks=1)
        fewer = len(updates)
        monkeypatch.setattr(tracked_run, "SIMULATED_CALLS", 1_000_000)
        whole = simulate(stated.config, batches, ranks=1)
    assert [phase.peak for phase in few.phases] == pytest.approx([phase.peak for phase in whole.phases], abs=1024)
    assert replace(few, phases=(), seconds=0) == replace(whole, phases=(), seconds=0)
    assert fewer < (len(updates) - fewer) / 2 or optimizer == "AdamW"
