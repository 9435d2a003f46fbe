"""`worldsmith evaluate` of a reasoner of the smallest size: rows, shards, going on, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import command_ranks
import pytest
import torch
from launch import launch
from reasoner_runs import make_world
from text_encoders import write_text_encoder

from worldsmith.cli.main import main
from worldsmith.distributed.world import World
from worldsmith.evaluation.answers.bert_score import BertScore
from worldsmith.tools.evaluate.evaluate_answers import EvaluateAnswers

BROKEN = {"id": "chat1", "video": "gone.mp4", "conversations": [
    {"from": "human", "value": "<video>\nWhere is it?"}, {"from": "gpt", "value": "nowhere"}]}  # fmt: skip
HOW = ["--max-new-tokens", "3", "--batch-size", "4", "--dtype", "float32", "--task", "text", "--metrics", "bleu"]
SILENT = {"id": "mute", "conversations": [{"from": "human", "value": "Is it?"}]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and eight records: one has no answer, one no video and the id of another one."""
    torch.manual_seed(0)
    folder = make_world(tmp_path_factory.mktemp("answers"))
    file = folder / "data/annotations.json"
    records = json.loads(file.read_text())
    file.write_text(json.dumps([*records[:2], SILENT, *records[2:4], BROKEN, *records[4:]]))
    return folder


@pytest.fixture(scope="module")
def alone(world: Path) -> Path:
    """The results of one command for all."""
    assert evaluate(world, "alone") == 1  # 2 of 8 failed
    return world / "alone"


def evaluate(world: Path, out: str, *words: str, data: str = "data") -> int:
    asked = ["--dataset", "LlavaDataset", "--dataset.path", str(world / data)]
    asked += ["--dataset.media_root", str(world / "data")]
    return main(["evaluate", str(world / "model"), *asked, "-o", str(world / out), *HOW, *words])


