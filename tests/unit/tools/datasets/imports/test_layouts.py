"""Which layout a source has, and what is read from the captions and tables of people."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_sources import SOURCES, STRUCTURED, captions, clip, lines, pictures, sat_shards, sidecar, table, write

from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import examine
from worldsmith.tools.datasets.import_clips import LAYOUTS, find_layout
from worldsmith.tools.datasets.imports.caption_layouts import read_caption_file, rows_of
from worldsmith.tools.datasets.imports.source_clips import Choices, Clip, caption_of, split_of

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
QUIET = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def clips(layout: str, source: Path, **choices: object) -> dict[str, Clip]:
    found = LAYOUTS[layout].read(source, Choices(**choices))
    return {item.path.name: item for item in found if isinstance(item, Clip)}


def left_out(layout: str, source: Path) -> list[tuple[str, int | None]]:
    found = LAYOUTS[layout].read(source, Choices())
    return [(item.reason, item.line) for item in found if isinstance(item, Rejection)]


@pytest.mark.parametrize("name", SOURCES)
def test_a_layout_is_recognised_and_says_by_what(name: str, tmp_path: Path) -> None:
    make, layout = SOURCES[name]
    make(tmp_path)
    found, why = find_layout(tmp_path, "auto")
    assert found == layout
    assert why


def test_what_is_two_layouts_at_once_is_not_guessed(tmp_path: Path) -> None:
    sidecar(tmp_path)
    lines(tmp_path)
    with pytest.raises(ValueError, match=r"several layouts: sidecar: .*; lines: .*--layout"):
        find_layout(tmp_path, "auto")
    assert find_layout(tmp_path, "lines")[0] == "lines"


def test_a_source_of_no_layout_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none of the supported layouts:\n  sidecar: A folder of videos"):
        find_layout(tmp_path, "auto")
    clip(tmp_path / "a.mp4")
    assert find_layout(tmp_path, "auto")[0] == "sidecar"
    with pytest.raises(ValueError, match="does not have the layout lerobot: A LeRobot dataset"):
        find_layout(tmp_path, "lerobot")
    write(tmp_path / "train/video_dataset_file.jsonl", "{}")
    with pytest.raises(ValueError, match="no import is needed"):
        find_layout(tmp_path, "auto")


def test_links_that_lead_in_a_circle_are_followed_once(tmp_path: Path) -> None:
    sidecar(tmp_path / "source")
    (tmp_path / "source/deep/round").symlink_to(tmp_path / "source")
    (tmp_path / "linked").symlink_to(tmp_path / "source/deep")
    assert set(clips("sidecar", tmp_path / "source")) == {"one.mp4", "two.mp4"}
    assert len([item for item in LAYOUTS["sidecar"].read(tmp_path, Choices()) if isinstance(item, Clip)]) == 2


def test_labels_of_sat_are_captions(tmp_path: Path) -> None:
    clip(tmp_path / "videos/one.mp4")
    write(tmp_path / "labels/one.txt", "A bar, one.")
    write(tmp_path / "labels/two.txt", "no video")
    assert find_layout(tmp_path, "auto")[0] == "captions"
    assert {name: item.captions for name, item in clips("captions", tmp_path).items()} == {
        "one.mp4": {"caption": "A bar, one."}
    }
    assert left_out("captions", tmp_path) == [("caption_without_video", None)]


def test_captions_of_the_captioner_are_both_kept(tmp_path: Path) -> None:
    captions(tmp_path)
    found = clips("captions", tmp_path)
    assert found["one.mp4"].captions == {"caption_json": STRUCTURED, "caption": "A bar, one."}
    assert found["two.mp4"].captions == {"caption": "A bar, two."}
    assert found["one.mp4"].path == tmp_path / "train/videos/one.mp4"
    write(tmp_path / "train/captions/three/caption.txt", "no video")
    assert left_out("captions", tmp_path) == [("caption_without_video", None)]


def test_line_files_of_different_lengths_are_refused(tmp_path: Path) -> None:
    lines(tmp_path)
    write(tmp_path / "prompts.txt", "only one\n")
    with pytest.raises(ValueError, match=r"prompts.txt has 1 lines, videos.txt has 2 lines"):
        clips("lines", tmp_path)


@QUIET
@given(st.lists(st.tuples(st.sampled_from(["", " ", "one", "two"]), st.sampled_from(["", "videos/one.mp4"]))))
def test_lines_belong_to_their_numbers_whatever_is_blank(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    for name, column in zip(("prompts.txt", "videos.txt"), (0, 1), strict=True):
        write(tmp_path / name, "".join(f"{pair[column]}\n" for pair in pairs))
    while pairs and not pairs[-1][0].strip() and not pairs[-1][1]:
        pairs.pop()
    try:
        found = list(LAYOUTS["lines"].read(tmp_path, Choices()))
    except ValueError as error:  # one file ends before the other
        assert str(error).count(" lines") == 3  # noqa: PT017
        return
    taken = [item.captions.get("caption", "") for item in found if isinstance(item, Clip)]
    assert taken == [prompt.strip() for prompt, video in pairs if video]
    numbers = [item.line for item in found if isinstance(item, Rejection)]
    assert numbers == [n for n, (prompt, video) in enumerate(pairs, start=1) if prompt.strip() and not video]
    told = [item for item in found if isinstance(item, str)]
    assert len(told) == sum(1 for prompt, video in pairs if video and not prompt.strip())


def test_line_files_say_where_they_part(tmp_path: Path) -> None:
    lines(tmp_path)
    write(tmp_path / "videos.txt", "videos/one.mp4\n\nvideos/two.mp4\n\n\n")
    with pytest.raises(
        ValueError, match=r"prompts.txt has 2 lines, videos.txt has 3 lines; .*videos.txt is blank in line 2"
    ):
        clips("lines", tmp_path)
    lines(tmp_path)
    write(tmp_path / "images.txt", "a.png\nb.png\n")
    assert "its 2 images are ignored" in next(iter(LAYOUTS["lines"].read(tmp_path, Choices())))


def test_clips_stay_in_the_shards_of_sat(tmp_path: Path) -> None:
    sat_shards(tmp_path)
    found = [item for item in LAYOUTS["sat_shards"].read(tmp_path, Choices()) if isinstance(item, Clip)]
    assert [(item.key, item.captions["caption"]) for item in found] == [
        ("part.0.tar/a", "a bar"),
        ("part.0.tar/b", "another bar"),
        ("part.0.tar/a-$#%@&2", "a bar"),
    ]
    assert [examine(str(item.path))[1].num_frames for item in found] == [9, 13, 9]
    write(tmp_path / "part.meta.jsonl", '{"key": "a", "text": "x"}\nbroken\n[]\n')
    assert left_out("sat_shards", tmp_path) == [("bad_json", 2), ("bad_record", 3)]
    assert {
        item.key[-1]: item.captions
        for item in LAYOUTS["sat_shards"].read(tmp_path, Choices())
        if isinstance(item, Clip)
    } == {
        "a": {"caption": "x"},
        "b": {},
        "2": {"caption": "x"},
    }


@QUIET
@given(st.lists(st.dictionaries(st.sampled_from(["key", "caption", "text", "fps"]), TEXT | st.integers() | st.none())))
def test_any_description_of_a_shard_is_read_or_left_out_by_its_line(tmp_path: Path, items: list[dict]) -> None:
    if not (tmp_path / "part.0.tar").exists():
        sat_shards(tmp_path)
    write(tmp_path / "part.meta.jsonl", "".join(json.dumps(item) + "\n" for item in items))
    found = list(LAYOUTS["sat_shards"].read(tmp_path, Choices()))
    lines_left = [item.line for item in found if isinstance(item, Rejection) and item.line is not None]
    assert lines_left == [n for n, item in enumerate(items, start=1) if not isinstance(item.get("key"), str)]


def test_splits_are_told_from_folders(tmp_path: Path) -> None:
    table(tmp_path)
    assert {name: found.split for name, found in clips("table", tmp_path).items()} == {
        "train0.mp4": "train",
        "train1.mp4": "train",
        "validation0.mp4": "val",
    }
    names = {"Valid/a": "val", "dev/x/a": "val", "test/a": "test", "a": "train", "other/a": "train", "test": "train"}
    assert {name: split_of(Path(name)) for name in names} == names


def test_a_table_at_the_top_names_files_in_the_folders_of_splits(tmp_path: Path) -> None:
    write(tmp_path / "metadata.jsonl", '{"file_name": "val/a.mp4", "prompt": "a"}\n[]\n{"file_name": 3}\n{"x"\n')
    assert clips("table", tmp_path)["a.mp4"].split == "val"
    assert left_out("table", tmp_path) == [("bad_record", 2), ("no_path", 3), ("bad_json", 4)]
    assert clips("table", tmp_path / "metadata.jsonl")["a.mp4"].split == "val"


def test_columns_are_said_and_can_be_chosen(tmp_path: Path) -> None:
    write(tmp_path / "metadata.csv", "name,path,caption,text,mine\nq.mp4,p.mp4,one,two,three\nshort,row\n")
    said = [item for item in LAYOUTS["table"].read(tmp_path, Choices()) if isinstance(item, str)]
    assert said == [f"{tmp_path / 'metadata.csv'}: paths from path, captions from caption"]
    assert left_out("table", tmp_path) == [("bad_record", 3)]
    chosen = clips("table", tmp_path, path_column="name", caption_column="mine")
    assert {name: item.captions for name, item in chosen.items()} == {"q.mp4": {"caption": "three"}}
    with pytest.raises(ValueError, match="has no column other for captions; its columns: name, path"):
        clips("table", tmp_path, caption_column="other")
    write(tmp_path / "metadata.csv", "a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"has no column file_name or .* for paths; its columns: a, b"):
        clips("table", tmp_path)


@QUIET
@given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=1))
def test_a_csv_gives_the_cells_that_were_written(rows: list[tuple[str, str]], tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("file_name", "caption"), *rows])
    (tmp_path / "metadata.csv").write_text(text.getvalue(), encoding="utf-8", newline="")
    assert [tuple(row.values()) for _, row in rows_of(tmp_path / "metadata.csv") if isinstance(row, dict)] == rows


@QUIET
@given(rows=st.lists(st.dictionaries(TEXT, st.none() | TEXT | st.integers()), min_size=1))
def test_a_jsonl_gives_the_objects_that_were_written(rows: list[dict], tmp_path: Path) -> None:
    write(tmp_path / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [row for _, row in rows_of(tmp_path / "metadata.jsonl")] == rows


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
)


@QUIET
@given(value=JSON | st.dictionaries(st.sampled_from(["caption_json", "caption", "text", "subjects", "other"]), JSON))
def test_any_json_is_a_caption_or_is_refused_with_a_reason(value: object) -> None:
    try:
        found = caption_of(value)
    except SampleError:
        return
    assert found.keys() <= {"caption_json", "caption"}
    assert all(found.values())
    assert isinstance(found.get("caption", ""), str)
    assert isinstance(found.get("caption_json", {}), dict)


@QUIET
@given(text=TEXT)
def test_a_text_file_is_its_own_caption(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode())
    stripped = text.removeprefix("\ufeff").strip()
    assert read_caption_file(tmp_path / "a.txt") == ({"caption": stripped} if stripped else {})


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"caption": " a bar "}, {"caption": "a bar"}),
        ({"prompt": "a bar"}, {"caption": "a bar"}),
        ({"caption_json": {"subjects": []}, "caption": "a"}, {"caption_json": {"subjects": []}, "caption": "a"}),
        ({"caption_json": '{"subjects": []}'}, {"caption_json": {"subjects": []}}),
        (STRUCTURED, {"caption_json": STRUCTURED, "caption": "A bar becomes red."}),
        ({"subjects": [1], "temporal_caption": " "}, {"caption_json": {"subjects": [1], "temporal_caption": " "}}),
        ({"caption": " ", "text": None, "caption_json": {}}, {}),
        ("", {}),
        ({}, {}),
    ],
)
def test_forms_of_a_caption(value: object, found: dict) -> None:
    assert caption_of(value) == found


@pytest.mark.parametrize("value", [3, ["a"], {"fps": 8}, {"text": 3}, {"caption_json": [1]}, {"caption_json": '"a"'}])
def test_what_is_no_caption_is_refused(value: object) -> None:
    with pytest.raises(SampleError, match="bad_caption"):
        caption_of(value)


@pytest.mark.parametrize(("kind", "make"), [("videofolder", table), ("imagefolder", pictures)])
def test_rows_are_those_of_hugging_face_datasets(kind: str, make: Callable, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    make(tmp_path / "source")
    judge = datasets.load_dataset(kind, data_dir=str(tmp_path / "source"), cache_dir=str(tmp_path / "cache"))
    splits = {"train": "train", "validation": "val"}
    wanted = {
        (splits[split], row[kind[:5]]["path"], row["text"]) for split in judge for row in judge[split].data.to_pylist()
    }
    found = clips("table", tmp_path / "source").values()
    assert {(item.split, str(item.path), item.captions["caption"]) for item in found} == wanted


def test_rows_of_a_csv_are_those_of_hugging_face_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [("a.mp4", 'he said "go",\nand went'), ("b, c.mp4", "ü — 火"), ("d.mp4", " spaces ")]
    with open(tmp_path / "metadata.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file_name", "text"), *rows])
    judge = datasets.load_dataset("csv", data_files=str(tmp_path / "metadata.csv"), cache_dir=str(tmp_path / "cache"))
    assert [row for _, row in rows_of(tmp_path / "metadata.csv")] == judge["train"].to_list()


def test_a_caption_that_cannot_be_read_leaves_its_clip_out(tmp_path: Path) -> None:
    sidecar(tmp_path)
    (tmp_path / "one.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "deep/two.json").write_text('{"caption": ')
    os.mkfifo(tmp_path / "three.txt")
    clip(tmp_path / "three.mp4")
    assert left_out("sidecar", tmp_path) == [("bad_json", None), ("bad_caption", None), ("bad_caption", None)]
    assert clips("sidecar", tmp_path) == {}
