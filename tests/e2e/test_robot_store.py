"""Training on robot episodes in an object store: a real S3 server that fails now and then, against the same files on
disk."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_generator
import tiny_runs
from object_store import ObjectStore, connected, serving
from robot_episodes import CAMERAS, write_episodes
from robot_run import robots
from tiny_runs import read_losses

from worldsmith.cli.main import main
from worldsmith.config.yaml.yaml_text import dump_yaml
from worldsmith.data.content_fingerprint import remote_fingerprint
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.data.stream.errors import DataError
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.files import remote
from worldsmith.training.trainer import Trainer

pytest.importorskip("s3fs")
pytest.importorskip("moto")
VERSIONS = ("v2.1", "v3.0")
FIRST, SECOND = CAMERAS


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with serving() as store:
        yield store


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: ObjectStore) -> Path:
    """A data set of each version on disk and in the store, and the statistics of their actions."""
    world = tmp_path_factory.mktemp("world")
    tiny_runs.make_tokenizer(world / "tokenizer")
    tiny_runs.make_vae(world / "vae")
    (world / "statistics.json").write_text(json.dumps({"q01": [-1.0] * 7, "q99": [1.0] * 7}))
    for version in VERSIONS:
        server.put_folder(write_episodes(world / version, version), version)
    return world


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    with connected(server, monkeypatch, tmp_path / "cache") as store:
        yield store


def episodes(world: Path, path: str) -> RobotDataset.Config:
    config = robots(world / "v3.0", modes={"wam": 1.0}, split="all", val_fraction=0.0)
    return replace(config, path=path, robot=replace(config.robot, cameras=[f"{FIRST} | {SECOND}"]), resolution="64x64")


def config_of(world: Path, path: str, *, steps: int = 4, workers: int = 0, **changes: Any) -> Trainer.Config:
    config = tiny_runs.tiny_config(world, steps=4, save_iter=2, cache=False)
    config.trainer.max_iter = steps
    config.model.config = tiny_generator.generator_config(action_gen=True)
    config.objective = ActionFlow.Config(shift=3.0)
    data = replace(episodes(world, path), **changes)
    config.dataloader_train = RobotLoader.Config(dataset=data, max_samples_per_batch=4, num_workers=workers)
    return config


def forget() -> None:
    """Removes all cached files, as on another machine."""
    shutil.rmtree(remote.cache_folder())
    remote.remote_facts.cache_clear()
    remote_fingerprint.cache_clear()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_on_a_store_that_fails_now_and_then_equals_the_one_on_disk(
    world: Path, store: ObjectStore, version: str, tmp_path: Path
) -> None:
    """Every 20th request fails and every 7th body is cut off. The run is resumed on a machine without cached files,
    which fetches each file once for all its processes."""
    near, far = str(world / version), f"s3://bucket/{version}/"
    Trainer(config_of(world, near), run_folder=tmp_path / "near").train()
    store.fail(every=20, cut=7)
    Trainer(config_of(world, far, steps=2, workers=2), run_folder=tmp_path / "far").train()
    forget()
    store.fail()
    store.requests()
    Trainer(config_of(world, far, workers=2), run_folder=tmp_path / "far").train()
    assert read_losses(tmp_path / "far") == read_losses(tmp_path / "near")
    assert not (tmp_path / "far/quarantine.jsonl").exists()
    policies = [json.loads((tmp_path / run / "robot_policy.json").read_text()) for run in ("near", "far")]
    assert policies[0] == policies[1]
    datasets = [episodes(world, path).build() for path in (near, far)]
    assert datasets[0].fingerprint == datasets[1].fingerprint
    found = Counter(name for request in store.requests() if (name := request.removeprefix("GET /bucket/")) != request)
    files = [str(file.relative_to(world)) for file in (world / version).rglob("*") if file.is_file()]
    # Of a video, the first piece is read for the fingerprint, and then the file.
    assert {name: found[name] for name in files} == {name: 1 + name.endswith(".mp4") for name in files}


def test_episodes_that_cannot_be_read_are_listed_and_the_rest_trains(
    world: Path, store: ObjectStore, tmp_path: Path
) -> None:
    """Of five episodes, a table is missing and one is cut off, a video is missing and another one cut off."""
    folder = write_episodes(tmp_path / "damaged", "v2.1", (9,) * 5)
    far = store.put_folder(folder, "damaged")
    tables, videos = sorted(folder.rglob("*.parquet")), sorted(folder.rglob(f"videos/*/{FIRST}/*.mp4"))

    def put(file: Path, content: bytes) -> None:
        store.put(f"damaged/{file.relative_to(folder)}", content)

    store.ask(f"/bucket/damaged/{tables[0].relative_to(folder)}", "DELETE")
    put(tables[1], tables[1].read_bytes()[:-20])
    store.ask(f"/bucket/damaged/{videos[2].relative_to(folder)}", "DELETE")
    put(videos[3], videos[3].read_bytes()[:400])
    config = config_of(world, far, steps=3)
    config.dataloader_train.max_bad_fraction = 1.0
    Trainer(config, run_folder=tmp_path / "run").train()
    assert len(read_losses(tmp_path / "run")) == 3
    found = [json.loads(line) for line in (tmp_path / "run/quarantine.jsonl").read_text().splitlines()]
    assert {(entry["key"].partition("_f")[0], entry["reason"]) for entry in found} == {
        ("episode_000000", "missing_file"), ("episode_000001", "bad_table"),
        ("episode_000002", "missing_file"), ("episode_000003", "truncated"),
    }  # fmt: skip
    assert all("s3://bucket/damaged/" in entry["path"] for entry in found)
    missing = [entry["detail"] for entry in found if entry["reason"] == "missing_file"]
    assert all("s3://bucket/damaged/" in detail and "does not exist" in detail for detail in missing)


def test_a_data_set_that_cannot_be_reached_is_one_error(world: Path, store: ObjectStore) -> None:
    for path in ("s3://bucket/nothing", "s3://nothing/v3.0"):
        with pytest.raises(DataError, match=rf"{path}/meta/info\.json does not exist"):
            episodes(world, path).build()
    store.fail(denied="v3.0/meta")
    with pytest.raises(DataError, match=r"s3://bucket/v3\.0/meta/info\.json: the storage denies access.*credentials"):
        episodes(world, "s3://bucket/v3.0").build()
    store.fail(denied="v3.0/data")
    dataset = episodes(world, "s3://bucket/v3.0").build()
    assert len(dataset) == 0
    assert [found.reason for found in dataset.rejections] == ["unreadable"] * 3
    assert all("denies access" in found.detail for found in dataset.rejections)


def test_commands_accept_an_address(
    world: Path, store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def output(*words: str) -> str:
        code, printed = main(list(words)), capsys.readouterr()
        assert code == 0, printed
        return printed.out

    robot = tmp_path / "robots.yaml"
    columns = {"type": "worldsmith.data.robots.robot.LiberoRobot", "normalization": "none", "statistics": ""}
    robot.write_text(
        dump_yaml({"recipe": "robots_tiny", "dataloader_train": {"dataset": {"steps": 4, "robot": columns}}})
    )
    shown: dict[str, list[str]] = {}
    for place in (str(world), "s3://bucket"):
        path, imported = f"{place}/v3.0", tmp_path / "imported"
        shown[place] = [
            output("dataset", "statistics", path, "--dataset.robot", "LiberoRobot", "--dataset.steps", "4"),
            "".join(line for line in output("check", path, "--recipe", str(robot)).splitlines() if "kept" in line),
            output("dataset", "import", path, "-o", str(imported), "--camera", FIRST, "--force"),
        ]
        records = [json.loads(line) for line in (imported / "train/video_dataset_file.jsonl").read_text().splitlines()]
        for record in records:
            for named, key in ((record, "vision_path"), (record["lerobot"], "path")):
                named[key] = named[key] if "://" in named[key] else str((imported / "train" / named[key]).resolve())
        shown[place].append(json.dumps(records))
    assert [text.replace(str(world), "s3://bucket") for text in shown[str(world)]] == shown["s3://bucket"]
    assert shown["s3://bucket"][1].split() == ["kept", "24", "of", "24", "samples"]
    assert main(["dataset", "import", "s3://bucket/clips", "-o", str(tmp_path / "other")]) == 2
    assert "s3://bucket/clips is not a LeRobot dataset" in capsys.readouterr().err
