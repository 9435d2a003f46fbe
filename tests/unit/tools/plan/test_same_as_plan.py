"""What the search finds of a setting with few layers is what `worldsmith plan` says of it."""

from __future__ import annotations

import pytest
from fit_ranks import VARIABLES, fitting

from worldsmith.config.errors import UserError
from worldsmith.config.load import load
from worldsmith.config.recipes.registry import recipe_names
from worldsmith.distributed.gpus import Gpu, find_gpu
from worldsmith.planning.estimate_memory import CONTEXT, plan_encoding
from worldsmith.planning.plan import Plan, make_plan
from worldsmith.planning.plan_text import plan_lines
from worldsmith.planning.simulation_inputs import quietly
from worldsmith.planning.work import BESIDE, ENCODING_FIRST
from worldsmith.tools.plan.evaluate_settings import Fitting, least_of
from worldsmith.tools.plan.fit import find_fits

GPU = find_gpu("h200")
LARGE = [name for name in recipe_names() if not name.endswith(("tiny", "demo", "objects", "questions", "shapes"))]
HUB_ONLY = {"videophy2_sft_edge": "config.json of nvidia/Cosmos3-Edge"}


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"${name}")


ENCODED = "trainer.encode_first=always"


def plan_of(search: Fitting, words: tuple[str, ...], *, encoded: bool = False) -> Plan:
    with quietly():
        return make_plan(search.read(words).tree, search.ranks, search.gpu, encoded=encoded)


def assert_same(search: Fitting) -> None:
    """Few layers tell the figures of a plan to 1 %, for the setting that keeps most and the one that keeps least.

    Also those of the phases beside the steps, whichever of them needs most.
    """
    plain = [setting for setting in search.settings if setting.learned.level == 0 and ENCODED not in setting.words]
    (least,) = least_of(plain, lambda setting: -int(setting.options["context"])).values()
    for setting in (plain[0], least):
        tried = search.evaluate(setting, False)
        plan = plan_of(search, setting.words)
        assert tried.memory is not None, tried.refused
        if tried.work is not None:  # else its states are too large
            assert tried.memory.needed == pytest.approx(plan.memory.needed, rel=0.01)
            phases = {phase.name: phase.peak for phase in tried.work.phases if phase.name in BESIDE}
            assert phases == pytest.approx(
                {phase.name: phase.peak for phase in plan.work.phases if phase.name in BESIDE}, rel=0.01
            )
            if plan.step is None:  # it computes in float32
                continue
            assert tried.seconds is not None
            assert tried.seconds.middle == pytest.approx(plan.step.total.middle, rel=0.01)


