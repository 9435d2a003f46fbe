"""A run folder and a command that says something else than before: what is refused, and that nothing is touched then.

The dry run gives the same answers as the start itself, and leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_runs
from toy_runs import toy_config

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.checkpoint.sources.checkpoint_weights import CheckpointWeights
from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml
from worldsmith.training.start_checks import changed_values
from worldsmith.training.trainer import Trainer

Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def finished(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a run of two steps that is complete, saved after each."""
    folder = tmp_path_factory.mktemp("finished")
    Trainer(short(world), run_folder=folder).train()
    return folder


def short(world: Path) -> Trainer.Config:
    config = toy_config(world, steps=2, save_iter=1)
    config.scheduler.cycle_lengths = [8]
    return config


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished run, where `command` finds it."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    monkeypatch.delenv("IMAGINAIRE_OUTPUT_ROOT", raising=False)
    folder = tmp_path / "out/tests/tiny/run"
    shutil.copytree(finished, folder)
    return folder


@pytest.fixture
def command(world: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> Command:
    """`worldsmith train` of the finished run's tree with these words: (exit code, output and errors)."""
    (tmp_path / "run.yaml").write_text(to_yaml(short(world)))

    def call(*words: str, dryrun: bool = False, changed: bool = False) -> tuple[int, str]:
        flags = ["--dryrun"] * dryrun + ["--resume-changed"] * changed
        capsys.readouterr()
        code = main(["train", str(tmp_path / "run.yaml"), *flags, "--", *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


ADAPTERS = ["model.config.lora_enabled=true", "model.config.lora_target_modules=layers.0"]
IMPOSSIBLE = {
    "a wider layer": (
        ["model.config.width=6"],
        ["layers.0.weight: stored [4, 4], expected [6, 6]", "width"],
    ),
    "adapters": ([*ADAPTERS], ["missing in the checkpoint", "lora_A"]),
    "no average": ([*ADAPTERS, "model.config.ema.enabled=false"], ["lora_A"]),
    "a layer more": (["model.config.depth=3"], ["missing in the checkpoint", "layers.2."]),
}


@pytest.mark.parametrize("case", list(IMPOSSIBLE))
@pytest.mark.parametrize("dryrun", [False, True])
def test_a_change_that_cannot_be_loaded_leaves_the_run_as_it_was(
    run: Path, command: Command, case: str, dryrun: bool
) -> None:
    """Refused with names and shapes; not a byte of the run folder changes."""
    words, expected = IMPOSSIBLE[case]
    before = content(run)
    code, said = command("trainer.max_iter=3", *words, changed=True, dryrun=dryrun)
    assert code == 2, said
    assert not [part for part in expected if part not in said], said
    assert "iter_000000002" in said
    assert content(run) == before


def test_after_a_refused_change_the_old_command_goes_on(run: Path, command: Command) -> None:
    assert command("trainer.max_iter=3", "model.config.width=6", changed=True)[0] == 2
    code, said = command("trainer.max_iter=3")
    assert (code, "done: 3 steps" in said) == (0, True), said


CHANGED = [["optimizer.lr=0.9"], [*ADAPTERS, "objective.noise=0.5"]]


@pytest.mark.parametrize("words", CHANGED)
@pytest.mark.parametrize("dryrun", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_a_complete_run_does_not_hide_other_settings(
    run: Path, command: Command, words: list[str], dryrun: bool, changed: bool
) -> None:
    """Also with --resume-changed: there is no step left for the new settings to matter in."""
    before = content(run)
    code, said = command(*words, dryrun=dryrun, changed=changed)
    assert code == 2, said
    for word in words:
        path, _, value = word.partition("=")
        assert f"{path}: " in said
        assert f"-> {value.capitalize() if value == 'true' else value}" in said.replace("'", "")
    assert "trainer.max_iter" in said
    assert content(run) == before


@pytest.mark.parametrize("dryrun", [False, True])
def test_a_complete_run_says_so_also_with_settings_that_are_free(run: Path, command: Command, dryrun: bool) -> None:
    before = content(run)
    code, said = command("trainer.max_iter=1", "checkpoint.save_iter=7", "trainer.logging_iter=5", dryrun=dryrun)
    assert (code, "complete: 2 of 1 steps are done" in said) == (0, True), said
    assert content(run) == before


def test_a_complete_run_says_so_also_without_its_data(world: Path, run: Path, command: Command) -> None:
    """Scratch space is cleaned up; a queue that starts the command again must not take that for a failure."""
    (world / "rows.txt").rename(world / "away")
    try:
        code, said = command()
    finally:
        (world / "away").rename(world / "rows.txt")
    assert (code, "complete: 2 of 2 steps are done" in said) == (0, True), said


def test_adapter_settings_matter_only_with_adapters() -> None:
    off = {"model.config.lora_enabled": False, "model.config.lora_rank": 32}
    assert not changed_values(off, {**off, "model.config.lora_rank": 16})
    on = {**off, "model.config.lora_enabled": True}
    assert len(changed_values(on, {**on, "model.config.lora_rank": 16})) == 1
    assert len(changed_values(off, on)) == 1


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("dryrun", [False, True])
def test_other_data_are_seen_by_a_complete_run_and_by_the_dry_run(
    world: Path, run: Path, command: Command, steps: int, dryrun: bool
) -> None:
    file = world / "rows.txt"
    whole = file.read_text()
    try:
        file.write_text("".join(whole.splitlines(keepends=True)[:5]))
        code, said = command(f"trainer.max_iter={steps}", dryrun=dryrun)
        changed = command("trainer.max_iter=3", dryrun=True, changed=True)
    finally:
        file.write_text(whole)
    assert code == 2, said
    assert "samples gone (1): row_5" in said
    assert changed[0] == 0
    assert "changed      samples gone (1): row_5" in changed[1]


def test_the_dry_run_refuses_other_settings_as_the_start_does(run: Path, command: Command) -> None:
    for dryrun in (True, False):
        code, said = command("trainer.max_iter=3", "optimizer.lr=0.5", dryrun=dryrun)
        assert code == 2
        assert "optimizer.lr: 0.03 -> 0.5" in said
        assert "--resume-changed" in said
    code, said = command("trainer.max_iter=3", "optimizer.lr=0.5", dryrun=True, changed=True)
    assert code == 0, said
    assert "changed      optimizer.lr: 0.03 -> 0.5" in said


def test_the_dry_run_passes_over_a_damaged_checkpoint(
    run: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    shard = run / "checkpoints/iter_000000002/model/__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-7] + b"spoiled")
    before = content(run)
    code, said = command("trainer.max_iter=3", dryrun=True)
    assert code == 0
    assert "resumes from iter_000000001" in said
    assert "DAMAGED CHECKPOINT skipped: iter_000000002" in caplog.text
    assert content(run) == before
    shutil.rmtree(run / "checkpoints/iter_000000001")
    assert command("trainer.max_iter=3", dryrun=True)[0] == 2


@pytest.mark.parametrize("dryrun", [True, False])
def test_training_state_that_is_not_there_is_refused_before_weights_are_read(
    finished: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dryrun: bool
) -> None:
    assert main(["export", str(finished), "--format", "native", "-o", str(tmp_path / "base")]) == 0

    def read(*arguments: object, **settings: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(Checkpointer, "load_part", read)
    monkeypatch.setattr(CheckpointWeights, "read_into", read)
    words = ["job.name=new", f"checkpoint.load_path={tmp_path / 'base'}", "checkpoint.load_training_state=true"]
    code, said = command(*words, dryrun=dryrun)
    assert (code, "contains only weights" in said) == (2, True), said
    words[1] = f"checkpoint.load_path={finished}"
    code, said = command(*words, dryrun=dryrun)
    assert (code, "has completed 2 steps, but trainer.max_iter is 2" in said) == (2, True), said


def test_a_dry_run_beside_a_run_says_that_it_is_there(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worldsmith.training.start_lines.in_use", lambda folder: f"process 7 is in {folder}")
    code, said = command("trainer.max_iter=3", dryrun=True)
    assert (code, f"starting the run now would fail: process 7 is in {run}" in said) == (0, True), said


def test_a_dry_run_leaves_nothing_behind(command: Command, tmp_path: Path) -> None:
    code, said = command("job.project=new", "job.group=deep", dryrun=True)
    assert (code, "(new, random weights)" in said) == (0, True), said
    assert not (tmp_path / "out/new").exists()
