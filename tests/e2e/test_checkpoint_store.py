"""Checkpoints in an object store: a real S3 server that fails now and then, against runs that keep theirs on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import toy_runs
from metrics_files import read_metrics
from object_store import ObjectStore, connected, serving
from toy_runs import require_same_end, toy_config

from worldsmith.checkpoint.run.checkpoint_store import newest_stored
from worldsmith.checkpoint.run.save_error import SaveError
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_yaml
from worldsmith.files.remote_folder import list_remote
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.start_checks import completion
from worldsmith.training.trainer import Outcome, Trainer

pytest.importorskip("s3fs")
pytest.importorskip("moto")

SUPPORT = Path(__file__).parents[1] / "support"
ADDRESS = "s3://bucket/runs/tests/tiny/run"


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with serving() as store:
        yield store


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def undisturbed(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of eight steps without a store."""
    folder = tmp_path_factory.mktemp("undisturbed")
    Trainer(toy_config(world), run_folder=folder).train()
    return folder


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    with connected(server, monkeypatch, tmp_path / "cache") as store:
        yield store


def stored_config(world: Path, runs: str, *, save_iter: int = 2, **settings: object) -> Trainer.Config:
    """The run of eight steps with uploads to the folder `runs` of the bucket."""
    config = toy_config(world, save_iter=save_iter)
    config.checkpoint.upload_to = f"s3://bucket/{runs}"
    for name, value in settings.items():
        setattr(config.checkpoint, name, value)
    return config


def checkpoints_in(runs: str) -> list[str]:
    """The last digit of each complete checkpoint in the store."""
    files = list_remote(f"s3://bucket/{runs}/tests/tiny/run/checkpoints")
    return sorted(Path(name).parts[0][-1] for name in files if name.endswith("manifest.json"))


