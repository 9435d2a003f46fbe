"""`worldsmith gaps`: the table of the tool that it replaces, and what that tool cannot do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyarrow import parquet

from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.files.remote import RemoteError
from worldsmith.monitor.lineage import Input, read_lineage, record_of, write_lineage
from worldsmith.tools.gaps.find_gaps import COLUMNS, FindGaps

ANSWERS = {"a": ("Yes.", "yes"), "b": ("no", "Yes"), "c": (" YES", "yes"), "d": ("Yes", "No"), "e": ("left", "right")}


def annotation(name: str, truth: str, **media: Any) -> dict[str, Any]:
    turns = [{"from": "human", "value": f"<video>\nWhat of {name}?"}, {"from": "gpt", "value": truth}]
    return {"id": name, **(media or {"video": f"clips/{name}.mp4"}), "conversations": turns}


def row(name: str, said: str | None, truth: str, **more: Any) -> dict[str, Any]:
    """As the evaluator of the old system writes it."""
    return {"video_id": name, "question": f"What of {name}?", "response": said, "gt": truth, **more}


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """Results and annotations of five clips, of which one is there."""
    write(tmp_path / "kpi.json", [annotation(name, truth) for name, (_, truth) in ANSWERS.items()])
    write(tmp_path / "out" / "zero_shot" / "general" / "results.json", [row(n, *said) for n, said in ANSWERS.items()])
    (tmp_path / "media" / "clips").mkdir(parents=True)
    (tmp_path / "media" / "clips" / "b.mp4").write_bytes(b"")
    return tmp_path


def write(file: Path, data: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data), encoding="utf-8")


def config(folder: Path, **changes: Any) -> FindGaps.Config:
    places = {
        "results_dir": str(folder / "out"),
        "gaps_parquet": str(folder / "new" / "gaps.parquet"),
        "kpi_ann_path": str(folder / "kpi.json"),
        "kpi_media_path": str(folder / "media"),
    }
    return FindGaps.Config(**{**places, **changes})


def find(folder: Path, **changes: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of the table, and the counts."""
    settings = config(folder, **changes)
    facts = dict(settings.build().run().facts)
    return parquet.read_table(settings.gaps_parquet).to_pylist(), facts


def judge(folder: Path) -> list[dict[str, str]]:
    """What the replaced tool writes."""
    (results,) = (folder / "out").rglob("results.json")
    videos = {record["id"]: record["video"] for record in json.loads((folder / "kpi.json").read_text())}
    return [
        {
            "video_id": f"{folder}/media/{videos[r['video_id']]}",
            "question": r["question"],
            "ground_truth": r["gt"].lower().strip(),
        }
        for r in json.loads(results.read_text())
        if r["response"].lower().strip() != r["gt"].lower().strip()
    ]


def test_the_first_columns_are_those_of_the_tool_that_is_replaced(evaluated: Path) -> None:
    words = ["--results-dir", f"{evaluated}/out", "--gaps-parquet", f"{evaluated}/new/gaps.parquet"]
    words += ["--kpi-ann-path", f"{evaluated}/kpi.json", "--kpi-media-path", f"{evaluated}/media"]
    assert main(["gaps", *words]) == 0
    table = parquet.read_table(evaluated / "new" / "gaps.parquet")
    assert table.column_names == list(COLUMNS)
    assert table.column_names[:3] == ["video_id", "question", "ground_truth"]
    assert table.select([0, 1, 2]).to_pylist() == judge(evaluated)
    assert len(judge(evaluated)) == 4


