"""A run that is made to fit: the setting that is chosen is the best of all, and a real run of it does fit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import fit_ranks
import pytest
from fit_ranks import VARIABLES, fitting, real_peak, step_peak
from launch import launch

from worldsmith.distributed.gpus import GIB, GPUS, Gpu
from worldsmith.distributed.world import stop_world
from worldsmith.planning.simulation.short_run import repeated_layer_lists, short_work
from worldsmith.planning.simulation.simulate import simulate
from worldsmith.planning.simulation_inputs import substitute_missing_components
from worldsmith.tools.plan.evaluate_settings import Clock, Fitting
from worldsmith.tools.plan.fit import Enough, Fits, find_enough_gpus, find_fits, fit_lines, states_fit
from worldsmith.tools.plan.settings import smaller_clips

FULL = ["model.config.activation_checkpointing.mode=full"]
WORDS = ["dataloader_train.max_samples_per_batch=33"]  # which no number divides: packs stay as they are


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"${name}")


def of_memory(size: int) -> Gpu:
    """One of a known speed."""
    return replace(GPUS["h100-80"], name="made up", memory=size)


def shown(found: Fits, search: Fitting) -> str:
    return " ".join("\n".join(fit_lines(found, search.gpu, ["train"], ["run", "--"], steps=100)).split())


def every_setting(search: Fitting) -> list[Any]:
    tried = [search.evaluate(setting, True) for setting in search.settings if setting.learned.level == 0]
    return sorted((one for one in tried if one.fits), key=lambda one: one.order)


def test_a_run_that_is_made_to_fit() -> None:
    every = every_setting(fitting("cogvideox_2b_tiny", WORDS, Gpu("", GIB)))
    needed = sorted({one.memory.needed for one in every})
    assert len(needed) > 2
    middle = needed[len(needed) // 2]
    found = find_fits(fitting("cogvideox_2b_tiny", WORDS, Gpu("made up", middle)))
    assert found.now is not None
    assert not found.now.fits
    best = next(one for one in every if one.memory.needed <= middle)
    assert found.best[0].setting.words == best.setting.words
    assert found.best[0].encodes_first == best.encodes_first
    assert found.best[0].memory.peak == best.memory.peak
    in_step = step_peak(best.work)
    assert in_step == real_peak("cogvideox_2b_tiny", WORDS, best.setting.words)
    assert all(tried.fits and not tried.setting.learned.level for tried in found.best)
    assert [tried.order for tried in found.best] == sorted(tried.order for tried in found.best)


def test_progress_says_which_setting_is_simulated_with_all_layers() -> None:
    search, texts = fitting("cogvideox_2b_tiny", WORDS, Gpu("made up", 1)), list[str]()
    search.show_progress = texts.append
    for whole in (False, True):
        search.evaluate(search.settings[0], whole)
    assert texts[1] == f"{texts[0]}, with all layers"


CASES: dict[str, tuple[str, int, list[str], float]] = {
    "packs": ("cogvideox_2b_tiny", 1, ["dataloader_train.max_samples_per_batch=16"], 0.2),
    "all fits": ("cogvideox_2b_tiny", 1, ["dataloader_train.max_samples_per_batch=12"], 1.0),
    "copies": ("cogvideox_2b_tiny", 2, ["dataloader_train.max_samples_per_batch=18"], 0.4),
    "another VAE": ("cogvideox_5b_tiny", 1, ["dataloader_train.max_samples_per_batch=10"], 0.5),
    "images": ("flux_tiny", 1, ["dataloader_train.max_samples_per_batch=24"], 0.3),
    "images on two": ("flux_tiny", 2, ["dataloader_train.max_samples_per_batch=27"], 0.1),
    "videos": ("wan21_t2v_tiny", 1, ["dataloader_train.max_samples_per_batch=10"], 0.3),
    "tokens": ("vision_sft_nano_tiny", 1, ["trainer.grad_accum_iter=1"], 0.3),
    "shared packs": ("vision_sft_nano_tiny", 2, ["trainer.grad_accum_iter=1"], 0.1),
    "answers": ("videophy2_nano_tiny", 2, [], 0.3),
}
"""Recipe, ranks, words, and where among what all settings need the GPU's memory lies."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_what_is_chosen_is_the_best_of_all_and_fits(case: str, tmp_path: Path) -> None:
    recipe, ranks, words, share = CASES[case]
    search = fitting(recipe, words, of_memory(64 * GIB), ranks)
    every = every_setting(search)
    assert len(every) > 2
    needed = sorted(one.memory.needed for one in every)
    gpu = of_memory(needed[int(share * (len(needed) - 1))])
    found = find_fits(fitting(recipe, words, gpu, ranks))
    best = next(one for one in every if one.memory.needed <= gpu.memory)
    assert found.best[0].setting.words == best.setting.words
    assert all(tried.fits and tried.whole for tried in found.best)
    arguments = [str(tmp_path), recipe, json.dumps(words), json.dumps(best.setting.words)]
    launch(Path(fit_ranks.__file__), ranks, arguments)
    in_step = step_peak(best.work)
    peaks = [int((tmp_path / f"{rank}.txt").read_text()) for rank in range(ranks)]
    assert max(peaks) <= 1.02 * in_step  # a rank's last chunks may be padded
    assert max(peaks) <= best.memory.peak + best.memory.fragmentation


