"""Multiple-choice questions in the layout of the Cosmos-Reason1 benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worldsmith.data.conversations.conversation import Part, say
from worldsmith.data.conversations.datasets.qa_pairs import INSTRUCTION, QaPairsDataset

WHERE = {"question": "Where?", "index2ans": {"A": "left", "B": "right"}, "answer": "B"}
WHEN = {"question": "When?", "index2ans": {"A": "now", "B": "later"}, "correct_answer": "A"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "robovqa"
    folder.mkdir()
    records = [
        {"video": "clips/a.mp4", "qa_pairs": [WHERE, WHEN]},
        {"video": "clips/b.mp4", "qa_pairs": WHERE},
        {"video": "clips/c.mp4"},
        {"video": "clips/d.mp4", "qa_pairs": [{**WHERE, "answer": "C"}]},
        3,
    ]
    (folder / "robovqa_benchmark_qa_pairs.json").write_text(json.dumps(records))
    return folder


def test_each_question_is_a_conversation(folder: Path) -> None:
    dataset = QaPairsDataset.Config(path=str(folder)).build()
    assert [entry.key for entry in dataset.entries] == ["a", "a#2", "b"]
    shown = Part("video", source=str(folder / "clips/a.mp4"))
    assert dataset.turns(1) == (say("user", shown, f"When?\n(A) now\n(B) later\n{INSTRUCTION}"), say("assistant", "A"))
    assert [rejection.reason for rejection in dataset.rejections] == ["bad_record"] * 3
    assert QaPairsDataset.is_at(str(folder))
    assert len(QaPairsDataset.Config(path=str(dataset.file)).build()) == 3
