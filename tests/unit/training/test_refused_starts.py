"""A start that cannot work is refused with its reason before anything has memory, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from read_errors import break_file
from tiny_runs import make_world, tiny_config

from worldsmith.actions.dry_run import plan_run
from worldsmith.config.errors import UserError
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.world import World
from worldsmith.models.weights.weight_table import weight_table
from worldsmith.training import preflight
from worldsmith.training.run_folder import write_on_main
from worldsmith.training.state_bytes import state_bytes
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"), clips=5)


def require_refusal(config: Trainer.Config, folder: Path, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Trainer(config, run_folder=folder)
    assert not any(folder.parents[1].iterdir())


def test_all_missing_files_are_one_report_of_start_and_dry_run(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "gone")
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(tmp_path / "base")
    reason = r"(?s)4 settings or files are missing or wrong:\n.*gone/vae.*gone/tokenizer.*load_path .*base.*gone/data"
    require_refusal(config, tmp_path / "group" / "run", reason)
    with pytest.raises(UserError, match=reason):
        next(plan_run(config, tmp_path / "run", world_size=1))
    assert not any(tmp_path.iterdir())


def test_a_network_larger_than_the_memory_is_refused_with_the_figures(world: Path, tmp_path: Path) -> None:
    """A thousand times what any machine has; it is never allocated."""
    config = tiny_config(world)
    config.model.config.network.vocab_size = 10**13
    reason = r"does not fit into memory: it needs \d+\.\d\d GiB on each process \(weights .*\), .*GiB are free on this"
    require_refusal(config, tmp_path / "group" / "run", reason)


def test_what_is_free_decides(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte; of several processes on one machine each needs its own."""
    config = tiny_config(world)
    table = weight_table(config.model.config)
    states = state_bytes(table, config, plan_degrees(config.model.config.parallelism, 1))
    total = states.total
    for free, processes, fits in ((total, 1, True), (total - 1, 1, False), (total, 2, False)):
        monkeypatch.setattr(preflight, "free_memory", lambda device, free=free: free)
        assert (preflight.lack_of_memory(states, preflight.World(), processes) is None) is fits
    assert preflight.lack_of_memory(states, preflight.World(device="cuda:1"), 8) is None  # a GPU has one process
    offloaded, gpu = replace(states, offloaded=total), preflight.World(device="cuda:1")
    monkeypatch.setattr(preflight, "free_memory", lambda device: 4 * total if device == "cpu" else total)
    assert preflight.lack_of_memory(offloaded, gpu, 4) is None
    assert "what is offloaded needs" in (preflight.lack_of_memory(offloaded, gpu, 5) or "")
    assert preflight.lack_of_memory(offloaded, preflight.World(), 2) is None
    assert "it needs" in (preflight.lack_of_memory(offloaded, preflight.World(), 3) or "")
    monkeypatch.setattr(preflight, "free_memory", lambda device: 1000)
    require_refusal(config, tmp_path / "group" / "run", "does not fit into memory")
    notes = [line for line in plan_run(config, tmp_path / "run", world_size=1) if line.startswith("note")]
    assert any("the run would not start on this machine: it needs" in note for note in notes)


def test_weights_that_do_not_fit_leave_no_run_folder(world: Path, tmp_path: Path) -> None:
    """The network has memory by then, and the folder is locked; both are given up, and other runs are untouched."""
    (tmp_path / "base").mkdir()
    Trainer(tiny_config(world), run_folder=tmp_path / "base" / "run").save()
    config = tiny_config(world)
    config.model.config.network.hidden_size = 48
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(tmp_path / "base" / "run")
    with pytest.raises(UserError, match="do not fit this network"):
        Trainer(config, run_folder=tmp_path / "project" / "group" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["base"]
    (tmp_path / "project" / "other").mkdir(parents=True)
    with pytest.raises(UserError, match="do not fit this network"):
        Trainer(config, run_folder=tmp_path / "project" / "group" / "run")
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["other"]


def test_a_refused_resume_changes_nothing(world: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trainer = Trainer(tiny_config(world), run_folder=folder)
    trainer.save()
    trainer.lock.release()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    config = tiny_config(world)
    config.optimizer.lr = 1.0
    with pytest.raises(UserError, match="was started with other settings"):
        Trainer(config, run_folder=folder)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"} == before
    assert json.loads((folder / ".lock").read_text())["pid"]


def test_a_clip_that_cannot_be_read_is_left_out_of_a_run(tmp_path: Path) -> None:
    """The start looks at all clips for its records, and says nothing wrong about the run folder."""
    config = tiny_config(make_world(tmp_path / "world", clips=5), steps=2)
    break_file(tmp_path / "world/data/videos/2.mp4")
    folder = tmp_path / "run"
    assert Trainer(config, run_folder=folder).train() is Outcome.FINISHED
    (entry,) = map(json.loads, (folder / "quarantine.jsonl").read_text().splitlines())
    assert entry["key"] == "clip2_w0"
    assert entry["reason"] == "unreadable"
    assert "Input/output error" in entry["detail"]


def test_a_file_that_cannot_be_read_is_told_apart_from_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    def fails(code: int, file: Path | None) -> None:
        raise OSError(code, os.strerror(code), *([] if file is None else [file]))

    for code, file, words in (
        (errno.EIO, tmp_path / "data/1.mp4", f"^{tmp_path}/data/1.mp4 cannot be read: Input/output error$"),
        (
            errno.EIO,
            tmp_path / "run/a.json",
            rf"^\[E127\] the run folder {tmp_path}/run cannot be written: Input/output error$",
        ),
        (errno.ENOSPC, None, rf"^\[E127\] the run folder {tmp_path}/run cannot be written: No space left on device$"),
    ):
        with pytest.raises(UserError, match=words):
            write_on_main(World(), tmp_path / "run", lambda code=code, file=file: fails(code, file))
