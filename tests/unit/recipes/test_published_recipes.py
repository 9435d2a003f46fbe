"""The recipes of the published framework have their names here."""

from __future__ import annotations

import pytest

from worldsmith.config.recipes.registry import find_recipe, get_recipe

EARLIER = {
    "llava_ov": "pre_exp012_llava_ov",
    "videophy2_nano": "videophy2_sft_nano",
    "videophy2_super": "videophy2_sft_super",
    "videophy2_edge": "videophy2_sft_edge",
}
PUBLISHED = [
    *("vision_sft_nano", "vision_sft_super", "vision_sft_edge", "vision_sft_nano_mapstyle_dataloader"),
    *("pre_exp012_llava_ov_mapstyle_dataloader", *EARLIER.values()),
    *("action_policy_droid_nano", "action_policy_libero_nano", "action_policy_libero_all_nano"),
    "action_fd_droid_posttrain",
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_has_its_name_and_its_job_name_here(name: str) -> None:
    job = get_recipe(name).job  # type: ignore[attr-defined]
    assert find_recipe(name).name == name
    assert (job.experiment, job.name) == (name, name)


@pytest.mark.parametrize(("earlier", "name"), EARLIER.items())
def test_an_earlier_name_is_an_alias(earlier: str, name: str) -> None:
    assert find_recipe(earlier).name == name


def test_map_style_recipes_differ_from_the_streamed_ones_in_their_data_alone() -> None:
    streamed, stored = get_recipe("pre_exp012_llava_ov"), get_recipe("pre_exp012_llava_ov_mapstyle_dataloader")
    loader = stored.dataloader_train  # type: ignore[attr-defined]
    assert (loader.dataset.limit, loader.dataset.streaming, loader.shuffle, loader.seed) == (4000, False, True, 42)
    stored.dataloader_train, stored.job = streamed.dataloader_train, streamed.job  # type: ignore[attr-defined]
    assert stored == streamed
    clips, mapped = get_recipe("vision_sft_nano"), get_recipe("vision_sft_nano_mapstyle_dataloader")
    assert mapped.dataloader_train.max_caption_tokens == 1024  # type: ignore[attr-defined]
    mapped.dataloader_train.max_caption_tokens, mapped.job = 2048, clips.job  # type: ignore[attr-defined]
    assert mapped == clips
