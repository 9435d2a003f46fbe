"""What an evaluation of answers writes beside its rows, without a model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from run_folders import write_run
from tiny_runs import moving_gradient

from worldsmith.config.errors import UserError
from worldsmith.data.conversations.conversation import Part, say
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.evaluation.answers.answer_tasks import AnswerTasks
from worldsmith.evaluation.answers.confusion_image import CELL, FULL, draw_confusion
from worldsmith.evaluation.answers.grade_answers import grade_row, measure, measure_slices
from worldsmith.evaluation.answers.results import Row, read_results
from worldsmith.evaluation.answers.saved_answers import SavedAnswers, question_fingerprint
from worldsmith.monitor.page.run_page import write_page
from worldsmith.sampling.generate_answers import Answer
from worldsmith.sampling.write_media import write_mp4
from worldsmith.tools.evaluate.answer_records import (
    count_outcomes,
    duration_range,
    question_template,
    write_outcome,
)
from worldsmith.tools.evaluate.evaluate_answers import EvaluateAnswers


@dataclass
class Settings:
    max_failed: float = 0.05
    confusion_picture: bool = True
    item_files: bool = True


def write(out: Path, rows: list[Row], name: str, **settings: Any) -> Any:
    tasks = AnswerTasks(metrics=[], soft_threshold=0.8).choose(name, {row.id: row.gt for row in rows}, {})
    for row in rows:
        if row.full_response:
            grade_row(row, tasks[row.id], row.full_response)
    facts = {
        **measure(rows, tasks, name),
        **count_outcomes(rows),
        "slices": measure_slices(rows),
        "dataset": "clips.json",
    }
    return write_outcome(out, rows, facts, Settings(**settings))


def directions() -> list[Row]:
    """Two questions about one clip, whose names differ in what no file may be called."""
    said = ("<think>It turns.</think><answer>turning left</answer>", "right", "no idea")
    keys = ("clip/1?", "clip/1*", "clip2")
    return [Row(key, "clip/1", gt="turning left", full_response=text) for key, text in zip(keys, said)]


def test_each_question_about_a_clip_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    (tmp_path / "items/of_yesterday.json").write_text("{}")
    write(tmp_path, directions(), "its_directionality")
    items = [json.loads(file.read_text()) for file in (tmp_path / "items").iterdir()]
    assert sorted((item["answer"], item["reasoning"], item["is_correct"]) for item in items) == [
        ("no idea", "", False), ("right", "", False), ("turning left", "It turns.", True),
    ]  # fmt: skip
    keys = ["datasource", "video_id", "correct_answer", "answer", "reasoning", "full_response", "is_correct"]
    assert all(list(item) == keys for item in items)
    score = json.loads((tmp_path / "directionality_score.json").read_text())
    assert (score["total"], score["correct"], score["unknown"]) == (3, 1, 1)
    (tmp_path / "without").mkdir()
    write(tmp_path / "without", [*directions()], "its_directionality", item_files=False, confusion_picture=False)
    assert sorted(file.name for file in (tmp_path / "without").iterdir()) == [
        "directionality_score.json", "metrics.json", "results.json",
    ]  # fmt: skip


def test_the_page_of_a_run_shows_its_evaluation_at_once(tmp_path: Path) -> None:
    page = write_page(write_run(tmp_path))
    assert "<h3>asked</h3>" not in page.read_text()
    out = page.parent / "asked"
    out.mkdir()
    write(out, [Row("a", gt="yes", full_response="yes")], "binary")
    shown = page.read_text()
    assert "<h3>asked</h3>" in shown
    assert 'alt="confusion matrix"' in shown


def test_too_many_failures_are_an_exit_code(tmp_path: Path) -> None:
    rows = [Row("a", gt="yes", full_response="yes"), Row("b", gt="no", reason="missing_file: b.mp4")]
    assert write(tmp_path, rows, "binary", max_failed=0.5).code == 0
    result = write(tmp_path, rows, "binary", max_failed=0.49)
    assert result.code == 1
    assert "50.0% of the records" in result.lines[0]
    with pytest.raises(UserError, match=r"no record has an answer: \{'missing_file': 1\}"):
        write(tmp_path, rows[1:], "binary", max_failed=1.0)


def test_results_are_read_again_also_those_of_tao(tmp_path: Path) -> None:
    rows = [Row("a", gt="yes", full_response="<think>it</think>yes"), Row("b", gt="no", reason="missing_file: b.mp4")]
    write(tmp_path, rows, "binary")
    found = read_results(tmp_path)
    assert [(row["id"], row["response"], row["status"]) for row in found] == [
        ("a", "yes", "ok"),
        ("b", "", "prep_error"),
    ]
    old = [{"video_id": "v", "question": "Is it?", "response": "yes", "gt": "no"}]
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert [(row["id"], row["status"]) for row in read_results(tmp_path / "old.json")] == [("v", "ok")]
    for content in ("[1]", "{}", "[", '[{"question": "Is it?"}]'):
        (tmp_path / "old.json").write_text(content)
        with pytest.raises(UserError, match=r"old\.json"):
            read_results(tmp_path / "old.json")


def test_no_failure_takes_the_place_of_an_answer(tmp_path: Path) -> None:
    """Whichever process wrote first; a later answer takes the place of a failure."""
    saved = SavedAnswers(tmp_path)
    saved.begin({"seed": 1}, overwrite=False)
    answer, failure = Answer("a", "yes"), Answer("a", error="generation: no memory")
    saved.add(answer, "mark", number=0, count=2)
    saved.add(failure, "mark", number=1, count=2)
    saved.add(failure, "other", number=0, count=2)
    assert saved.read()["a", "mark"]["said"] == "yes"
    assert saved.read()["a", "other"]["status"] == "gen_error"
    saved.add(answer, "other", number=1, count=2)
    assert "error" not in saved.read()["a", "other"]
    with pytest.raises(UserError, match="seed was 1 and is now 2"):
        saved.begin({"seed": 2}, overwrite=False)
    saved.begin({"seed": 2}, overwrite=True)
    assert saved.read() == {}


def test_a_picture_of_the_table(tmp_path: Path) -> None:
    draw_confusion(tmp_path / "confusion.png", {"labels": ["yes", "no"], "rows": [[4, 0, 0], [1, 2, 1]]})
    picture = Image.open(tmp_path / "confusion.png").convert("RGB")
    columns, lines = picture.width // CELL[0], picture.height // CELL[1]
    assert (columns, lines) == (4, 3)
    left = picture.width - 3 * CELL[0] - 12
    shades = [picture.getpixel((left + CELL[0] * column + 5, CELL[1] + 5)) for column in range(3)]
    assert shades == [FULL, (255, 255, 255), (255, 255, 255)]  # all of the first row said yes


def test_parts_of_the_data_have_names(tmp_path: Path) -> None:
    assert question_template('Does "a red ball" fall after 3.5 s?\nSay  yes') == "Does … fall after # s? Say yes"
    assert len(question_template("word " * 100)) == 80
    write_mp4(tmp_path / "clip.mp4", moving_gradient(0, 24, 16, 16), 8)
    assert [duration_range(name) for name in (str(tmp_path / "clip.mp4"), "", "gone.mp4")] == [
        "2 to 5 s", "no video", "unreadable",
    ]  # fmt: skip


def test_records_say_what_is_asked_of_them(tmp_path: Path) -> None:
    records = [
        {"id": f"r{index}", "task": kind, "conversations": [
            {"from": "human", "value": "Is it?"}, {"from": "gpt", "value": truth}]}
        for index, (kind, truth) in enumerate([("bcq", "yes"), ("mcq", "B"), ("scene_description", "A red ball.")])
    ]  # fmt: skip
    (tmp_path / "annotations.json").write_text(json.dumps(records))

    def prepared(**settings: Any) -> Any:
        data = LlavaDataset.Config(path=str(tmp_path))
        return EvaluateAnswers.Config(model="", out="", dataset=data, **settings).build().prepare()

    exam = prepared(task="by_record", slices=["task", "question"])
    assert [task.name for task in exam.tasks.values()] == ["binary", "mcq", "scene_description"]
    assert exam.asked.rows[2].slice == {"task": "scene_description", "question": "Is it?"}
    assert prepared().kinds == "text"
    with pytest.raises(UserError, match="unknown task type 'bcq'; metropolis_sgd supports count"):
        prepared(task="metropolis_sgd", task_field="task")
    with pytest.raises(
        UserError, match="no record has the field 'category'; available fields: conversations, id, task"
    ):
        prepared(task="metropolis_sgd")


def test_a_question_is_the_same_in_another_folder(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "clip.mp4").write_bytes(b"four")

    def mark(folder: str, text: str = "Is it?", **more: Any) -> str:
        return question_fingerprint(
            [say("user", Part("video", source=str(tmp_path / folder / "clip.mp4"), **more), text)]
        )

    assert mark("one") == mark("other")
    assert len({mark("one"), mark("one", "Was it?"), mark("one", fps=2.0), mark("gone")}) == 4
    (tmp_path / "other/clip.mp4").write_bytes(b"fives")
    assert mark("one") != mark("other")
    (tmp_path / "other/clip.mp4").write_bytes(b"five")
    assert mark("one") != mark("other"), "another content of the same size"
    (tmp_path / "other/clip.mp4").unlink()
    os.mkfifo(tmp_path / "other/clip.mp4")
    assert mark("one") != mark("other"), "a pipe is not read"
    assert question_fingerprint([say("user", Part("image", source=b"1"))]) != question_fingerprint(
        [say("user", Part("image", source=b"2"))]
    )