def test_what_else_is_known_of_a_gap(evaluated: Path) -> None:
    rows, facts = find(evaluated)
    assert [(r["record_id"], r["error_type"], r["prediction"], r["normalized_prediction"]) for r in rows] == [
        ("a", "format", "Yes.", "yes."),
        ("b", "FN", "no", "no"),
        ("d", "FP", "Yes", "yes"),
        ("e", "wrong", "left", "left"),
    ]
    assert [r["media_exists"] for r in rows] == [False, True, False, False]
    assert {r["results_file"] for r in rows} == {f"{evaluated}/out/zero_shot/general/results.json"}
    assert [r["row"] for r in rows] == [0, 1, 3, 4]
    assert (facts["answers"], facts["gaps"], facts["format_only"], facts["media_missing"]) == (5, 4, 1, 3)
    assert (facts["accuracy"], facts["accuracy_without_format_gaps"]) == (0.2, 0.4)
    assert facts["error_types"] == {"FN": 1, "FP": 1, "format": 1, "wrong": 1}
    assert json.loads((evaluated / "new" / "gaps.summary.json").read_text()) == facts


def test_the_lines_say_what_is_of_form_only(evaluated: Path) -> None:
    lines = list(config(evaluated).build().run().lines)
    assert lines[-2:] == [
        "failures   4 of 5 answers: FN 1, FP 1, format 1, wrong 1",
        "format     1: correct, but not in the format that `exact` requires",
    ]


def test_without_a_gap_the_columns_stay(evaluated: Path) -> None:
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", [row("c", "YES", "yes")])
    find(evaluated)
    schema = parquet.read_schema(evaluated / "new" / "gaps.parquet")
    assert [(field.name, str(field.type)) for field in schema][:3] == [(name, "string") for name in list(COLUMNS)[:3]]
    assert schema.names == list(COLUMNS)
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", [])
    assert find(evaluated, force=True)[1]["accuracy"] is None


def test_the_modes(evaluated: Path) -> None:
    assert [r["record_id"] for r in find(evaluated, mode="normalized")[0]] == ["b", "d", "e"]
    with pytest.raises(
        UserError, match=r"1 rows cannot be compared:\n.*\[4\]: the ground truth 'right' cannot be parsed"
    ):
        find(evaluated, mode="yes_no", force=True)


def test_an_answer_that_is_not_there(evaluated: Path) -> None:
    write(evaluated / "out" / "results.json", [row("a", None, "yes"), {"video_id": "b", "question": "?", "gt": ""}])
    rows, _ = find(evaluated, results_dir=str(evaluated / "out" / "results.json"))
    assert [(r["error_type"], r["prediction"]) for r in rows] == [("missing", None)] * 2


def test_a_record_that_could_not_be_asked(evaluated: Path) -> None:
    """It is called by its place, has no true answer, and is missing in every mode; what is no record is not counted."""
    nameless = {**annotation("", "yes"), "id": None}
    write(evaluated / "kpi.json", [annotation("a", "yes"), "no record", nameless])
    failed = {"id": "kpi.json[2]", "video_id": "kpi.json[2]", "question": "", "response": "", "gt": ""}
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", [{**failed, "status": "prep_error"}])
    for mode in ("exact", "yes_no"):
        rows, _ = find(evaluated, mode=mode, force=True)
        assert [(r["record_id"], r["error_type"]) for r in rows] == [("kpi.json[2]", "missing")]
    write(evaluated / "kpi.json", ["no record"])
    with pytest.raises(UserError, match=r"kpi\.json: expected a list of records"):
        find(evaluated, force=True)


