"""Windows of LeRobot episodes: frames, rows and tasks belong together; unusable episodes are rejected with the row."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from robot_episodes import FPS, TASKS, Rows, write_episodes

from worldsmith.config import WrongValueError
from worldsmith.data.robots.robot import LiberoRobot, PushTRobot, Robot
from worldsmith.data.robots.robot_dataset import RobotDataset, choose_episodes
from worldsmith.data.stream.errors import DataError
from worldsmith.files.errors import UserError

VERSIONS = pytest.mark.parametrize("version", ["v2.1", "v3.0"])


def config(folder: Path, robot: Robot.Config | None = None, **values: Any) -> RobotDataset.Config:
    robot = robot or LiberoRobot.Config(rotation="axis_angle")
    found = RobotDataset.Config(**{"path": str(folder), "robot": robot, "steps": 4, "resolution": "64", **values})
    found.check()
    return found


def reasons(dataset: RobotDataset) -> dict[str, tuple[str, str]]:
    return {item.key: (item.reason, item.detail) for item in dataset.rejections}


@VERSIONS
def test_windows_lie_in_one_episode(version: str, tmp_path: Path) -> None:
    dataset = config(write_episodes(tmp_path, version)).build()
    found = [(episode.index, first) for episode, first in map(dataset.window, range(len(dataset)))]
    assert found == [(0, n) for n in range(8)] + [(1, n) for n in range(5)] + [(2, n) for n in range(11)]
    for episode, first in map(dataset.window, range(len(dataset))):
        assert episode.columns["action"][first].tolist() == pytest.approx(
            [episode.index / 10, first / 100, 0, 0, 0, first / 50, first % 2]
        )
        assert episode.times[first] == pytest.approx(first / FPS)
        assert dataset.task(episode, first) == TASKS[episode.index % 2]
    assert (dataset.num_records, dataset.fps, dataset.rejections) == (3, FPS, [])


def test_both_versions_give_the_same_samples(tmp_path: Path) -> None:
    old, new = (config(write_episodes(tmp_path / version, version)).build() for version in ("v2.1", "v3.0"))
    assert [one.digest() for one in old.episodes] == [one.digest() for one in new.episodes]
    starts = [path_start[1] for one in new.episodes for path_start in one.videos.values()]
    assert starts == pytest.approx([0, 0, 1.2, 1.2, 0, 0])


def test_windows_may_have_a_stride_and_episodes_a_range(tmp_path: Path) -> None:
    write_episodes(tmp_path)
    assert list(config(tmp_path, window_stride=3).build().starts) == [0, 3, 6, 0, 3, 0, 3, 6, 9]
    assert [one.index for one in config(tmp_path, episodes="1:").build().episodes] == [1, 2]
    assert [one.index for one in config(tmp_path, episodes="1:2").build().episodes] == [1]


def test_an_episode_that_is_too_short_is_a_filter(tmp_path: Path) -> None:
    dataset = config(write_episodes(tmp_path), steps=12).build()
    assert {key: reason for key, (reason, _) in reasons(dataset).items()} == {
        "episode_000000": "too_short",
        "episode_000001": "too_short",
    }
    assert all(item.is_filter for item in dataset.rejections)
    assert len(dataset) == 3


def replace_value(name: str, row: int, value: Any) -> Any:
    def change(episode: int, found: Rows) -> None:
        if episode == 1:
            found[name][row] = value

    return change


@VERSIONS
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("action", [0.0] * 6, "wrong_width"),
        ("action", None, "wrong_width"),
        ("action", [float("nan")] * 7, "bad_values"),
        ("action", [float("inf")] + [0.0] * 6, "bad_values"),
        ("timestamp", 7.0, "times_differ"),
        ("timestamp", float("nan"), "bad_values"),
        ("task_index", 9, "no_task"),
        ("episode_index", 5, "rows_differ"),
    ],
)
def test_a_damaged_row_rejects_its_episode_only(
    version: str, name: str, value: Any, reason: str, tmp_path: Path
) -> None:
    dataset = config(write_episodes(tmp_path, version, change=replace_value(name, 5, value))).build()
    assert list(reasons(dataset)) == ["episode_000001"]
    found, detail = reasons(dataset)["episode_000001"]
    assert found == reason
    row = 5 + (12 if version == "v3.0" else 0)  # the row in the file
    assert reason == "rows_differ" or f"row {row}:" in detail
    assert [one.index for one in dataset.episodes] == [0, 2]
    assert dataset.rejections[0].path.endswith(".parquet")


@VERSIONS
def test_a_missing_or_damaged_table_rejects_its_episodes(version: str, tmp_path: Path) -> None:
    write_episodes(tmp_path, version)
    files = sorted(tmp_path.glob("data/**/*.parquet"))
    files[0].unlink()
    files[-1].write_bytes(b"PAR1 no table")
    dataset = config(tmp_path).build()
    expected = {
        "v2.1": {0: "missing_file", 2: "bad_table"},
        "v3.0": {0: "missing_file", 1: "missing_file", 2: "bad_table"},
    }
    assert {key: reason for key, (reason, _) in reasons(dataset).items()} == {
        f"episode_{index:06d}": reason for index, reason in expected[version].items()
    }


def test_validation_episodes_are_those_of_the_reference() -> None:
    """LIBERO in `cosmos_framework`: `random.Random(0).sample` of max(1, round(1 %)) episodes."""
    episodes = [{"episode_index": index} for index in range(379)]
    split = {"val_fraction": 0.01, "robot": LiberoRobot.Config()}
    val, train = (choose_episodes(RobotDataset.Config(split=name, **split), episodes) for name in ("val", "train"))
    expected = random.Random(0).sample(range(379), 4)
    assert {one["episode_index"] for one in val} == set(expected)
    assert len(train) == 375
    assert not {one["episode_index"] for one in train} & set(expected)
    assert choose_episodes(RobotDataset.Config(split="val", **split), episodes[:3]) != []


def test_ranges_to_keep_are_applied_by_key(tmp_path: Path) -> None:
    write_episodes(tmp_path)
    ranges = {"gs://lab/0/x": [[2, 8], [9, 30]], "gs://lab/2/x": [[0, 3]]}
    (tmp_path / "keep.json").write_text(json.dumps(ranges))
    dataset = config(tmp_path, keep_ranges=str(tmp_path / "keep.json"), keep_key="gs://{episode_id}/x").build()
    # the first frame lies in [first, min(end - steps, length - steps)), as in cosmos_framework
    assert [(one.index, int(first)) for one, first in map(dataset.window, range(len(dataset)))] == [(0, 2), (0, 3)]
    assert {key: reason for key, (reason, _) in reasons(dataset).items()} == dict.fromkeys(
        ("episode_000001", "episode_000002"), "idle"
    )
    assert str(next(dataset.flags())) == "22 of 24 windows are skipped by keep_ranges or max_idle"
    with pytest.raises(DataError, match="keep_key"):
        config(tmp_path, keep_ranges=str(tmp_path / "keep.json"), keep_key="{episode}").build()
    (tmp_path / "keep.json").write_text("[1]")
    with pytest.raises(DataError, match=r"keep\.json"):
        config(tmp_path, keep_ranges=str(tmp_path / "keep.json")).build()


def test_the_key_of_ranges_may_be_the_column_source(tmp_path: Path) -> None:
    file = write_episodes(tmp_path) / "meta/episodes/chunk-000/file-000.parquet"
    table = parquet.read_table(file)
    parquet.write_table(table.append_column("source", [["kitchen", "lab", "office"]]), file)
    (tmp_path / "keep.json").write_text(json.dumps({"lab": [[0, 9]]}))
    dataset = config(tmp_path, keep_ranges=str(tmp_path / "keep.json"), keep_key="{source}").build()
    assert {one.index for one, _ in map(dataset.window, range(len(dataset)))} == {1}


def test_idle_windows_are_skipped(tmp_path: Path) -> None:
    def change(episode: int, found: Rows) -> None:
        if episode == 2:
            found["action"][4:9] = [[0.0] * 7] * 5

    dataset = config(write_episodes(tmp_path, change=change), max_idle=0.8).build()
    kept = [int(first) for one, first in map(dataset.window, range(len(dataset))) if one.index == 2]
    # the windows of 4 rows that begin at 4 and 5 are idle; the one at 6 has only three idle rows
    assert kept == [0, 1, 2, 3, 6, 7, 8, 9, 10]


def test_the_fingerprint_changes_with_rows_windows_and_videos(tmp_path: Path) -> None:
    def fingerprint(folder: Path, **values: Any) -> str:
        found: str = config(folder, **values).build().fingerprint
        return found

    one, same = (write_episodes(tmp_path / name) for name in ("one", "same"))
    assert fingerprint(one) == fingerprint(same)
    assert fingerprint(one) != fingerprint(one, steps=8)
    assert fingerprint(one) != fingerprint(one, window_stride=2)
    other = write_episodes(tmp_path / "other", change=replace_value("action", 3, [0.5] * 7))
    assert fingerprint(one) != fingerprint(other)
    statistics = tmp_path / "s.json"
    normalized = LiberoRobot.Config(normalization="minmax", statistics=str(statistics))
    found = set()
    for high in (1, 2, 2):
        statistics.write_text(json.dumps({"min": [0] * 10, "max": [high] * 10}))
        found.add(fingerprint(one, robot=normalized))
    assert len(found) == 2
    recoded = write_episodes(tmp_path / "recoded", encoding={"gop": 3})
    assert fingerprint(one) != fingerprint(recoded)


def test_overlap_and_copies_are_found(tmp_path: Path) -> None:
    folder = write_episodes(tmp_path / "a")
    train, val = (
        config(folder, split=split, val_fraction=0.3, split_seed=seed).build()
        for split, seed in (("train", 0), ("val", 0))
    )
    assert val.count_overlap(train) == 0
    assert val.count_overlap(config(folder).build()) == len(val.episodes)
    copy = config(write_episodes(tmp_path / "b")).build()
    assert [content for _, content in copy.contents()] == [content for _, content in config(folder).build().contents()]


def test_released_heads_of_another_width_give_a_warning(tmp_path: Path) -> None:
    robot = PushTRobot.Config(cameras=["observation.images.image"])
    flag = next(config(write_episodes(tmp_path), robot).build().flags())
    assert "have 7 channels; released weights of the domain pusht have 2" in str(flag)


@pytest.mark.parametrize(
    ("robot", "found"),
    [
        (PushTRobot.Config(cameras=[]), "choose those to use"),
        (PushTRobot.Config(cameras=["top"]), "no camera top"),
        (PushTRobot.Config(cameras=["observation.images.image"], actions=["values speed"]), "no column speed"),
    ],
)
def test_a_robot_that_does_not_fit_is_refused(robot: Robot.Config, found: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=found):
        config(write_episodes(tmp_path), robot).build()


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"info\.json"):
        config(tmp_path).build()
    write_episodes(tmp_path)
    (tmp_path / "meta/tasks.parquet").unlink()
    with pytest.raises(DataError, match="tasks"):
        config(tmp_path).build()


def test_statistics_of_another_width_are_refused(tmp_path: Path) -> None:
    write_episodes(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps({"q01": [0] * 10, "q99": [1] * 10}))
    robot = LiberoRobot.Config(rotation="axis_angle", normalization="quantile", statistics=str(tmp_path / "s.json"))
    with pytest.raises(UserError, match="expected 7 finite numbers"):
        config(tmp_path, robot).build()
    missing = LiberoRobot.Config(normalization="quantile", statistics=str(tmp_path / "none.json"))
    with pytest.raises(UserError, match="worldsmith dataset statistics"):
        config(tmp_path, missing).build()
    dataset = config(
        tmp_path, LiberoRobot.Config(normalization="quantile", statistics=str(tmp_path / "s.json"))
    ).build()
    assert dataset.run_files()["robot_statistics.json"] == (tmp_path / "s.json").read_text()


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"fps": 20}, "fps is 20 in its metadata, but 10.0 in the dataset"),
        ({"rotation_format": "axis_angle"}, "rotation_format is 'axis_angle' in its metadata, but rot6d"),
        ({"rotation_format": "9d"}, "rotation_format is '9d'"),
        ({"rotation_format": ["6d"]}, "rotation_format is "),
        ({"pose_convention": "anchored"}, "pose_convention is 'anchored' in its metadata, but frame_wise"),
        ({"pose_convention": "backward_anchored"}, "worldsmith dataset statistics"),
        # the file of cosmos_framework for LIBERO, and own ones
        ({"pose_convention": "frame_wise_relative", "rotation_format": "6d", "action_dim": 10}, None),
        ({"pose_convention": "frame_wise", "rotation_format": "rot6d", "fps": FPS * 1.001}, None),
        ({}, None),
        (None, None),
    ],
)
def test_statistics_of_another_convention_are_refused(metadata: Any, found: str | None, tmp_path: Path) -> None:
    write_episodes(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps({"metadata": metadata, "q01": [0] * 10, "q99": [1] * 10}))
    robot = LiberoRobot.Config(normalization="quantile", statistics=str(tmp_path / "s.json"))
    if found is None:
        assert len(config(tmp_path, robot).build()) == 24
        return
    with pytest.raises(UserError, match=found) as caught:
        config(tmp_path, robot).build()
    assert str(caught.value).startswith(f"{tmp_path / 's.json'}: ")


ANCHORED = Robot.Config(embodiment="umi", actions=["pose s rot6d"], pose_delta="anchored")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"resolution": "65x64"}, "multiples of 16"),
        ({"modes": {"joint": 1}}, "unknown"),
        ({"modes": {"wam": 0.0}}, "positive weight"),
        ({"modes": {"policy": 1}, "robot": PushTRobot.Config(state=["values action"])}, "one frame late"),
        ({"history_of": "states", "history": 2}, "needs a state row"),
        ({"history": 1, "robot": ANCHORED}, "begin at"),
        ({"max_idle": 0.5, "robot": ANCHORED}, "no idle"),
        ({"split": "val"}, "only together"),
        ({"val_fraction": 0.1}, "only together"),
        ({"keep_key": "x"}, "without a file"),
        ({"prompt": "task", "robot": PushTRobot.Config(viewpoint="ego_view")}, "robot.viewpoint.*only the JSON prompt"),
        ({"prompt": "none", "cfg_dropout_rate": 0, "robot": LiberoRobot.Config(view_description="x")}, "only the JSON"),
        ({"prompt": "none", "cfg_dropout_rate": 0.2}, "no text that it could replace"),
        ({"episodes": "5"}, "not a range"),
        ({"episodes": "a:b"}, "not a range"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(values: dict[str, Any], found: str) -> None:
    with pytest.raises(WrongValueError, match=found):
        config(Path("x"), **values)


@pytest.mark.parametrize("robot", [LiberoRobot.Config(), PushTRobot.Config(), Robot.Config(embodiment="umi")])
def test_settings_of_the_prompt_that_are_not_set_are_accepted(robot: Robot.Config) -> None:
    config(Path("x"), robot, prompt="task", cfg_dropout_rate=0.2)
    config(Path("x"), robot, prompt="none")
    config(Path("x"), robot, prompt="none", cfg_dropout_rate=0.0)
    changed = replace(robot, viewpoint="wrist_view", view_description="The gripper is below.")
    config(Path("x"), changed)


def test_max_idle_needs_rows_that_can_be_idle(tmp_path: Path) -> None:
    robot = PushTRobot.Config(cameras=["observation.images.image"])
    with pytest.raises(DataError, match="max_idle needs actions"):
        config(write_episodes(tmp_path), robot, max_idle=0.5).build()


def test_constant_channels_and_outliers_are_warned_of(tmp_path: Path) -> None:
    def change(episode: int, found: Rows) -> None:
        if episode == 2:
            found["action"][3][0] = 50.0

    write_episodes(tmp_path, lengths=(60, 40, 50), change=change)
    constant, outlier = config(tmp_path).build().flags()
    assert str(constant) == "3 of 7 channels of the actions are constant"
    assert constant.named == "record 2 (position), record 3 (rotation), record 4 (rotation)"
    assert (outlier.count, outlier.of) == (1, 147)
    assert outlier.examples == [{"index": 3, "key": "episode_000002", "detail": "channels [0]"}]


def test_anchored_rows_are_those_of_windows(tmp_path: Path) -> None:
    robot = Robot.Config(
        embodiment="umi", actions=["pose observation.state euler_xyz"], pose_delta="anchored", rotation="axis_angle",
        cameras=["observation.images.image"],
    )  # fmt: skip
    dataset = config(write_episodes(tmp_path), robot).build()
    rows = dataset.action_rows(dataset.episodes[0])
    assert rows.shape == (8, 6)  # two windows of 12 frames
    assert rows[:4, 3].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert rows[4:, 3].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
