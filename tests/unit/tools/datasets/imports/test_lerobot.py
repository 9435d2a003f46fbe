"""Episodes of LeRobot datasets become clips whose frames, tasks and rows of actions belong together."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas
import pytest
from import_sources import CAMERAS, EPISODES, bars, clip, lerobot_v2, lerobot_v3, parquet, rows, write
from mp4 import read_mp4
from pyarrow import parquet as pq

from worldsmith.data.stream.quarantine import Rejection
from worldsmith.files.errors import UserError
from worldsmith.tools.datasets.imports.lerobot import read_lerobot
from worldsmith.tools.datasets.imports.source_clips import Choices, Clip

BOTH = pytest.mark.parametrize("make", [lerobot_v2, lerobot_v3])


def clips(source: Path, *cameras: str) -> dict[str, Clip]:
    return {item.key: item for item in read_lerobot(source, Choices(camera=cameras)) if isinstance(item, Clip)}


def reasons(source: Path) -> dict[str, str]:
    return {item.key: item.reason for item in read_lerobot(source, Choices()) if isinstance(item, Rejection)}


def change_info(source: Path, **changes: object) -> None:
    info = json.loads((source / "meta/info.json").read_bytes())
    write(source / "meta/info.json", {**info, **changes})


@BOTH
def test_frames_and_rows_of_an_episode_belong_together(make, tmp_path: Path) -> None:
    """Judged by pyarrow, and by the pictures: an episode has its own shade, and its frame n n times 10 of red."""
    make(tmp_path)
    found = clips(tmp_path)
    assert found.keys() == {f"episode_{index:06d}/{camera}" for index in EPISODES for camera in CAMERAS}
    for item in found.values():
        facts = item.extra["lerobot"]
        task, count = EPISODES[facts["episode"]]
        assert item.captions == {"caption": task}
        assert item.frames is not None
        assert len(item.frames) == count
        video, _ = read_mp4(item.path)
        pictures = video[:, item.frames.start : item.frames.stop].float()
        wanted = bars(count, 80 * facts["episode"])
        assert (pictures.mean((2, 3)).T - wanted.mean((1, 2))).abs().max() < 4
        actions = pq.read_table(item.linked["lerobot"])["action"].to_pylist()
        for number, frame in enumerate(item.frames):
            row = facts["first_row"] + frame - facts["first_frame"]
            assert actions[row] == [facts["episode"], number]
        assert facts["columns"] == ["action", "observation.state"]


@BOTH
def test_cameras_are_chosen_by_their_key(make, tmp_path: Path) -> None:
    make(tmp_path)
    assert clips(tmp_path, CAMERAS[1]).keys() == {f"episode_{index:06d}/{CAMERAS[1]}" for index in EPISODES}
    with pytest.raises(ValueError, match=f"has no camera front; its cameras: {', '.join(CAMERAS)}"):
        clips(tmp_path, "front")


def test_a_depth_camera_is_left_out_unless_it_is_asked_for(tmp_path: Path) -> None:
    lerobot_v3(tmp_path)
    features = json.loads((tmp_path / "meta/info.json").read_bytes())["features"]
    change_info(tmp_path, features={**features, CAMERAS[0]: {"dtype": "video", "info": {"video.is_depth_map": True}}})
    assert {key.split("/")[1] for key in clips(tmp_path)} == {CAMERAS[1]}
    assert next(read_lerobot(tmp_path, Choices())) == f"skipped cameras: {CAMERAS[0]}"
    assert {key.split("/")[1] for key in clips(tmp_path, CAMERAS[0])} == {CAMERAS[0]}


@BOTH
def test_splits_are_those_of_the_dataset(make, tmp_path: Path) -> None:
    make(tmp_path)
    change_info(tmp_path, splits={"train": "0:1", "val": "1:2", "unseen": "2:3"})
    assert {key[:14]: item.split for key, item in clips(tmp_path).items()} == {
        "episode_000000": "train",
        "episode_000001": "val",
    }
    assert set(reasons(tmp_path).values()) == {"other_split"}


def test_an_episode_of_two_tasks_is_cut_where_the_task_changes(tmp_path: Path) -> None:
    lerobot_v2(tmp_path)
    tasks = ["pick it"] * 4 + ["place it"] * 5
    data = tmp_path / "data/chunk-000/episode_000000.parquet"
    parquet(rows(0, tasks), data)
    lines = (tmp_path / "meta/episodes.jsonl").read_text().splitlines()
    lines[0] = json.dumps({"episode_index": 0, "tasks": ["pick it", "place it"], "length": 9})
    write(tmp_path / "meta/episodes.jsonl", "\n".join(lines) + "\n")
    found = clips(tmp_path, CAMERAS[0])
    parts = [found[f"episode_000000/{CAMERAS[0]}/{number}"] for number in (0, 1)]
    assert [(part.frames, part.captions["caption"]) for part in parts] == [
        (range(4), "pick it"),
        (range(4, 9), "place it"),
    ]
    assert [part.extra["lerobot"]["first_row"] for part in parts] == [0, 4]
    data.unlink()
    assert reasons(tmp_path) == {f"episode_000000/{camera}": "several_tasks" for camera in CAMERAS}


@BOTH
def test_without_data_files_there_are_clips_and_no_actions(make, tmp_path: Path) -> None:
    make(tmp_path)
    for file in (tmp_path / "data").rglob("*.parquet"):
        file.unlink()
    found = clips(tmp_path)
    assert len(found) == len(EPISODES) * len(CAMERAS)
    assert not any("first_row" in item.extra["lerobot"] or item.linked for item in found.values())


@BOTH
def test_what_does_not_fit_together_is_left_out(make, tmp_path: Path) -> None:
    make(tmp_path)
    last = max((tmp_path / "videos").rglob("*.mp4"))
    last.unlink()
    change_info(tmp_path, fps=8)
    assert set(reasons(tmp_path).values()) == {"missing_file"}
    clip(last, 13, fps=9)
    assert set(reasons(tmp_path).values()) == {"rate_differs"}
    clip(last, 13)
    assert reasons(tmp_path) == {}
    change_info(tmp_path, fps=9)
    assert set(reasons(tmp_path).values()) == {"rate_differs"}
    change_info(tmp_path, fps=8)
    parquet(rows(2, ["pick it"] * 12), max((tmp_path / "data").rglob("*.parquet")))
    assert set(reasons(tmp_path).values()) == {"rows_differ"}


@BOTH
@pytest.mark.parametrize("fps", [float("nan"), float("inf"), 0, -8, True, "8"])
def test_a_rate_that_is_none_is_refused(make, fps: object, tmp_path: Path) -> None:
    make(tmp_path)
    change_info(tmp_path, fps=fps)
    with pytest.raises(ValueError, match=r"info\.json: fps: expected a number above 0, found"):
        reasons(tmp_path)


def test_a_start_that_is_no_number_fits_no_frame(tmp_path: Path) -> None:
    lerobot_v3(tmp_path)
    file = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(file).to_pandas()
    table.loc[1, f"videos/{CAMERAS[0]}/from_timestamp"] = float("nan")  # stored as null
    table.to_parquet(file)
    assert reasons(tmp_path) == {f"episode_000001/{CAMERAS[0]}": "times_differ"}


def test_a_start_between_two_frames_is_not_rounded(tmp_path: Path) -> None:
    lerobot_v3(tmp_path)
    file = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(file).to_pandas()
    table.loc[1, f"videos/{CAMERAS[0]}/from_timestamp"] += 0.5 / 8
    table.to_parquet(file)
    assert reasons(tmp_path) == {f"episode_000001/{CAMERAS[0]}": "times_differ"}


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"codebase_version": "v1.6"}, r"is LeRobot v1.6; supported versions: v2.0, v2.1, v3.0"),
        ({"features": {"action": {"dtype": "float32"}}}, "has no videos"),
        ({"video_path": "videos/{no_such}.mp4"}, "'no_such' is missing"),
    ],
)
def test_a_dataset_that_cannot_be_read_says_why(info: dict, message: str, tmp_path: Path) -> None:
    lerobot_v2(tmp_path)
    change_info(tmp_path, **info)
    with pytest.raises(ValueError, match=message):
        clips(tmp_path)


def test_rows_of_an_episode_that_are_apart_are_not_joined(tmp_path: Path) -> None:
    lerobot_v3(tmp_path)
    file = tmp_path / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file).to_pandas()
    parquet(table.iloc[[*range(4), *range(9, 14), *range(4, 9)]], file)
    assert reasons(tmp_path) == {f"episode_000000/{camera}": "rows_differ" for camera in CAMERAS}


def test_a_task_may_be_in_a_column_without_name_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lerobot_v3(tmp_path)
    file = tmp_path / "meta/tasks.parquet"
    pandas.DataFrame({"seen": [1, 2], "task_index": [0, 1]}, index=["pick it", "place it"]).to_parquet(file)
    assert {item.captions["caption"] for item in clips(tmp_path).values()} == {"pick it", "place it"}
    file.write_text("no parquet")
    with pytest.raises(ValueError, match="cannot be read as parquet"):
        clips(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"worldsmith\[lerobot\]"):
        clips(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("fps", "8", "expected a number above 0, found '8'"),
        ("fps", 0, "expected a number above 0, found 0"),
        ("features", 5, "expected an object of objects, found 5"),
        ("features", {"camera": "video"}, "expected an object of objects"),
        ("chunks_size", "many", "expected an integer above 0, found 'many'"),
        ("video_path", ["a"], "expected a string"),
        ("splits", "all", "expected an object, found 'all'"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_the_file_and_the_key(
    name: str, value: object, words: str, tmp_path: Path
) -> None:
    lerobot_v2(tmp_path)
    change_info(tmp_path, **{name: value})
    with pytest.raises(ValueError, match=f"{tmp_path}/meta/info.json: {name}: {words}"):
        list(read_lerobot(tmp_path, Choices()))


@BOTH
def test_episodes_of_a_task_without_text_are_left_out(make, tmp_path: Path) -> None:
    make(tmp_path)
    lines = tmp_path / "meta/tasks.jsonl"
    if lines.is_file():
        write(lines, lines.read_text().replace('"place it"', "null"))
    else:
        parquet(pandas.DataFrame({"task_index": [0, 1], "task": ["pick it", None]}), tmp_path / "meta/tasks.parquet")
    assert {key[:14] for key in clips(tmp_path)} == {"episode_000000", "episode_000002"}
    refused = [item for item in read_lerobot(tmp_path, Choices()) if isinstance(item, Rejection)]
    assert [(item.key, item.reason) for item in refused] == [(f"episode_000001/{name}", "no_task") for name in CAMERAS]
    (file,) = (
        name for name in (tmp_path / "data").rglob("*.parquet") if 1 in set(pandas.read_parquet(name)["task_index"])
    )
    row = pandas.read_parquet(file)["task_index"].tolist().index(1)
    assert refused[0].detail == f"{file}, row {row}: task 1 has no text in the list of tasks"


@pytest.mark.parametrize("prefix", ["data", f"videos/{CAMERAS[1]}"])
def test_an_episode_without_the_number_of_a_file_is_left_out_with_its_place(prefix: str, tmp_path: Path) -> None:
    lerobot_v3(tmp_path)
    file = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(file).to_pandas()
    table[f"{prefix}/chunk_index"] = pandas.array([0, None, 0], "Int64")
    table.to_parquet(file)
    refused = [item for item in read_lerobot(tmp_path, Choices()) if isinstance(item, Rejection)]
    assert [item.key for item in refused] == [
        f"episode_000001/{name}" for name in CAMERAS if prefix in ("data", f"videos/{name}")
    ]
    assert {(item.reason, item.path, item.index) for item in refused} == {("bad_metadata", str(file), 1)}
    assert refused[0].detail.startswith(f"row 1: {prefix}: expected the numbers of a file, found")
    assert len(clips(tmp_path)) == len(EPISODES) * len(CAMERAS) - len(refused)


def test_files_in_a_store_that_were_replaced_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second import of one process gives the new tasks and times."""
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    lerobot_v3(folder)

    def found() -> list[tuple[str, range | None]]:
        fsspec.filesystem("memory").put(f"{folder}/", "/replaced/", recursive=True)
        items = [*read_lerobot("memory://replaced", Choices(camera=CAMERAS[:1]))]
        return [(item.captions["caption"], item.frames) for item in items if isinstance(item, Clip)]

    video = folder / f"videos/{CAMERAS[0]}/chunk-000/file-000.mp4"
    both = video.read_bytes()
    clip(video, 9)  # without episode 1
    assert found() == [("pick it", range(9)), ("pick it", range(13))]
    video.write_bytes(both)
    parquet(
        pandas.concat([rows(0, ["place it"] * 9), rows(1, ["pick it"] * 5)]), folder / "data/chunk-000/file-000.parquet"
    )
    assert found() == [("place it", range(9)), ("pick it", range(9, 14)), ("pick it", range(13))]
