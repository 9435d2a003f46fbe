"""Settings that may be tried: words that the run's own front door takes, and the same samples in each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from worldsmith.config.load import load
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.tools.plan.packs import Packing, PackLimits, packings
from worldsmith.tools.plan.settings import (
    RECOMPUTE,
    RECOMPUTE_FIELDS,
    Setting,
    baseline_setting,
    changes,
    recomputations,
    settings,
)


@dataclass(frozen=True)
class Sample:
    key: int
    num_tokens: int


def batches(count: int, samples: int, tokens: int = 4000) -> list[list[Sample]]:
    return [[Sample(pack * samples + place, tokens) for place in range(samples)] for pack in range(count)]


def limits_of(config: Any) -> PackLimits:
    data = config.dataloader_train
    return PackLimits(data.max_sequence_length, data.max_samples_per_batch)


def of_recipe(name: str, ranks: int, samples: int) -> tuple[Any, list[Setting]]:
    config = load(name, keep_unset=True).tree
    step = batches(config.trainer.grad_accum_iter, samples)
    return config, settings(config, ranks=ranks, batches=step, limits=limits_of(config), depth=30)


@pytest.mark.parametrize(
    ("recipe", "ranks", "samples"),
    [("vision_sft_nano", 8, 10), ("videophy2_sft_nano", 8, 1), ("cogvideox_2b", 2, 2), ("flux_dev_lora", 1, 4)],
)
def test_each_setting_is_a_run_with_the_same_samples_in_a_step(recipe: str, ranks: int, samples: int) -> None:
    config, found = of_recipe(recipe, ranks, samples)
    now = plan_degrees(config.model.config.parallelism, ranks)
    step = config.trainer.grad_accum_iter * now.data * samples
    assert len({setting.words for setting in found}) == len(found)
    for setting in found[:: len(found) // 12]:
        changed = load(recipe, setting.words, keep_unset=True).tree
        degrees = plan_degrees(changed.model.config.parallelism, ranks)
        assert degrees.replicate == setting.replicas
        assert len(setting.packs.batches) == changed.trainer.grad_accum_iter
        assert sum(map(len, setting.packs.batches)) * degrees.data == step
        changed.model.config.activation_checkpointing.check()
        assert setting.options["recomputation"].startswith(changed.model.config.activation_checkpointing.mode)
        cap, most = changed.dataloader_train.max_sequence_length, changed.dataloader_train.max_samples_per_batch
        for pack in setting.packs.batches:
            assert cap is None or sum(sample.num_tokens for sample in pack) < cap
            assert most is None or len(pack) <= most


def test_a_way_to_recompute_of_a_lower_rank_keeps_more_and_repeats_less() -> None:
    """Per layer, in arbitrary units: what it stores, and what it computes again."""
    stored = {"none": 9.0, "selective true": 5.0, "selective false": 2.0, "full": 1.0, "full to host": 0.0}
    again = {"none": 0.0, "selective true": 1.0, "selective false": 2.0, "full": 3.0, "full to host": 4.0}
    ways = []
    for rank, _, values in recomputations(40):
        mode, others, matmuls, fraction, offload = (values[name] for name in RECOMPUTE_FIELDS)
        mode += " to host" * (offload == "true")
        modes = [f"{found} {matmuls}" if found == "selective" else found for found in (mode, others)]
        parts = float(fraction), 1 - float(fraction)
        ways.append((rank, *(sum(p * table[m] for p, m in zip(parts, modes)) for table in (stored, again))))
    assert len(ways) == 17
    assert len({rank for rank, *_ in ways}) == 17
    for rank, memory, work in ways:
        for other_rank, other_memory, other_work in ways:
            if rank[0] <= other_rank[0] and rank[1] <= other_rank[1]:
                assert memory >= other_memory, (rank, other_rank)
                assert work <= other_work, (rank, other_rank)
    few = ["none", "selective with matmuls", "selective", "full", "full, inputs of layers in host RAM"]
    assert [name for _, name, _ in recomputations(4)] == few


def test_the_baseline_of_a_run_keeps_its_own_way_to_recompute() -> None:
    words = ["mode=full", "layer_fraction=0.3", "other_layers=selective"]
    config = load("cogvideox_2b", [f"{RECOMPUTE}.{word}" for word in words], keep_unset=True).tree
    found = baseline_setting(config, ranks=8, batches=batches(1, 2), limits=limits_of(config))
    assert found is not None
    assert (found.words, found.options["recomputation"]) == ((), "as configured")
    for setting in settings(config, ranks=8, batches=batches(1, 2), limits=limits_of(config), depth=30):
        assert not found.as_fast_as(setting)
        assert not setting.as_fast_as(found)


def test_degrees_of_other_numbers_of_ranks_are_left() -> None:
    for setting in of_recipe("vision_sft_nano", 16, 10)[1][::200]:
        changed = load("vision_sft_nano", setting.words, keep_unset=True).tree
        assert plan_degrees(changed.model.config.parallelism, 16).replicate == setting.replicas


def test_what_changes_what_is_learned_comes_after_what_does_not() -> None:
    found = [*changes(load("vision_sft_nano", keep_unset=True).tree)]
    levels = [change.level for change in found]
    assert levels == sorted(levels)
    assert [level for change, level in zip(found, levels, strict=True) if change.says == "nothing"] == [0]
    assert found[0].words == {"model.config.ema.trainable_only": "true"}  # of frozen weights an average says nothing
    assert "adapters" in found[-1].says
    adapted = [*changes(load("flux_dev_lora", keep_unset=True).tree)]
    assert [change.says for change in adapted] == ["nothing", *(f"frozen weights rounded to {n} bits" for n in (8, 4))]


@pytest.mark.parametrize("recipe", ["videophy2_sft_nano", "pre_exp012_llava_ov", "cosmos_rl", "videophy2_nano_tiny"])
def test_for_a_reasoner_adapters_are_proposed_on_its_language_model(recipe: str) -> None:
    found = [change for change in changes(load(recipe, keep_unset="names").tree) if "adapters" in change.says]
    assert [change.level for change in found] == [10, 11, 12]
    assert {change.words["model.config.lora_target_modules"] for change in found} == {"q_proj,k_proj,v_proj,o_proj"}


def test_optimizer_state_in_8_bits_is_a_change_of_full_fine_tuning_only() -> None:
    full = {change.says: change.words for change in changes(load("wan21_t2v_1b", keep_unset=True).tree)}
    words = {"optimizer.name": "AdamW8bit"}
    assert [says for says, found in full.items() if words.items() <= found.items()] == [
        "optimizer state in 8 bits",
        "updates rounded to bfloat16, optimizer state in 8 bits",
        "no EMA weights, updates rounded to bfloat16, optimizer state in 8 bits",
    ]
    assert next(iter(full)) == "nothing"
    for recipe, more in (("flux_dev_lora", []), ("wan21_t2v_1b", ["optimizer.name=AdamW8bit"])):
        found = changes(load(recipe, more, keep_unset=True).tree)
        assert not any("optimizer.name" in change.words for change in found)


def test_weights_are_offloaded_where_some_are_frozen() -> None:
    offload = "model.config.parallelism.offload"
    adapted = of_recipe("flux_dev_lora", 1, 4)[1]
    assert {s.options["offload"] for s in adapted} == {"none", "frozen weights in host RAM"}
    for setting in adapted:
        inputs = "model.config.activation_checkpointing.offload=true" in setting.words
        assert setting.offloads == (inputs or f"{offload}=frozen" in setting.words)
        assert inputs == (setting.options["recomputation"] == "full, inputs of layers in host RAM")
        assert inputs <= ("model.config.compile.enabled=false" in setting.words)
    full = of_recipe("wan21_t2v_1b", 1, 4)[1]
    assert {"adapters" in s.learned.says for s in full if f"{offload}=frozen" in s.words} == {True}
    config = load("flux_dev_lora", [f"{offload}=frozen"], keep_unset=True).tree
    now = baseline_setting(config, ranks=1, batches=batches(1, 4), limits=limits_of(config))
    assert now is not None
    assert now.offloads
    assert now.options["offload"] == "frozen weights in host RAM"


def test_no_adapters_are_proposed_where_they_would_be_frozen() -> None:
    frozen = load("videophy2_nano_tiny", ["model.config.policy.freeze.freeze_llm=true"], keep_unset="names").tree
    assert max(change.level for change in changes(frozen)) < 10


def test_a_family_that_shares_no_packs_is_not_asked_to() -> None:
    shared = {setting.options["context"] for setting in of_recipe("cogvideox_2b", 8, 2)[1]}
    assert shared == {"1"}
    assert {setting.options["context"] for setting in of_recipe("vision_sft_nano", 8, 10)[1]} == {"1", "2", "4", "8"}


def keys(packing: Packing) -> Counter[int]:
    return Counter(sample.key for pack in packing.batches for sample in pack)


def test_packs_are_divided_and_joined() -> None:
    step = batches(2, 4, tokens=100)
    found = packings(step, PackLimits(500, None, "cap"), larger=True)
    assert [len(packing.batches) for packing in found] == [1, 2, 4, 8]
    assert [dict(packing.words) for packing in found] == [{"cap": "1000"}, {}, {"cap": "201"}, {"cap": "101"}]
    assert len({frozenset(keys(packing).items()) for packing in found}) == 1
    assert [len(p.batches) for p in packings(step, PackLimits(500, None), larger=False)] == [2, 4, 8]
    assert [dict(p.words) for p in packings(step, PackLimits(500, None, "cap", sample=150), larger=False)] == [
        {}, {"cap": "201"}, {"cap": "151"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "limits", [PackLimits(500, None), PackLimits(None, 1), PackLimits(None, None), PackLimits(None, 3)]
)
def test_packs_that_cannot_be_smaller_stay(limits: PackLimits) -> None:
    samples = limits.samples or 1
    assert len(packings(batches(1, samples, tokens=490), limits, larger=True)) == 1
