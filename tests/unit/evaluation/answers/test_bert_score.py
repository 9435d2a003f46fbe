"""BERTScore equals that of the library bert-score 0.3.13 (without idf and baseline) on the same encoder."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from text_encoders import write_text_encoder

from worldsmith.config.errors import UserError
from worldsmith.evaluation.answers.bert_score import LAYERS, BertScore

ANSWERS = ["the car turns left", "a red ball falls", "", "the cat", "it falls down the road and stops", "left"]
TRUTHS = ["the car is turning left at the road", "the ball falls down", "the car", "", "it stops", "left"]
NOTHING, SAME = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
PUBLISHED = {  # what the library gives for these texts, by layer
    1: [(0.867792, 0.700187, 0.775032), (0.814752, 0.756514, 0.784554), NOTHING, NOTHING,
        (0.672565, 0.962977, 0.791988), SAME],
    2: [(0.900283, 0.752436, 0.819747), (0.802008, 0.637116, 0.710116), NOTHING, NOTHING,
        (0.646841, 0.956661, 0.771820), SAME],
}  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert") / "encoder"
    write_text_encoder(folder)
    return str(folder)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("layer", [1, 2])
def test_scores_are_those_of_the_library(encoder: str, layer: int, batch_size: int) -> None:
    scorer = BertScore.Config(model=encoder, layers=layer, batch_size=batch_size).build()
    for found, published in zip(scorer.compare(ANSWERS, TRUTHS), PUBLISHED[layer], strict=True):
        assert found == pytest.approx(published, abs=2e-5)


def test_a_text_longer_than_the_encoder_reads_is_cut(encoder: str) -> None:
    (found,) = BertScore.Config(model=encoder, layers=1).build().compare(["car " * 600], ["car " * 700])
    assert found == pytest.approx(SAME)


def test_only_the_default_encoder_may_be_missing(encoder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert BertScore.Config().build().find_folder() is None
    with pytest.raises(UserError, match="the best layer is unknown"):
        BertScore.Config(model=encoder).build().find_folder()
    with pytest.raises(UserError, match="Run `hf download org/other`"):
        BertScore.Config(model="org/other").build().find_folder()
    with pytest.raises(UserError, match="no such folder"):
        BertScore.Config(model="./nowhere", layers=1).build().find_folder()
    with pytest.raises(UserError, match=r"expected at most 2, .* found 3"):
        BertScore.Config(model=encoder, layers=3).build().find_folder()


def test_an_encoder_in_a_store_gives_the_scores_of_that_on_disk(
    encoder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = fsspec.filesystem("memory")
    for file in Path(encoder).iterdir():
        files.pipe_file(f"/encoder/{file.name}", file.read_bytes())
    stored = BertScore.Config(model="memory://encoder", layers=1).build()
    assert stored.compare(ANSWERS, TRUTHS) == BertScore.Config(model=encoder, layers=1).build().compare(ANSWERS, TRUTHS)
    with pytest.raises(UserError, match="no such file or folder"):
        BertScore.Config(model="memory://other", layers=1).build().find_folder()
    files.rm("/encoder/model.safetensors")
    with pytest.raises(UserError, match="its weights are not in the store"):
        BertScore.Config(model="memory://encoder", layers=1).build().find_folder()


def test_the_layer_of_a_known_encoder_is_known_by_the_name_of_its_folder() -> None:
    assert BertScore.Config().build().layer == 40
    assert BertScore.Config(model="/models/roberta-large/").build().layer == LAYERS["roberta-large"] == 17
