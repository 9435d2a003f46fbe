"""Weights & Biases with the real package, offline: what its files hold, and what a run does when its process dies."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import toy_runs

from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.sections import JobConfig
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.trainer import Outcome, Trainer


def offline_files(run: Path) -> list[Path]:
    """One for each start of the run, the oldest first."""
    import wandb

    wandb.teardown()  # as at the end of a process: wandb's own process is still writing when a run is finished
    return sorted(run.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.parent.name)


def records(content: bytes) -> Iterator[bytes]:
    """The records of a file, which is a LevelDB log with a head of 7 bytes: blocks of 32 KiB with pieces of records,
    each with checksum, length and kind (1 whole, 2 first, 3 middle, 4 last)."""
    place, whole = 7, b""
    while place + 7 <= len(content):
        room = 2**15 - place % 2**15
        if room < 7:
            place += room
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def read(file: Path) -> tuple[dict, list[dict]]:
    """(id, names and config of the run; the lines of its history)."""
    from wandb.proto.wandb_internal_pb2 import Record

    about, lines = {}, []
    for data in records(file.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("run"):
            run = record.run
            about = {"id": run.run_id, "project": run.project, "group": run.run_group, "name": run.display_name}
            about["config"] = {item.key: json.loads(item.value_json) for item in run.config.update}
        for item in record.history.item and [record.history]:
            values = {entry.key or "/".join(entry.nested_key): json.loads(entry.value_json) for entry in item.item}
            lines.append({key: value for key, value in values.items() if not key.startswith("_")})
    return about, lines


def config(world: Path, steps: int) -> Trainer.Config:
    tree = toy_runs.toy_config(world, steps=8, save_iter=2)
    tree.trainer.max_iter = steps
    tree.job.wandb_mode = "offline"
    return tree


@pytest.fixture
def world(tmp_path: Path) -> Path:
    pytest.importorskip("wandb")
    return toy_runs.make_world(tmp_path / "world")


class Crash(Callback):
    def on_training_step_start(self, trainer: Trainer, step: object) -> None:
        if trainer.iteration == 3:
            raise RuntimeError("the test fails")


class KillWandb(Callback):
    """Kills the process that the package has started for itself."""

    def on_training_step_start(self, trainer: Trainer, step: object) -> None:
        if trainer.iteration == 1:
            (service,) = [c for c in psutil.Process().children(recursive=True) if c.name().startswith("wandb")]
            service.kill()
            service.wait(30)


def test_a_run_is_one_run_over_a_resume_and_its_files_hold_its_metrics(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = Trainer(config(world, 8), run_folder=run)
    first.callbacks["crash"] = Crash(Crash.Config(), folder=run)
    with pytest.raises(RuntimeError):
        first.train()
    assert Trainer(config(world, 8), run_folder=run).train() is Outcome.FINISHED
    name = (run / "wandb_id.txt").read_text().strip()
    starts = [read(file) for file in offline_files(run)]
    assert [about["id"] for about, _ in starts] == [name, name]
    about = starts[-1][0]
    assert (about["project"], about["group"], about["name"]) == ("tests", "tiny", "run")
    assert about["config"]["optimizer"]["lr"] == config(world, 8).optimizer.lr
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    sent = {line["step"]: line for _, lines in starts for line in lines}
    assert [line["step"] for _, lines in starts for line in lines] == [1, 2, 3, 3, 4, 5, 6, 7, 8]
    assert {line["step"]: (line["loss"], line["loaded"]["samples"]) for line in written} == {
        step: (line["loss"], line["loaded/samples"]) for step, line in sent.items()
    }
    texts = [path.read_text(errors="replace") for path in run.glob("wandb/**/*.json")]
    assert not [text for text in texts if "pytest" in text], "the command line of the process is sent"


def test_a_tracker_whose_process_is_killed_does_not_end_the_run(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(config(world, 4), run_folder=tmp_path / "run")
    trainer.callbacks["kill"] = KillWandb(KillWandb.Config(), folder=tmp_path)
    assert trainer.train() is Outcome.FINISHED
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["unwritten_elsewhere"] == {"Weights & Biases": 2}
    assert caplog.text.count("Weights & Biases cannot be written, the run continues") == 1


def test_a_run_that_writes_no_figures_has_nothing_to_send(world: Path, tmp_path: Path) -> None:
    tree = config(world, 4)
    tree.trainer.callbacks = {}
    with pytest.raises(ConfigError, match="no callback of the run writes metrics"):
        Trainer(tree, run_folder=tmp_path / "run")


def test_what_is_missing_for_it_is_said_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    online = JobConfig(wandb_mode="online")
    with pytest.raises(UserError, match="there is no login: set WANDB_API_KEY"):
        online.check_files()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    online.check_files()
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    online.check_files()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for mode in ("online", "offline"):
        with pytest.raises(UserError, match=r"pip install 'worldsmith\[wandb\]'"):
            JobConfig(wandb_mode=mode).check_files()
    JobConfig().check_files()