LORA = ["model.config.lora_enabled=true", "optimizer.keys_to_select=[lora_]"]
CASES = {
    "weights and inputs in host RAM": ("cogvideox_2b_tiny", [*LORA, "model.config.network.num_layers=8"], 1),
    "encoding is the peak": ("cogvideox_2b_tiny", ["model.config.network.num_layers=11"], 1),
    "the VAE is in each step": ("cogvideox_5b_i2v_tiny", ["model.config.network.num_layers=11"], 1),
    "two ranks": ("wan21_t2v_tiny", ["model.config.network.num_layers=11"], 2),
    "no layer is left out": ("vision_sft_nano_tiny", [], 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_few_layers_tell_what_a_plan_says(case: str) -> None:
    recipe, words, ranks = CASES[case]
    assert_same(fitting(recipe, words, GPU, ranks))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("gpu", ["24GB", "h200"])
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("recipe", LARGE)
def test_few_layers_of_every_shipped_recipe_tell_what_a_plan_says(recipe: str, ranks: int, gpu: str) -> None:
    if recipe in HUB_ONLY:
        pytest.skip(f"only the Hub has the sizes: {HUB_ONLY[recipe]}")
    assert_same(fitting(recipe, [], find_gpu(gpu), ranks))


@pytest.mark.parametrize(
    ("recipe", "ranks"), [("cogvideox_2b_tiny", 1), pytest.param("wan21_t2v_tiny", 2, marks=pytest.mark.slow)]
)
def test_what_is_proposed_is_to_the_byte_what_a_plan_of_the_same_words_says(recipe: str, ranks: int) -> None:
    search = fitting(recipe, ["dataloader_train.max_samples_per_batch=8"], GPU, ranks)
    found = find_fits(search)
    assert found.best
    for tried in found.best:
        assert tried.whole
        assert tried.memory == plan_of(search, tried.setting.words).memory


def test_an_encoding_that_is_carried_out_once_is_the_same_in_each_setting() -> None:
    """Of a later setting nothing is encoded, and its phases are those of a plan, kind by kind."""
    search = fitting("wan21_t2v_tiny", [], GPU)
    first, second = [setting for setting in search.settings if ENCODED not in setting.words][:2]
    search.evaluate(first, True)
    assert [len(known) for known in search.encodings.values()] == [1]
    found = search.evaluate(second, True).work
    assert found is not None
    plan = plan_of(search, second.words)
    assert [phase.name for phase in found.phases] == [phase.name for phase in plan.work.phases]
    for phase, its in zip(found.phases, plan.work.phases, strict=True):
        assert phase.peak == pytest.approx(its.peak, abs=512)  # the settings of the VAE are a few numbers
        assert phase.kinds == pytest.approx(its.kinds, abs=512)


def test_with_all_encoded_first_no_encoder_is_beside_a_step() -> None:
    search = fitting("wan21_t2v_tiny", [], GPU)
    beside, first = (plan_of(search, (), encoded=encoded) for encoded in (False, True))
    assert "encoding" in [phase.name for phase in beside.work.phases]
    assert "encoding" not in [phase.name for phase in first.work.phases]
    assert first.memory.needed < beside.memory.needed
    assert "`worldsmith encode` fills the latent cache" in first.assumptions["encoders"]
    in_run = plan_of(search, (ENCODED,))
    alone = next(phase for phase in in_run.work.phases if phase.name == ENCODING_FIRST)
    assert sum(alone.kinds.values()) == alone.peak
    assert in_run.work.phases[1:] == first.work.phases
    assert in_run.memory.peak == max(alone.peak, first.memory.peak)
    assert "the run fills the latent cache before the network" in in_run.assumptions["encoders"]
    assert " ".join(plan_lines(in_run)).count(ENCODING_FIRST) >= 1


def test_auto_follows_the_rule_of_the_run() -> None:
    """On a GPU with one more byte than the rule requires, the encoders stay next to the steps."""
    search = fitting("wan21_t2v_tiny", [], GPU)
    beside = plan_of(search, ())
    states, work = sum(beside.quick.states.values()), beside.work
    encoders = next(phase for phase in work.phases if phase.name == "encoding").kinds["encoders"]
    limit = CONTEXT + states + 4 * encoders
    for memory, first in ((limit - 1, True), (limit, False)):
        planned, is_first = plan_encoding(search.config, work, Gpu("made up", memory), states=states)
        assert is_first is first
        assert (planned.phases[0].name == ENCODING_FIRST) is first
        assert (planned == work) is not first
    never = search.read(("trainer.encode_first=never",)).tree
    assert plan_encoding(never, work, Gpu("made up", 1), states=states) == (work, False)


@pytest.mark.parametrize(
    ("recipe", "word", "why"),
    [
        ("wan21_t2v_tiny", "dataloader_train.latent_cache=", "dataloader_train.latent_cache is ''"),
        ("videophy2_nano_tiny", "trainer.max_iter=3", "have no latent cache"),
    ],
)
def test_a_run_without_a_latent_cache_cannot_be_encoded_first(recipe: str, word: str, why: str) -> None:
    search = fitting(recipe, [word], GPU)
    with pytest.raises(UserError, match=why):
        plan_of(search, (), encoded=True)
    assert not any(ENCODED in setting.words for setting in search.settings)


@pytest.mark.slow
def test_degrees_of_more_gpus_are_changed() -> None:
    words = ["model.config.parallelism.data_parallel_shard_degree=8"]
    found = find_fits(fitting("wan21_t2v_tiny", words, GPU, 2))
    assert found.now is None
    assert found.best
    assert all(tried.setting.words for tried in found.best)
    assert load("wan21_t2v_tiny", [*words, *found.best[0].setting.words], keep_unset="names")


def test_a_shared_context_of_more_ranks_than_there_are_is_changed() -> None:
    words = ["model.config.parallelism.context_parallel_shard_degree=2"]
    search = fitting("vision_sft_nano_tiny", words, GPU)
    assert all("model.config.parallelism.context_parallel_shard_degree=1" in s.words for s in search.settings)
    assert search.evaluate(search.settings[0], False).fits
