"""`worldsmith check` of robot episodes: file, episode and row of each damage, statistics, and the right questions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_generator
import tiny_runs
from pyarrow import parquet
from robot_episodes import Rows, encode, frames, save, transpose, write_episodes

from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.robot import LiberoRobot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.objectives.rectified_flow import RectifiedFlow

WRIST = "observation.images.wrist_image"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("robots") / "world", clips=3)


def robot_run(world: Path, folder: Path, **values: Any) -> Any:
    config = tiny_runs.tiny_config(world)
    config.model.config = tiny_generator.generator_config(action_gen=True)
    config.objective = ActionFlow.Config()
    dataset = RobotDataset.Config(path=str(folder), robot=LiberoRobot.Config(), steps=4, resolution="64", **values)
    config.dataloader_train = RobotLoader.Config(dataset=dataset, max_samples_per_batch=4, max_bad_fraction=1.0)
    return config


def check(config: Any, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], int]:
    (folder / "run.yaml").write_text(to_yaml(config))
    code = main(["check", str(folder / "run.yaml"), "--json", "--workers", "0", *words])
    return json.loads(capsys.readouterr().out), code


def damage(episode: int, found: Rows) -> None:
    changes = {
        1: ("action", 3, [0.0] * 6),
        2: ("action", 4, [float("inf")] * 7),
        3: ("timestamp", 5, 9.0),
        4: ("action", 0, [60.0] + [0.0] * 6),
        8: ("action", 2, [0.0] * 3 + [1e300] + [0.0] * 3),  # finite in float64 only
    }
    if episode in changes:
        name, row, value = changes[episode]
        found[name][row] = value


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_every_damage_is_reported_with_its_place(
    version: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_episodes(tmp_path / "data", version, (60, 12, 12, 12, 60, 3, 12, 12, 12), change=damage)
    videos = sorted(folder.glob(f"videos/**/{WRIST}/**/*.mp4"))
    videos[-2].unlink()  # that of episode 7
    encode(videos[-3], frames(6, 12, 1, (32, 32))[:-1])
    report = check(robot_run(world, folder), tmp_path, capsys)[0]["data"]["train"]
    found = {reason: group["examples"] for reason, group in report["left_out"].items()}
    shift = 60 if version == "v3.0" else 0  # episodes 0 and 1 share a file
    assert {reason: examples[0]["key"] for reason, examples in found.items()} == {
        "wrong_width": "episode_000001",
        "bad_values": "episode_000002",
        "times_differ": "episode_000003",
        "too_short": "episode_000005",
        "truncated": "episode_000006_f7",
        "missing_file": found["missing_file"][0]["key"],
    }
    assert found["wrong_width"][0]["detail"] == f"row {3 + shift}: action has 6 values: expected 7"
    assert "row 4: action contains [inf" in found["bad_values"][0]["detail"]
    assert found["bad_values"][1]["key"] == "episode_000008"
    assert "row 2: action contains [0.0, 0.0, 0.0, 1e+300" in found["bad_values"][1]["detail"]
    assert found["times_differ"][0]["detail"].startswith("row 5: 9 s follows 0.4 s")
    assert report["left_out"]["missing_file"]["count"] == 8
    assert found["missing_file"][0]["key"].startswith("episode_000007_f")
    assert found["missing_file"][0]["detail"] == f"{videos[-2]}: the file does not exist"
    assert found["truncated"][0]["detail"].startswith(f"{videos[-3]}: the file ends before the frame at 1.1")
    for reason in ("wrong_width", "bad_values", "times_differ"):
        assert Path(found[reason][0]["path"]).is_file()
    assert (report["records"], report["kept"]) == (9, 56 + 56 + 7)
    flags = {flag["name"]: flag for flag in report["flags"]}
    assert flags["outlier"]["examples"][0] == {"index": 0, "key": "episode_000004", "detail": "channels [0]"}
    assert report["features"]["action rows"] == {"labels": ["4"], "counts": [119]}


Change = Callable[[list[dict[str, Any]]], None]


def change_rows(file: Path, change: Change) -> None:
    """Changes the rows of a metadata file, which is a table or JSON Lines."""
    if file.suffix == ".jsonl":
        found = [json.loads(line) for line in file.read_text().splitlines()]
        change(found)
        file.write_text("".join(json.dumps(row) + "\n" for row in found))
    else:
        found = parquet.read_table(file).to_pylist()
        change(found)
        save(file, transpose(found))


def setting(row: int, name: str, value: Any) -> Change:
    return lambda found: found[row].update({name: value})


@pytest.mark.parametrize(
    ("name", "value", "detail"),
    [
        ("from_timestamp", float("nan"), "row 2: PREFIX/from_timestamp: expected seconds, found nan"),
        ("from_timestamp", None, "row 2: PREFIX/from_timestamp: expected seconds, found None"),
        ("file_index", None, "row 2: PREFIX: expected the numbers of a file, found {'chunk_index': 0, 'file_ind"),
        ("data/file_index", None, "row 2: data: expected the numbers of a file, found {'chunk_index': 0, 'file_ind"),
    ],
)  # fmt: skip
def test_an_episode_with_damaged_metadata_is_reported_with_its_place(
    name: str, value: Any, detail: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_episodes(tmp_path / "data")
    file = folder / "meta/episodes/chunk-000/file-000.parquet"
    change_rows(file, setting(2, name if "/" in name else f"videos/{WRIST}/{name}", value))
    report = check(robot_run(world, folder), tmp_path, capsys)[0]["data"]["train"]
    assert {reason: group["count"] for reason, group in report["left_out"].items()} == {"bad_metadata": 1}
    (example,) = report["left_out"]["bad_metadata"]["examples"]
    assert (example["key"], example["path"], example["index"]) == ("episode_000002", str(file), 2)
    assert detail.replace("PREFIX", f"videos/{WRIST}") in example["detail"]
    assert (report["kept"], report["bad"]) == (8 + 5, 1)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_episodes_of_a_task_without_text_are_reported(
    version: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_episodes(tmp_path / "data", version)
    change_rows(next(folder.glob("meta/tasks.*")), setting(1, "task", None))
    report = check(robot_run(world, folder), tmp_path, capsys)[0]["data"]["train"]
    assert {reason: group["count"] for reason, group in report["left_out"].items()} == {"no_task": 1}
    (example,) = report["left_out"]["no_task"]["examples"]
    assert example["key"] == "episode_000001"
    assert example["detail"] == f"row {12 if version == 'v3.0' else 0}: task 1 has no text in the list of tasks"
    assert Path(example["path"]).is_file()


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_an_episode_without_a_number_is_a_problem_of_the_dataset(
    version: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_episodes(tmp_path / "data", version)
    (file,) = [*folder.glob("meta/episodes.jsonl"), *folder.glob("meta/episodes/**/*.parquet")]
    change_rows(file, setting(1, "episode_index", None))
    facts, code = check(robot_run(world, folder), tmp_path, capsys)
    assert code == 2
    (problem,) = facts["problems"]
    assert problem.endswith(f"{file}, row 1: episode_index: expected an integer, found None")


def test_ranges_of_the_actions_are_those_of_numpy(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = robot_run(world, write_episodes(tmp_path / "data", lengths=(40, 30, 50)))
    found = check(config, tmp_path, capsys)[0]["data"]["train"]["channels"]
    dataset = config.dataloader_train.dataset.build()
    rows = np.concatenate([dataset.action_rows(episode) for episode in dataset.episodes])
    assert len(rows) == 117
    kinds = ["position"] * 3 + ["rotation"] * 6 + ["gripper"]
    assert list(found) == [f"{index} {kind}" for index, kind in enumerate(kinds)]
    expected = [rows.min(0), np.percentile(rows, 1, axis=0), np.percentile(rows, 99, axis=0), rows.max(0)]
    for index, values in enumerate(found.values()):
        assert list(values) == ["min", "q01", "q99", "max"]
        assert list(values.values()) == pytest.approx([each[index] for each in expected])
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["check", str(tmp_path / "run.yaml"), "--workers", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("actions "))
    table = lines[start : start + 11]
    assert table[0].split() == ["actions", "min", "1", "%", "99", "%", "max"]
    assert table[2].split() == ["1", "position", *(f"{each[1]:.4g}" for each in expected)]
    assert {len(line) for line in table} == {67}
    assert not lines[start + 11].startswith(" ")


def test_a_mix_is_checked_as_a_run_reads_it(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = robot_run(world, write_episodes(tmp_path / "data"))
    plain = tiny_runs.tiny_config(world).dataloader_train.dataset
    robots = config.dataloader_train.dataset
    config.dataloader_train.dataset = ClipMix.Config(datasets={"arm": robots, "films": plain})
    facts, code = check(config, tmp_path, capsys)
    report = facts["data"]["train"]
    assert (code, report["kept"], report["left_out"]) == (0, 24 + 3, {})
    assert report["flags"][0]["said"] == "channels of the actions are constant (arm)"
    assert [*report["channels"]][::9] == ["arm: 0 position", "arm: 9 gripper"]


def test_a_folder_is_checked_with_a_config_that_reads_robots(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_episodes(tmp_path / "data")
    (tmp_path / "run.yaml").write_text(to_yaml(robot_run(world, Path("elsewhere"))))
    words = ["check", str(folder), "--workers", "0"]
    assert main([*words, "--recipe", str(tmp_path / "run.yaml")]) == 0
    assert "24 of 24 samples" in capsys.readouterr().out
    assert main(words) == 2
    assert "contains robot episodes: add --recipe" in capsys.readouterr().err
    assert main([*words, "--recipe", "vision_sft_tiny"]) == 2
    assert "cannot be read with vision_sft_tiny" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"action_gen": False}, "has no action heads"),
        ({"objective": RectifiedFlow.Config()}, "has no loss for the actions of robot episodes"),
        ({"modes": {"policy": 1.0}, "state": ["values action"]}, "one frame late"),
        ({"statistics": "stats.json"}, "needs the statistics"),
    ],
)
def test_contradictions_are_reported_as_other_mistakes(
    change: dict[str, Any], found: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = robot_run(world, write_episodes(tmp_path / "data"))
    config.model.config.network.action_gen = change.get("action_gen", True)
    config.objective = change.get("objective", config.objective)
    dataset = config.dataloader_train.dataset
    dataset.modes, dataset.robot.state = change.get("modes", {"wam": 1.0}), change.get("state", [])
    dataset.robot.statistics = change.get("statistics", "")
    compared = not {"action_gen", "objective"}.isdisjoint(change)
    if not compared:  # sections are compared when each of them is valid
        config.trainer.logging_iter = 0
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    assert main(["check", str(tmp_path / "run.yaml")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert found in said
    assert compared or "logging_iter" in said


@pytest.mark.parametrize("small", [{"max_action_dim": 8}, {"num_embodiment_domains": 5}])
def test_action_heads_that_are_too_small_are_reported(
    small: dict[str, int], world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = robot_run(world, write_episodes(tmp_path / "data"))
    for name, value in small.items():
        setattr(config.model.config.network, name, value)
    facts, code = check(config, tmp_path, capsys)
    assert code == 2
    assert any("actions have 10 channels and domain 5: the network has" in problem for problem in facts["problems"])


def test_plain_loaders_refuse_robots(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = to_yaml(tiny_runs.tiny_config(world)) + "\n"
    (tmp_path / "run.yaml").write_text(text)
    words = ["--", "dataloader_train.dataset=worldsmith.data.robots.robot_dataset.RobotDataset"]
    assert main(["check", str(tmp_path / "run.yaml"), *words]) == 2
    assert "VideoDataset" in capsys.readouterr().err
    assert issubclass(RobotLoader.Config, VideoLoader.Config)