@pytest.mark.slow
def test_adapters_that_are_proposed_for_a_reasoner_are_trained_as_planned() -> None:
    words = ["dataloader_train.max_samples_per_batch=1"]
    search = fitting("videophy2_nano_tiny", words, of_memory(64 * GIB))
    setting = next(found for found in search.settings if "rounded to 4 bits" in found.learned.says)
    tried = search.evaluate(setting, True)
    assert not tried.refused
    assert tried.work is not None
    try:
        assert real_peak("videophy2_nano_tiny", words, setting.words) == pytest.approx(step_peak(tried.work), rel=0.01)
    finally:
        stop_world()


def test_a_search_without_time_says_how_many_settings_it_has_not_tried() -> None:
    search = fitting("cogvideox_2b_tiny", [*WORDS, *FULL], Gpu("", GIB))
    search.clock = Clock(budget=0.0)
    found = find_fits(search)
    assert (found.stopped, found.tried) == ("time", 1)
    assert found.best == [found.now]  # which has been carried out with all layers, whatever that took
    assert found.best[0].whole
    assert 0 < found.not_tried < found.settings
    search = fitting("cogvideox_2b_tiny", WORDS, Gpu("", GIB // 2))
    search.clock = Clock(budget=0.0)
    found = find_fits(search)
    assert (found.best, found.stopped) == ([], "time")
    assert found.nearest == found.now  # of what was tried
    assert f"before {found.not_tried} settings that may be better" in shown(found, search)
    assert "that may be better" not in shown(replace(found, not_tried=0), search)


def test_a_search_has_more_time_until_a_setting_fits() -> None:
    clock = Clock(budget=10.0, budget_to_find_one=50.0)
    assert 49 < clock.left <= 50
    clock.found_at = 5.0
    assert 14 < clock.left <= 15
    clock.found_at = 45.0
    assert 49 < clock.left <= 50


def test_the_setting_with_the_least_memory_does_not_shorten_the_search() -> None:
    search = fitting("cogvideox_2b_tiny", [], Gpu("", GIB))
    assert search.least is not None
    assert search.evaluate(search.least, False).fits
    assert search.clock.found_at == math.inf
    other = next(setting for setting in search.settings if setting != search.least)
    assert search.evaluate(other, False).fits
    assert search.clock.found_at <= search.clock.spent


def test_time_for_all_layers_of_the_best_is_also_kept_in_a_search_of_smaller_clips() -> None:
    words = ["dataloader_train.dataset.num_video_frames=49", "model.config.network.num_layers=11"]
    search = fitting("cogvideox_2b_tiny", words, Gpu("", GIB))
    search.clock, search.seconds, search.longest_of_all = Clock(budget=30.0), 6.0, 15.0
    smaller = search.with_clips(next(iter(smaller_clips(search.config))))
    search.clock.start -= 5  # 25 s are left
    assert smaller.has_time(False)
    search.clock.start -= 5
    assert not smaller.has_time(False)
    assert smaller.has_time(True)


def test_where_no_layer_can_be_left_out_a_setting_is_carried_out_once() -> None:
    """What its trial finds is what a plan says, and no time is kept for carrying it out again."""
    search = fitting("vision_sft_nano_tiny", ["dataloader_train.max_samples_per_batch=1"], of_memory(64 * GIB))
    assert not search.lists
    tried = search.evaluate(search.settings[0], False)
    assert tried.whole
    assert tried.memory == search.evaluate(search.settings[0], True).memory
    search.clock = Clock(budget=1.5 * search.seconds)
    assert search.has_time(False)


def test_what_was_found_before_a_search_is_interrupted_is_its_answer() -> None:
    search = fitting("cogvideox_2b_tiny", [*WORDS, *FULL], Gpu("", GIB))
    calls: list[str] = []

    def interrupt(text: str) -> None:
        calls.append(text)
        if len(calls) == 3:
            raise KeyboardInterrupt

    search.show_progress = interrupt
    found = find_fits(search)
    assert (found.stopped, found.tried) == ("interrupted", 2)
    assert len(found.best) == 1
    assert found.best[0].fits
    lines = "\n".join(fit_lines(found, search.gpu, ["worldsmith", "train"], ["cogvideox_2b_tiny", "--"], steps=100))
    assert "1. fits" in lines
    assert "interrupted after" in lines


@pytest.mark.slow
def test_clips_are_smaller_only_where_nothing_else_fits_and_that_is_said() -> None:
    words = ["dataloader_train.dataset.num_video_frames=49", "dataloader_train.dataset.resolution=256", *WORDS]
    words += ["dataloader_train.max_samples_per_batch=1"]
    search = fitting("cogvideox_2b_tiny", words, Gpu("", GIB))
    clips = list(smaller_clips(search.config))
    assert [change.says for change in clips] == [
        "clips of 25 frames instead of 49",
        "clips of 9 frames instead of 49",
        "a resolution of 128 instead of 256",
        "clips of 25 frames instead of 49 and a resolution of 128 instead of 256",
        "clips of 9 frames instead of 49 and a resolution of 128 instead of 256",
    ]
    least = {}
    for name, change in (("as it is", None), ("shorter", clips[0])):
        of = search if change is None else search.with_clips(change)
        level = of.settings[-1].learned.level
        last = max((s for s in of.settings if s.learned.level == level), key=lambda s: sum(s.slower))
        least[name] = of.evaluate(last, True).memory.needed
    assert least["shorter"] < least["as it is"]
    search = fitting("cogvideox_2b_tiny", words, Gpu("", least["shorter"]))
    found = find_fits(search)
    assert found.now is not None
    assert not found.now.fits
    assert found.best
    for tried in found.best:
        assert "clips of 25 frames instead of 49" in tried.setting.learned.says
        assert "dataloader_train.dataset.num_video_frames=25" in tried.setting.words
        assert tried.memory == search.with_clips(clips[0]).evaluate(tried.setting, True).memory


def test_clips_that_the_run_does_not_allow_are_passed_over() -> None:
    """The shift of noise levels is given by resolution, and not for the next smaller one."""
    words = ["dataloader_train.dataset.resolution=256", 'objective.shift={"256": 3, "480": 5}']
    search = fitting("vision_sft_nano_tiny", words, Gpu("", GIB // 2))
    assert [dict(clips.words) for clips in smaller_clips(search.config)][-1] == {
        "dataloader_train.dataset.resolution": "128"
    }
    assert find_fits(search).best == []


def test_where_nothing_fits_what_is_nearest_is_said() -> None:
    found = find_fits(fitting("cogvideox_2b_tiny", WORDS, Gpu("made up", GIB // 2)))
    assert (found.best, found.enough) == ([], Enough(None))
    assert found.nearest is not None
    assert found.nearest.memory is not None
    assert found.nearest.memory.spare < 0


LONG = [f"dataloader_train.dataset.{word}" for word in ("resolution=3840x2176", "num_video_frames=41", "min_frames=41")]
LONG += ["objective.shift=5", "dataloader_train.max_samples_per_batch=1", "trainer.grad_accum_iter=1"]
LONG += ["model.config.max_num_tokens_after_packing=400000", "model.config.precision=bfloat16"]
LONG += ["model.config.lora_enabled=true", 'optimizer.keys_to_select=["lora_"]', "optimizer.lr_multipliers={}"]
LONG += ["checkpoint.save_weights=trained", "model.config.ema.enabled=false"]
LONG += ['model.config.converters=[{"type": "FrozenBase", "bits": 4}]']


@pytest.mark.slow
def test_where_a_pack_is_too_large_for_any_number_of_gpus_they_share_it() -> None:
    search = fitting("vision_sft_nano_tiny", LONG, of_memory(64 * GIB))
    assert search.least is not None
    alone = search.evaluate(search.least, False)
    assert alone.memory is not None
    search.gpu = of_memory(int(0.85 * alone.memory.needed))
    found = find_enough_gpus(search)
    assert found.gpus is not None
    assert found.gpus > 1
    assert found.tried is not None
    assert found.tried.fits
    assert found.tried.setting.options["context"] == str(found.gpus)
    nearest = replace(alone, memory=replace(alone.memory, gpu=search.gpu))
    fits = Fits(None, [], {}, nearest, found, search.gpu, "", 1, 1, 1)
    assert f"the run fits on {found.gpus} GPUs" in "\n".join(
        fit_lines(fits, search.gpu, ["train"], ["run", "--"], steps=100)
    )
    assert find_enough_gpus(fitting("vision_sft_nano_tiny", LONG, of_memory(GIB))) == Enough(None)


def test_more_gpus_share_weights_and_quantized_weights_are_whole_on_each() -> None:
    """So the setting with the smallest states of one GPU is not that of many."""
    search = fitting("vision_sft_super", [], GPUS["rtx-4090"])
    many = search.with_ranks(64)
    assert search.least is not None
    assert many.least is not None
    assert "rounded to 4 bits" in search.least.learned.says
    assert states_fit(many, many.least)
    says = search.least.learned.says
    assert not states_fit(many, next(s for s in many.settings if s.learned.says == says and not s.offloads))
    assert states_fit(many, many.smallest[says])  # which keeps them in host RAM


@pytest.mark.parametrize(
    ("ranks", "packs"), [(1, 1), pytest.param(2, 6, marks=pytest.mark.slow), pytest.param(4, 1, marks=pytest.mark.slow)]
)
def test_few_layers_and_few_packs_tell_of_many(ranks: int, packs: int) -> None:
    words = ["model.config.network.num_layers=11", f"trainer.grad_accum_iter={packs}"]
    search = fitting("cogvideox_2b_tiny", words, Gpu("", GIB), ranks)
    with substitute_missing_components(search.config) as stated:
        batches = search.data.batches
        assert repeated_layer_lists(stated.config) == {"num_layers": 11}
        short = short_work(stated.config, batches, ranks=ranks)
        full = simulate(stated.config, batches, ranks=ranks)
    for name in ("model_flops", "hardware_flops", "attention_flops", "moved_bytes", "samples", "tokens", "traffic"):
        assert getattr(short, name) == getattr(full, name)
    for found, exact in zip(short.phases, full.phases, strict=True):
        assert found.name == exact.name
        assert 0.999 * exact.peak <= found.peak <= exact.peak


@pytest.mark.slow
def test_a_mode_in_half_of_the_layers_is_estimated_from_two_modes_in_all() -> None:
    search = fitting("cogvideox_2b_tiny", [*WORDS, "model.config.network.num_layers=16"], of_memory(64 * GIB))
    name = "full in 1/2 of the layers, else selective"
    setting = next(setting for setting in search.settings if setting.options["recomputation"] == name)
    few, whole = (search.evaluate(setting, all_layers).work for all_layers in (False, True))
    assert few is not None
    assert whole is not None
    for field in ("model_flops", "hardware_flops", "moved_bytes", "tokens"):
        assert getattr(few, field) == pytest.approx(getattr(whole, field), rel=1e-3)
    assert step_peak(few) == pytest.approx(step_peak(whole), rel=0.02)