def test_records_in_lines_and_a_single_one(evaluated: Path) -> None:
    lines = "\n".join(json.dumps(annotation(name, truth)) for name, (_, truth) in ANSWERS.items())
    (evaluated / "kpi.json").write_text(f"{lines}\n", encoding="utf-8")
    assert len(find(evaluated)[0]) == 4
    write(evaluated / "kpi.json", annotation("b", "yes"))
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", [row("b", "no", "yes")])
    assert [r["record_id"] for r in find(evaluated, force=True)[0]] == ["b"]
    (evaluated / "kpi.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="neither JSON nor JSON Lines"):
        find(evaluated, force=True)


def test_an_answer_to_no_record(evaluated: Path) -> None:
    write(evaluated / "kpi.json", [annotation("a", "yes")])
    with pytest.raises(UserError, match=r"Video 'b', 'd', 'e' not found in annotations .*kpi\.json \(3 of the wrong"):
        find(evaluated)


def test_images_several_media_and_none(evaluated: Path) -> None:
    write(
        evaluated / "kpi.json",
        {
            "annotations": [
                annotation("a", "yes", image="a.png"),
                annotation("b", "yes", images=["b1.png", "/far/b2.png"]),
                annotation("d", "no", media="none"),
                annotation("e", "right", video="s3://bucket/e.mp4"),
            ]
        },
    )
    rows, facts = find(evaluated, kpi_media_path=None)
    assert [r["video_id"] for r in rows] == [f"{evaluated}/a.png", f"{evaluated}/b1.png", "", "s3://bucket/e.mp4"]
    assert rows[1]["media"] == [f"{evaluated}/b1.png", "/far/b2.png"]
    assert [r["media_exists"] for r in rows] == [False, False, None, None]
    assert (facts["media_missing"], facts["media_unknown"]) == (2, 1), "s3 cannot be reached from here"


def test_records_that_share_an_id(evaluated: Path) -> None:
    one, two = annotation("x", "yes", video="1.mp4"), annotation("x", "no", video="2.mp4")
    two["conversations"][0]["value"] = "<video>\nAnd now?"
    write(evaluated / "kpi.json", [one, two])
    wrong = [row("x", "no", "yes"), {**row("x", "yes", "no"), "question": "And now?"}]
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", wrong)
    assert [(r["record_id"], r["video_id"]) for r in find(evaluated)[0]] == [
        ("x", f"{evaluated}/media/1.mp4"),
        ("x#2", f"{evaluated}/media/2.mp4"),
    ]
    own = [{**row("x", "no", "yes"), "id": "x"}, {**row("x", "yes", "no"), "id": "x#2"}]
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", own)
    assert [r["record_id"] for r in find(evaluated, force=True)[0]] == ["x", "x#2"]
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", [{**wrong[0], "question": "Something else?"}])
    with pytest.raises(UserError, match=r"2 records of .* have the name 'x' but different media files"):
        find(evaluated, force=True)


def test_several_results(evaluated: Path) -> None:
    write(evaluated / "out" / "tuned" / "results.json", [row("a", "no", "yes")])
    with pytest.raises(
        UserError, match=r"has 2 results\.json: select one with --results-dir, or combine them with --merge:\n.*tuned/"
    ):
        find(evaluated)
    rows, facts = find(evaluated, merge=True)
    assert (len(rows), facts["answers"]) == (5, 6)
    assert len({r["results_file"] for r in rows}) == 2
    with pytest.raises(UserError, match=r"found no results\.json in it"):
        find(evaluated, results_dir=str(evaluated / "media"), force=True)


def test_slices_and_tasks(evaluated: Path) -> None:
    rows = [
        row("a", "no", "yes", task="binary", slice={"camera": "front"}),
        row("b", "yes", "yes", task="binary", slice={"camera": "rear"}),
        row("c", "no", "yes", task="binary", slice={"camera": "rear"}),
    ]
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", rows)
    found, facts = find(evaluated)
    assert facts["slices"] == {
        "camera: front": {"answers": 1, "gaps": 1},
        "camera: rear": {"answers": 2, "gaps": 1},
        "task: binary": {"answers": 3, "gaps": 2},
    }
    assert (found[0]["task"], json.loads(found[0]["slice"])) == ("binary", {"camera": "front"})


def test_places_behind_urls() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/kpi/annotations.json", json.dumps([annotation("a", "yes"), annotation("b", "no")]).encode())
    memory.pipe_file("/kpi/clips/b.mp4", b"")
    memory.pipe_file("/out/run/results.json", json.dumps([row("a", "no", "yes"), row("b", "yes", "no")]).encode())
    FindGaps.Config(
        results_dir="memory://out",
        gaps_parquet="memory://new/deep/gaps.parquet",
        kpi_ann_path="memory://kpi/annotations.json",
        annotations_out="memory://new/next.json",
    ).build().run()
    with memory.open("/new/deep/gaps.parquet") as file:
        rows = parquet.read_table(file).to_pylist()
    assert [(r["video_id"], r["media_exists"]) for r in rows] == [
        ("memory://kpi/clips/a.mp4", False),
        ("memory://kpi/clips/b.mp4", True),
    ]
    assert json.loads(memory.cat_file("/new/deep/gaps.summary.json"))["gaps"] == 2
    assert json.loads(memory.cat_file("/new/next.json"))[0]["video"] == "memory://kpi/clips/a.mp4"


def test_a_place_of_another_kind_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"abfs://bucket/out needs a library that is not installed: .*adlfs"):
        FindGaps.Config(results_dir="abfs://bucket/out", gaps_parquet=f"{tmp_path}/g.parquet").build().run()