def test_a_run_resumes_on_another_machine_as_if_undisturbed(
    world: Path, undisturbed: Path, store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """5 % of all requests fail, and bodies are cut off; four steps on one machine, four on one without the folder."""
    store.fail(every=20, cut=20, writes=True)
    config = stored_config(world, "moved")
    config.trainer.max_iter = 4
    Trainer(config, run_folder=tmp_path / "one/run").train()
    assert checkpoints_in("moved") == ["2", "4"]
    shutil.rmtree(tmp_path / "one")
    caplog.set_level("INFO")
    trainer = Trainer(stored_config(world, "moved"), run_folder=tmp_path / "two/run")
    assert trainer.iteration == 4
    assert trainer.train() is Outcome.FINISHED
    require_same_end(tmp_path / "two/run", undisturbed)
    assert "iter_000000004 was downloaded" in caplog.text
    assert trainer.uploads.failed == 0
    assert newest_stored("s3://bucket/moved/tests/tiny/run") == "iter_000000008"
    local = {path.name for path in (tmp_path / "two/run/checkpoints").glob("iter_*")}
    assert local == {f"iter_00000000{step}" for step in (4, 6, 8)}


def test_steps_do_not_wait_and_the_store_keeps_the_checkpoints_that_the_run_folder_keeps(
    world: Path, store: ObjectStore, tmp_path: Path
) -> None:
    """The store is slow until the last step is done."""

    class Listener(Callback):
        def on_training_step_end(self, trainer: Trainer, step: object) -> None:
            if trainer.iteration == 8:
                stored.extend(checkpoints_in("few"))
                store.fail()

    stored: list[str] = []
    config = stored_config(world, "few", keep_latest_k=1, keep_every=4, async_save=False)
    config.trainer.max_iter = 2
    Trainer(config, run_folder=tmp_path / "run").train()
    assert checkpoints_in("few") == ["2"]
    config.trainer.max_iter = 8
    trainer = Trainer(config, run_folder=tmp_path / "run")
    trainer.callbacks["listener"] = Listener(Listener.Config(), folder=tmp_path)
    store.fail(slow=1, writes=True, only_writes=True)
    trainer.train()
    assert stored == ["2"]
    local = sorted(path.name[-1] for path in (tmp_path / "run/checkpoints").glob("iter_*"))
    assert checkpoints_in("few") == ["4", "8"]
    assert {"4", "8"} <= set(local)  # those that were being uploaded stay until the next save
    files = list_remote("s3://bucket/few/tests/tiny/run/checkpoints")
    assert {name.split("/")[0] for name in files if "/" in name} == {f"iter_00000000{step}" for step in (4, 8)}


def test_failed_uploads_are_counted_and_repeated_with_the_next_checkpoint(
    world: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The upload of step 2 is denied; that of step 8 is, too, until the same command is started again."""
    config = stored_config(world, "denied", async_save=False)
    trainer = Trainer(config, run_folder=tmp_path / "run")
    report = trainer._report_save

    def report_save(checkpoint: Path) -> None:
        step = checkpoint.name[-1]
        if step in "28":
            trainer.uploads._pool.submit(store.fail, denied=f"iter_00000000{step}", writes=True, only_writes=True)
        report(checkpoint)
        if step == "2":
            trainer.uploads._pool.submit(store.fail)

    monkeypatch.setattr(trainer, "_report_save", report_save)
    with pytest.raises(SaveError, match=r"UPLOAD FAILED: iter_000000008 to s3://.*denies access.*may write"):
        trainer.train()
    assert trainer.outcome is None
    assert trainer.uploads.failed == 2
    failures = [record.getMessage() for record in caplog.records if "UPLOAD FAILED" in record.getMessage()]
    assert ["iter_000000002" in failures[0], "(2 so far): iter_000000008" in failures[1]] == [True, True]
    assert checkpoints_in("denied") == ["2", "4", "6"]
    assert newest_stored("s3://bucket/denied/tests/tiny/run") == "iter_000000006"
    assert {"failed_uploads"} <= set(read_metrics(tmp_path / "run/metrics.jsonl")[-1])
    store.fail()
    assert completion(tmp_path / "run", config) is None
    again = Trainer(stored_config(world, "denied"), run_folder=tmp_path / "run")
    assert (again.iteration, again.uploads.downloaded) == (8, ""), "the checkpoint on disk is newer"
    assert again.train() is Outcome.FINISHED
    assert checkpoints_in("denied") == ["2", "4", "6", "8"]
    assert "8 of 8 steps are done" in str(completion(tmp_path / "run", config))


def test_a_damaged_checkpoint_is_downloaded_and_the_start_deletes_nothing_in_the_store(
    world: Path, store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the user sets the pointer to an earlier checkpoint, from which the run resumes without a download."""
    config, checkpoints = stored_config(world, "damaged", keep_latest_k=2), tmp_path / "run/checkpoints"
    config.trainer.max_iter = 4
    Trainer(config, run_folder=tmp_path / "run").train()
    next((checkpoints / "iter_000000004/model").glob("*.distcp")).write_bytes(b"")
    again = Trainer(config, run_folder=tmp_path / "run")
    assert "DAMAGED CHECKPOINT skipped: iter_000000004" in caplog.text
    assert (again.iteration, "iter_000000004 was downloaded" in again.uploads.downloaded) == (4, True)
    again.train()
    (checkpoints / "latest_checkpoint.txt").write_text("iter_000000002\n")
    config.trainer.max_iter = 2
    earlier = Trainer(config, run_folder=tmp_path / "run")
    assert (earlier.iteration, earlier.uploads.downloaded) == (2, "")
    earlier.train()
    assert newest_stored("s3://bucket/damaged/tests/tiny/run") == "iter_000000002"
    assert checkpoints_in("damaged") == ["2", "4"]


def test_a_store_that_cannot_be_used_is_reported_before_the_start(
    world: Path, store: ObjectStore, tmp_path: Path
) -> None:
    store.fail(denied="secret", writes=True)
    for runs, problem in (("secret", "denies access.*may write"), ("readable", "denies access")):
        with pytest.raises(UserError, match=rf"checkpoint.upload_to: files cannot be uploaded: .*{problem}"):
            Trainer(stored_config(world, runs), run_folder=tmp_path / "run")
        store.fail(denied="readable", writes=True, only_writes=True)
    store.fail()
    config = stored_config(world, "x")
    config.checkpoint.upload_to = "s3://absent/runs"
    with pytest.raises(UserError, match=r"s3://absent/.* does not exist"):
        Trainer(config, run_folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["runs", "/data/runs", "https://host/runs", "file:///data/runs"])
def test_only_stores_that_can_be_written_are_accepted(world: Path, tmp_path: Path, address: str) -> None:
    config = stored_config(world, "x")
    config.checkpoint.upload_to = address
    with pytest.raises(UserError, match=r"upload_to.*cannot be uploaded there"):
        Trainer(config, run_folder=tmp_path / "run")


def test_a_killed_upload_leaves_the_previous_checkpoint_as_the_newest(
    world: Path, undisturbed: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed while its last checkpoint is uploaded slowly; its uploads end with it."""
    config = stored_config(world, "killed", save_iter=4)
    config.trainer.max_iter = 4
    Trainer(config, run_folder=tmp_path / "first/run").train()
    config.trainer.max_iter = 8
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    store.fail(slow=0.3, writes=True, only_writes=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        "WORLDSMITH_OUTPUT_ROOT": str(tmp_path / "out"),
    }
    command = [sys.executable, "-m", "worldsmith", "--import", "toy_family", "train", str(tmp_path / "run.yaml")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = "s3://bucket/killed/tests/tiny/run"
    try:
        deadline = time.monotonic() + 100
        while not any("iter_000000008" in name for name in list_remote(f"{address}/checkpoints")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        helpers = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    assert len(helpers) >= 2, "one writes checkpoints, one uploads them"
    assert psutil.wait_procs(helpers, timeout=20)[1] == []
    assert newest_stored(address) == "iter_000000004"
    assert checkpoints_in("killed") == ["4"]
    store.fail()
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "elsewhere"))
    assert main(["--import", "toy_family", "train", str(tmp_path / "run.yaml")]) == 0
    require_same_end(tmp_path / "elsewhere/tests/tiny/run", undisturbed)
    assert newest_stored(address) == "iter_000000008"
