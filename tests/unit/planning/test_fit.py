"""A run that is made to fit: the setting that is chosen is the best of all, and a real run of it does fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from worldsmith.config.load import load
from worldsmith.config.tree.draft import Loaded
from worldsmith.distributed.gpus import GIB, Gpu
from worldsmith.distributed.world import World
from worldsmith.planning.fit import BESIDE, Fits, Fitting
from worldsmith.planning.simulation.memory_tracker import MemoryTracker
from worldsmith.planning.simulation.short_run import long_lists, short_work
from worldsmith.planning.simulation.simulated_run import TrackedRun, as_simulated, measure, simulate

VARIABLES = ("DATASET_PATH", "COGVIDEOX_PATH", "WAN_VAE_PATH", "TOKENIZER_PATH")
WORDS = ["dataloader_train.max_samples_per_batch=33"]  # which no number divides: packs stay as they are


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"${name}")


def fitting(recipe: str, words: Sequence[str], gpu: Gpu, ranks: int = 1) -> Fitting:
    def read(more: Sequence[str]) -> Loaded:
        return load(recipe, [*words, *more], keep_unset=True)

    return Fitting(read, ranks=ranks, gpu=gpu)


def real_peak(fits: Fits, recipe: str, words: Sequence[str]) -> int:
    """Of a step of the first setting, carried out on this machine."""
    best = fits.best[0].setting
    with fitting(recipe, words, Gpu("", GIB)).stated(load(recipe, [*words, *best.words]).tree) as stated:
        run = TrackedRun(as_simulated(stated.config), World(), MemoryTracker(), best.packs.batches)
        with run.tracker:
            run.build()
            run.model.draw_weights(0)
            return measure(run, start=0.0).worst.peak


def every_setting(search: Fitting) -> list[Any]:
    tried = [search.evaluate(setting, True) for setting in search.settings if setting.learned.level == 0]
    return sorted((one for one in tried if one.fits), key=lambda one: one.order)


def test_a_run_that_is_made_to_fit() -> None:
    every = every_setting(fitting("cogvideox_2b_tiny", WORDS, Gpu("", GIB)))
    smallest, middle, largest = sorted(one.memory.needed for one in every)
    assert smallest < middle < largest
    found = fitting("cogvideox_2b_tiny", WORDS, Gpu("made up", middle)).find()
    assert found.now is not None
    assert not found.now.fits
    best = next(one for one in every if one.memory.needed <= middle)
    assert (
        found.best[0].setting.words == best.setting.words == ("model.config.activation_checkpointing.mode=selective",)
    )
    assert found.best[0].memory.peak == best.memory.peak
    in_step = max(phase.peak for phase in best.work.phases if phase.name not in BESIDE)
    assert in_step == real_peak(found, "cogvideox_2b_tiny", WORDS)
    assert all(tried.fits and not tried.setting.learned.level for tried in found.best)
    assert [tried.order for tried in found.best] == sorted(tried.order for tried in found.best)


def test_where_nothing_fits_what_is_nearest_is_said() -> None:
    found = fitting("cogvideox_2b_tiny", WORDS, Gpu("made up", GIB // 2)).find()
    assert (found.best, found.enough) == ([], None)
    assert found.nearest is not None
    assert found.nearest.memory is not None
    assert found.nearest.memory.spare < 0


@pytest.mark.parametrize(
    ("ranks", "packs"), [(1, 1), pytest.param(2, 6, marks=pytest.mark.slow), pytest.param(4, 1, marks=pytest.mark.slow)]
)
def test_few_layers_and_few_packs_tell_of_many(ranks: int, packs: int) -> None:
    words = ["model.config.network.num_layers=11", f"trainer.grad_accum_iter={packs}"]
    search = fitting("cogvideox_2b_tiny", words, Gpu("", GIB), ranks)
    with search.stated(search.config) as stated:
        batches = search.data.batches
        assert long_lists(stated.config)[0] == {"transformer_blocks": 11}
        short, whole = short_work(stated.config, batches, ranks=ranks)
        full = simulate(stated.config, batches, ranks=ranks)
    assert not whole
    for name in ("model_flops", "hardware_flops", "attention_flops", "moved_bytes", "samples", "tokens", "traffic"):
        assert getattr(short, name) == getattr(full, name)
    for found, exact in zip(short.phases, full.phases, strict=True):
        assert found.name == exact.name
        assert 0.999 * exact.peak <= found.peak <= exact.peak
