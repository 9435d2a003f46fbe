"""The record of a result: what is in it, and how a moved or changed input is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from worldsmith.config.errors import UserError
from worldsmith.files.fingerprint import LINEAGE, fingerprint
from worldsmith.monitor.lineage import Input, Lineage, read_lineage, record_of, write_lineage


def make_result(folder: Path) -> Lineage:
    """An evaluation of a model, both below `folder`."""
    for name in ("model", "result"):
        (folder / name).mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    (folder / "questions.json").write_text("[]", encoding="utf-8")
    (folder / "result" / "results.json").write_text("[{}]", encoding="utf-8")
    write_lineage(
        folder / "result",
        action="evaluate",
        settings={"limit": 3, "out": Path("result")},
        inputs=[
            Input("model", folder / "model"),
            Input("dataset", folder / "questions.json", {"records": 7}),
            Input("base", "org/name"),
        ],
        outputs=["results.json"],
    )
    return read_lineage(folder / "result")


def test_the_record(tmp_path: Path) -> None:
    record = make_result(tmp_path)
    model, dataset, base = record.inputs
    assert (record.action, record.data["settings"]) == ("evaluate", {"limit": 3, "out": "result"})
    assert model == {
        "role": "model",
        "path": str(tmp_path / "model"),
        "fingerprint": fingerprint(tmp_path / "model"),
        "record": None,
    }
    assert (dataset["records"], dataset["fingerprint"]) == (7, fingerprint(tmp_path / "questions.json"))
    assert (base["path"], base["fingerprint"]) == ("org/name", None), "nothing is known of what is not here"
    assert record.outputs == [
        {"path": "results.json", "bytes": 4, "fingerprint": fingerprint(tmp_path / "result" / "results.json")}
    ]
    assert "torch" in record.data["versions"]


def test_an_input_knows_its_own_record(tmp_path: Path) -> None:
    make_result(tmp_path)
    run = tmp_path / "run"
    (run / "checkpoints" / "iter_000000002").mkdir(parents=True)
    (tmp_path / "next").mkdir()
    made = write_lineage(run, action="train", settings={}, inputs=[Input("dataset", tmp_path / "questions.json")])
    (run / "notes.json").write_text("{}", encoding="utf-8")
    assert made["inputs"][0]["record"] is None
    checkpoint, results, notes = (
        run / "checkpoints" / "iter_000000002",
        tmp_path / "result" / "results.json",
        run / "notes.json",
    )
    assert record_of(checkpoint) == run / LINEAGE
    assert record_of(results) == tmp_path / "result" / LINEAGE
    assert record_of(notes) is None, "a file that the record does not name was not made by that action"


def test_two_actions_in_one_folder_and_a_result_that_is_a_file(tmp_path: Path) -> None:
    for name in ("results.json", "gaps.parquet"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    write_lineage(tmp_path, action="evaluate", settings={}, inputs=[], outputs=["results.json"])
    write_lineage(tmp_path, action="quantize", settings={}, inputs=[], outputs=["gaps.parquet"])
    assert [record_of(tmp_path / name) for name in ("results.json", "gaps.parquet")] == [
        tmp_path / LINEAGE,
        tmp_path / f"quantize.{LINEAGE}",
    ]
    write_lineage(tmp_path / "gaps.parquet", action="gaps", settings={}, inputs=[], outputs=["results.json"])
    record = record_of(tmp_path / "gaps.parquet")
    assert record == tmp_path / f"gaps.parquet.{LINEAGE}"
    assert [entry["path"] for entry in read_lineage(record).outputs] == ["gaps.parquet", "results.json"]
    assert read_lineage(tmp_path).action == "evaluate"
    before = fingerprint(tmp_path)
    (tmp_path / f"more.{LINEAGE}").write_text("{}", encoding="utf-8")
    assert fingerprint(tmp_path) == before


def test_the_same_again_has_the_same_id_and_anything_else_another(tmp_path: Path) -> None:
    def written(limit: int) -> str:
        return str(
            write_lineage(
                tmp_path, action="evaluate", settings={"limit": limit}, inputs=[Input("model", tmp_path / "m")]
            )["id"]
        )

    (tmp_path / "m").write_text("a", encoding="utf-8")
    first = written(1)
    assert written(1) == first
    assert written(2) != first
    (tmp_path / "m").write_text("b", encoding="utf-8")
    assert written(1) != first


def test_what_moved_together_is_found_and_a_change_is_said(tmp_path: Path) -> None:
    make_result(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    record = read_lineage(tmp_path / "there" / "result")
    model, dataset, base = record.inputs
    assert record.locate(model) == tmp_path / "there" / "result" / ".." / "model"
    assert record.change(model, record.locate(model)) is None
    assert record.change(base, record.locate(base)) is None, "it was not here before either"
    (tmp_path / "there" / "model" / "model.safetensors").write_bytes(b"others")
    (tmp_path / "there" / "questions.json").unlink()
    assert record.change(model, record.locate(model)) == "has changed since"
    assert record.change(dataset, record.locate(dataset)) == "is missing"


def test_what_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no lineage\.json"):
        read_lineage(tmp_path)
    (tmp_path / LINEAGE).write_text(json.dumps({"schema": 9}), encoding="utf-8")
    with pytest.raises(UserError, match=r"schema 1.*found 9"):
        read_lineage(tmp_path)