def test_gaps_as_json_and_as_training_data(evaluated: Path) -> None:
    settings = config(
        evaluated, gaps_parquet=f"{evaluated}/new/gaps.json", annotations_out=f"{evaluated}/elsewhere/next.json"
    )
    settings.build().run()
    rows = json.loads((evaluated / "new" / "gaps.json").read_text())
    assert list(rows[0]) == list(COLUMNS)
    dataset = LlavaDataset.Config(path=settings.annotations_out).build()
    assert [dataset.place(n)[0] for n in range(len(dataset))] == ["a", "b", "d", "e"]
    shown, truth = dataset.turns(1)
    assert (shown.parts[0].source, truth.text) == (f"{evaluated}/media/clips/b.mp4", "Yes")


def test_what_an_evaluation_has_recorded_need_not_be_given(evaluated: Path) -> None:
    """Neither the annotations nor the media root; and a change of the annotations is found."""
    folder = evaluated / "out" / "zero_shot" / "general"
    write_lineage(
        folder,
        action="evaluate",
        settings={"dataset": {"media_root": str(evaluated / "media")}},
        inputs=[Input("dataset", evaluated / "kpi.json")],
        outputs=["results.json"],
    )
    rows, _ = find(evaluated, kpi_ann_path=None, kpi_media_path=None)
    assert [{name: r[name] for name in list(COLUMNS)[:3]} for r in rows] == judge(evaluated)
    assert {r["evaluation"] for r in rows} == {read_lineage(folder).id}
    record = record_of(evaluated / "new" / "gaps.parquet")
    assert record is not None
    inputs = {entry["role"]: entry["record"] for entry in read_lineage(record).inputs}
    assert inputs == {"results": str(folder / "lineage.json"), "dataset": None}
    write(evaluated / "kpi.json", [])
    with pytest.raises(UserError, match=r"kpi\.json has changed since: it differs from the evaluated file"):
        find(evaluated, kpi_ann_path=None, force=True)


def test_results_that_say_what_was_shown_need_no_annotations(evaluated: Path) -> None:
    own = [{**row("a", "no", "yes"), "id": "a", "status": "ok", "media": ["/clips/a.mp4"]}]
    write(evaluated / "out" / "zero_shot" / "general" / "results.json", own)
    rows, _ = find(evaluated, kpi_ann_path=None)
    assert [(r["video_id"], r["record_id"]) for r in rows] == [("/clips/a.mp4", "a")]
    with pytest.raises(UserError, match="annotations of the evaluation are unknown"):
        find(evaluated, kpi_ann_path=None, annotations_out=f"{evaluated}/next.json", force=True)


def test_nothing_is_replaced_unasked(evaluated: Path) -> None:
    find(evaluated)
    with pytest.raises(FileExistsError, match=r"gaps\.parquet already exists: choose another name, or use --force"):
        find(evaluated)
    find(evaluated, force=True)


def test_the_plan_writes_nothing(evaluated: Path) -> None:
    lines = list(config(evaluated).build().plan())
    assert lines[0] == f"results    5 answers in {evaluated}/out/zero_shot/general/results.json"
    assert lines[1] == f"records    5 in {evaluated}/kpi.json"
    assert not (evaluated / "new").exists()