def rows_in(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return found


def figures_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return {name: value for name, value in found.items() if name != "dataset"}


def test_every_record_keeps_its_row(world: Path, alone: Path) -> None:
    rows = rows_in(alone)
    assert [row["id"] for row in rows] == ["chat0", "chat1", "mute", "chat2", "chat3", "chat1#2", "chat4", "chat5"]
    assert [row["video_id"] for row in rows if "chat1" in row["id"]] == ["chat1", "chat1"]
    failed = {row["id"]: row["reason"].partition(":")[0] for row in rows if row["status"] == "prep_error"}
    assert failed == {"mute": "no_answer", "chat1#2": "missing_file"}
    assert [row["gt"] for row in rows] == ["yes", "no", "", "yes", "no", "nowhere", "yes", "no"]
    assert rows[5]["question"] == "Where is it?"
    assert rows[0]["media"] == [str(world / "data/chat0.mp4")]
    said = [row["response"] for row in rows if row["status"] == "ok"]
    assert len(set(said)) > 1  # else a shift would not be seen
    figures = figures_in(alone)
    assert (figures["num_records"], figures["total"], figures["coverage"]) == (8, 6, 0.75)
    assert figures["status"] == {"ok": 6, "prep_error": 2}


def test_neither_order_nor_dropped_records_change_an_answer(world: Path, alone: Path) -> None:
    records = json.loads((world / "data/annotations.json").read_text())
    (world / "other").mkdir()
    whole = [record for record in records[::-1] if record not in (BROKEN, SILENT)]
    (world / "other/annotations.json").write_text(json.dumps(whole))
    assert evaluate(world, "reversed", "--batch-size", "2", data="other") == 0
    answered = [row for row in rows_in(alone) if row["status"] == "ok"]
    assert rows_in(world / "reversed") == answered[::-1]
    same = figures_in(alone) | {"num_records": 6, "coverage": 1.0, "status": {"ok": 6}, "reasons": {}}
    assert figures_in(world / "reversed") == same


def test_shards_are_put_together(world: Path, alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two in one folder the last one writes the results; answers of another machine are copied to them."""
    assert evaluate(world, "shards", "--shard", "0/2") == 0
    assert "of 8 records are answered; the results are written after the last one" in capsys.readouterr().out
    assert not (world / "shards/results.json").exists()
    evaluate(world, "machine", "--shard", "1/2")
    shutil.copytree(world / "machine/answers", world / "shards/answers", dirs_exist_ok=True)
    evaluate(world, "shards")
    assert (
        not (world / "shards/answers/0_of_1.jsonl").exists()
        or "missing_file" in (world / "shards/answers/0_of_1.jsonl").read_text()
    )
    for name in ("results.json", "metrics.json"):
        assert (world / "shards" / name).read_bytes() == (alone / name).read_bytes()


def test_ranks_share_the_questions(world: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other here; they meet nowhere but in the folder."""

    class OneOfThree(World):
        def barrier(self) -> None: ...

        def broadcast(self, value: Any) -> Any:
            return value or (None, "")

        def gather(self, value: Any) -> list[Any]:
            return [value]

    for rank in (0, 1, 2, 0):
        monkeypatch.setattr(
            f"{EvaluateAnswers.__module__}.start_world", lambda rank=rank: OneOfThree(rank=rank, size=3)
        )
        evaluate(world, "ranks")
    lines = [len((world / f"ranks/answers/{rank}_of_3.jsonl").read_text().splitlines()) for rank in range(3)]
    assert lines == [3, 3, 1]  # a record without an answer is not asked
    for name in ("results.json", "metrics.json"):
        assert (world / "ranks" / name).read_bytes() == (alone / name).read_bytes()


@pytest.mark.slow
def test_a_launch_shares_the_questions(world: Path, alone: Path) -> None:
    words = ["evaluate", str(world / "model"), "--dataset", "LlavaDataset", "--dataset.path", str(world / "data")]
    words += [*HOW, "-o", str(world / "launched"), "--max-failed", "1"]
    launch(Path(command_ranks.__file__), 2, words)
    assert len(list((world / "launched/answers").glob("*_of_2.jsonl"))) == 2
    assert rows_in(world / "launched") == rows_in(alone)


@pytest.mark.slow
def test_the_command_starts_its_processes(world: Path, alone: Path) -> None:
    """With the exit code of one process, which is not 0 since two of eight records failed."""
    words = ["evaluate", str(world / "model"), "--dataset", "LlavaDataset", "--dataset.path", str(world / "data")]
    words += [*HOW, "-o", str(world / "started"), "--processes", "2"]
    done = subprocess.run([sys.executable, "-m", "worldsmith", *words], capture_output=True, text=True, timeout=280)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("8: ok 6, prep_error 2") == 1, done.stdout  # one process speaks
    assert len(list((world / "started/answers").glob("*_of_2.jsonl"))) == 2
    for name in ("results.json", "metrics.json"):
        assert (world / "started" / name).read_bytes() == (alone / name).read_bytes()


def test_the_same_command_goes_on(world: Path, alone: Path) -> None:
    shutil.copytree(alone, world / "stopped")
    file = world / "stopped/answers/0_of_1.jsonl"
    lines = [line for line in file.read_text().splitlines() if "error" not in line]
    kept = "\n".join([*lines[:3], lines[3][:40]])  # a line was cut off
    file.write_text(kept)
    for name in ("results.json", "metrics.json"):
        (world / "stopped" / name).unlink()
    evaluate(world, "stopped")
    added = [json.loads(line)["id"] for line in file.read_text().removeprefix(kept).split("\n") if line]
    assert added == ["chat3", "chat1#2", "chat4", "chat5"]
    for name in ("results.json", "metrics.json"):
        assert (world / "stopped" / name).read_bytes() == (alone / name).read_bytes()


def test_other_settings_are_refused(world: Path, alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(alone, world / "changed")
    assert evaluate(world, "changed", "--repetition-penalty", "1.5") == 2
    assert "repetition_penalty was 1.0 and is now 1.5" in capsys.readouterr().err
    assert evaluate(world, "changed", "--repetition-penalty", "1.5", "--force", "--limit", "2") == 0
    assert len(rows_in(world / "changed")) == 2
    assert evaluate(world, "changed", "--force", "--shard", "0/2") == 2
    assert evaluate(world, "changed", "--shard", "2/2") == 2


def test_results_are_not_put_among_the_files_of_the_model(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(world, "model/answers") == 2
    assert "lies inside the model folder" in capsys.readouterr().err
    assert not (world / "model/answers").exists()


def test_a_changed_question_is_asked_again(world: Path, alone: Path) -> None:
    shutil.copytree(alone, world / "edited")
    file = world / "data/annotations.json"
    before = file.read_text()
    try:
        file.write_text(before.replace("Is the clip possible?", "Is the clip quite possible?", 1))
        evaluate(world, "edited", "--max-failed", "1")
    finally:
        file.write_text(before)
    lines = (world / "edited/answers/0_of_1.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines[7:]] == ["chat0", "chat1#2"]  # the failed one is tried again
    assert rows_in(world / "edited")[0]["question"] == "Is the clip quite possible?"


def test_media_that_were_replaced_are_asked_about_again(
    world: Path, alone: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two videos change places: name and size of one file stay, and so do those of the other."""
    shutil.copytree(world / "data", world / "swapped", ignore=shutil.ignore_patterns("answers"))
    one, other = (world / "swapped" / name for name in ("chat0.mp4", "chat3.mp4"))
    size = max(file.stat().st_size for file in (one, other))
    for file in (one, other):
        file.write_bytes(file.read_bytes().ljust(size, b"\0"))

    def asked() -> list[str]:
        evaluate(world, "of_swapped", "--dataset.media_root", str(world / "swapped"))
        lines = (world / "of_swapped/answers/0_of_1.jsonl").read_text().splitlines()
        return [entry["id"] for entry in map(json.loads, lines) if "error" not in entry]

    before = asked()
    assert "asked again" not in caplog.text
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert asked()[len(before) :] == ["chat0", "chat3"]
    assert (
        caplog.text.count("2 records have changed text or media since they were answered: they are answered again") == 1
    )
    assert asked()[len(before) :] == ["chat0", "chat3"]


def test_what_is_drawn_depends_on_the_seed_alone(world: Path) -> None:
    drawn = ["--temperature", "1", "--top-p", "0.9", "--max-failed", "1"]
    evaluate(world, "drawn", *drawn)
    evaluate(world, "drawn_twice", *drawn, "--batch-size", "3")
    evaluate(world, "drawn_otherwise", *drawn, "--seed", "1")
    said = [[row["response"] for row in rows_in(world / name)] for name in ("drawn", "drawn_twice", "drawn_otherwise")]
    assert said[0] == said[1]
    assert said[0] != said[2]


def test_bertscore_is_for_texts_and_needs_its_encoder(
    world: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Computed with a folder; skipped with a warning without the default one; not asked for where answers are words."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    write_text_encoder(tmp_path / "encoder")
    scorer = ["--bertscore.model", str(tmp_path / "encoder"), "--bertscore.layers", "2"]

    def figures(name: str, *words: str) -> dict[str, Any]:
        shutil.copytree(alone, world / name)
        assert evaluate(world, name, "--metrics", "bertscore", *words) == 1
        return figures_in(world / name)

    found = figures("scored", *scorer)
    rows = [row for row in rows_in(world / "scored") if row["status"] == "ok"]
    scores = BertScore.Config(model=str(tmp_path / "encoder"), layers=2).build()
    expected = scores.compare([row["response"] for row in rows], [row["gt"] for row in rows])
    assert found["bertscore_f1"] == pytest.approx(sum(score.f1 for score in expected) / len(rows))
    assert (found["bertscore_layer"], found["skipped_metrics"]) == (2, {})
    missing = figures("unscored")
    assert "bertscore_f1" not in missing
    assert "Run `hf download microsoft/deberta-xlarge-mnli`" in missing["skipped_metrics"]["bertscore"]
    assert "bertscore is skipped" in caplog.text
    caplog.clear()
    assert evaluate(world, "words", "--metrics", "bertscore", "--task", "auto", "--limit", "2") == 0
    assert figures_in(world / "words")["skipped_metrics"] == {}
    assert "bertscore" not in caplog.text


def test_nothing_to_ask_is_an_error(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, records, words in (
        ("empty", [], "it has no records"),
        ("silent", [SILENT], "mute: no_answer"),
    ):
        (world / name).mkdir()
        (world / name / "annotations.json").write_text(json.dumps(records))
        assert evaluate(world, f"out_{name}", data=name) == 2
        assert words in capsys.readouterr().err
    (world / "gone").mkdir()
    (world / "gone/annotations.json").write_text(json.dumps([BROKEN]))
    assert evaluate(world, "out_gone", data="gone") == 2
    assert "no record has an answer: {'missing_file': 1}" in capsys.readouterr().err
    assert rows_in(world / "out_gone")[0]["status"] == "prep_error"
    assert evaluate(world, "sliced", "--slices", "weather") == 2
    assert (
        "no record has the field 'weather'; available fields: conversations, id, image, video"
        in capsys.readouterr().err
    )


def test_a_flat_spec_of_ten_tables(world: Path) -> None:
    """As the evaluator of TAO reads it; results lie where it has them."""
    (world / "spec.toml").write_text(f"""
num_gpus = 1
results_dir = "{world}/flat"
[task]
type = ""
[dataset]
annotation_path = "{world}/data/annotations.json"
media_dir = "{world}/data"
system_prompt = "Answer briefly."
[model]
model_name = "{world}/model"
save_folder = "zero_shot"
[evaluation]
answer_type = "freeform"
limit = 2
[vision]
nframes = 4
[generation]
max_tokens = 3
temperature = 0
[metrics]
names = ["rouge"]
[results]
save_confusion_matrix = true
""")
    assert main(["evaluate", "--spec", str(world / "spec.toml")]) == 0
    figures = figures_in(world / "flat/zero_shot/general")
    assert (figures["task"], figures["num_records"]) == ("binary", 2)
    assert figures["generation"]["processor"]["media"]["nframes"] == 4
    assert figures["generation"]["max_new_tokens"] == 3
    assert (world / "flat/zero_shot/general/confusion.png").is_file()


def test_rates_that_a_spec_requires_stop_it_before_the_model_is_loaded(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one data set or in one of several; the command of the message writes a file that passes."""
    records = json.loads((world / "data/annotations.json").read_text())
    shown = [record for record in records if "video" in record and record != BROKEN]
    (world / "rates").mkdir()
    old, new = world / "rates/annotations.json", world / "rated/annotations.json"
    old.write_text(json.dumps(shown))
    table, spec = {"annotation_path": str(old), "media_dir": str(world / "data")}, world / "rates.yaml"
    rest = {"model": {"model_name": str(world / "model")}, "results_dir": str(world / "required")}
    monkeypatch.setattr(EvaluateAnswers, "answerer", lambda *_, **__: pytest.fail("the model was loaded"))
    first = shown[0]["id"]
    lacking = f"{len(shown)} of {len(shown)} records with a video have no video_fps, but video_fps = 'require' is set"
    for named, word in (
        ({"dataset": table}, "dataset.video_fps=require"),
        ({"datasets": {"a": table, "b": {**table, "video_fps": "require"}}}, "dataset.video_fps=optional"),
        ({"datasets": {"a": {**table, "video_fps": "probe"}, "b": table}}, "dataset.video_fps=require"),
    ):
        spec.write_text(json.dumps({**rest, **named}))
        for dryrun in ([], ["--dryrun"]):
            assert main(["evaluate", "--spec", str(spec), word, *dryrun]) == 2
            told = capsys.readouterr().err
            for text in (lacking, f"record 0 ({first})", f"worldsmith dataset annotate-fps {old} --out NEW"):
                assert text in told
    spec.write_text(json.dumps({**rest, "dataset": {**table, "video_fps": "require"}}))
    new.parent.mkdir()
    assert main(["dataset", "annotate-fps", str(old), "--out", str(new), "--media-root", str(world / "data")]) == 0
    assert main(["evaluate", "--spec", str(spec), f"dataset.annotation_path={new}", "--dryrun"]) == 0
    assert main(["evaluate", "--spec", str(spec), "dataset.video_fps=probe", "--dryrun"]) == 0
    assert main(["evaluate", "--spec", str(spec), "dataset.video_fps=no", "--dryrun"]) == 2
    assert "optional" in capsys.readouterr().err


@pytest.mark.slow
def test_a_spec_starts_its_processes(
    world: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are GPUs; only their number is pretended."""
    (world / "gpus.toml").write_text(f"""
num_gpus = 8
results_dir = "{world}/gpus"
dataset = {{ annotation_path = "{world}/data/annotations.json", media_dir = "{world}/data" }}
model.model_name = "{world}/model"
evaluation.limit = 2
generation.max_tokens = 3
""")
    words = ["evaluate", "--spec", str(world / "gpus.toml")]
    assert main([*words, "--processes", "1", "--out", str(world / "one")]) == 0
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    capfd.readouterr()
    assert main([*words, "--dryrun"]) == 0
    said = capfd.readouterr()
    assert "starts   2 processes, which share the work" in said.out
    assert "this machine has 2 GPUs: 2 of 8 processes are used" in said.err
    assert not (world / "gpus").exists()
    assert main([*words, "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["num_records"] == 2  # one process speaks
    assert said.err.count("num_gpus is approximated: 2 of 8 processes evaluate the records") == 1
    assert len(list((world / "gpus/answers").glob("*_of_2.jsonl"))) == 2
    for name in ("results.json", "metrics.json"):
        assert (world / "gpus" / name).read_bytes() == (world / "one" / name).read_bytes()


def test_a_plan_says_what_is_opened(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(world, "planned", "--dryrun", "--shard", "1/4") == 0
    said = capsys.readouterr().out
    assert "records  7 of 8 records" in said
    assert "shard    2 of these records, shard 1 of 4" in said
    assert "media    6 files in the records, 5 of them exist; media files are not opened" in said
    assert "skipped mute: no_answer" in said
    assert "note     5 of 5 records with a video have no video_fps: the frame rate of each file is used" in said
    assert not (world / "planned").exists()
