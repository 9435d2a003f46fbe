"""What the marks on the run tree's own fields offer can be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldsmith.config.declare.search import search_space
from worldsmith.config.load import load


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WAN_VAE_PATH", "BASE_CHECKPOINT_PATH", "DATASET_PATH", "HF_TOKEN"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.mark.parametrize("recipe", ["videophy2_sft_nano", "vision_sft_super"])
def test_every_value_that_a_mark_offers_can_be_loaded(recipe: str) -> None:
    base = load(recipe).tree
    tried = []
    for searched in search_space(base):
        mark = searched.mark(base)
        for value in (mark.candidates() or [mark.low, mark.high]) if mark else []:
            load(recipe, [f"{searched.path}={value}"])
            tried.append(searched.path)
    assert {"optimizer.lr", "optimizer.weight_decay", "scheduler"} <= set(tried)
    assert ("model.config.lora_rank" in tried) == (recipe == "vision_sft_super")
    assert ("dataloader_train.processor.media.fps" in tried) == (recipe == "videophy2_sft_nano")


def test_the_adapters_alpha_is_tied_to_their_rank() -> None:
    space = {searched.path: searched for searched in search_space(load("vision_sft_super").tree)}
    assert space["model.config.lora_alpha"].marks[0].ratio_of == "model.config.lora_rank"
