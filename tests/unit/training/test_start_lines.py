"""What a run says of itself before its first step, which is what its dry run says."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

import pytest
from toy_runs import make_world, toy_config

from worldsmith.actions.dry_run import plan_run
from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.training.trainer import Trainer

SAID = ("run folder", "model", "states", "data", "step", "run")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def short(world: Path, steps: int) -> Trainer.Config:
    """A run that stops after so many steps of a longer schedule."""
    config = toy_config(world, steps=8)
    config.trainer.max_iter = steps
    return config


def test_what_has_no_weight_decay_is_counted(world: Path, tmp_path: Path) -> None:
    config = short(world, 2)
    for spare, lines in ((True, ["decay        none for 2 of 4 trained tensors, 8 parameters"]), (False, [])):
        config.optimizer.decay_vectors = not spare
        plan = plan_run(resolve(config), tmp_path, world_size=1)
        assert [line for line in plan if line.startswith("decay")] == lines


def planned(world: Path, folder: Path, steps: int) -> list[str]:
    """The lines of the plan that the start says too."""
    plan = plan_run(resolve(short(world, steps)), folder, world_size=1)
    return [line for line in plan if line[:13].rstrip() in SAID]


def trained(world: Path, folder: Path, steps: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        Trainer(short(world, steps), run_folder=folder).train()
    return [line for line in caplog.messages if line[:13].rstrip() in SAID]


def test_a_start_says_once_what_its_dry_run_says(world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = planned(world, tmp_path / "run", 8)
    assert plan == [
        f"run folder   {tmp_path / 'run'} (new, random weights)",
        "model        toy: 40 parameters, 40 trained, 0 frozen, with EMA weights",
        "states       0.0 MiB on each process (weights 0.0 MiB, gradients 0.0 MiB, optimizer state 0.0 MiB, "
        "EMA weights 0.0 MiB), before activations",
        f"data         6 samples in {world / 'rows.txt'}; skipped: none",
        "step         2 packs, about 4 samples and 16 tokens",
        "run          8 steps, about 32 samples and 128 tokens: 5.3 epochs",
    ]
    said = trained(world, tmp_path / "run", 8, caplog)
    assert [line.partition("; listed in")[0] for line in said] == plan


def test_a_resumed_run_counts_from_where_it_is(world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(world, tmp_path / "run", 2, caplog)
    plan = planned(world, tmp_path / "run", 8)
    assert plan[0] == f"run folder   {tmp_path / 'run'} (resumes from iter_000000002)"
    assert plan[-1] == "run          steps 3 to 8, about 24 samples and 96 tokens: 4.0 epochs"
    said = trained(world, tmp_path / "run", 8, caplog)
    assert [line.partition("; listed in")[0] for line in said] == plan


def test_a_run_that_takes_over_a_training_state_counts_from_it(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint says after how many steps it was saved, whatever its folder is called."""
    trained(world, tmp_path / "first", 2, caplog)
    (tmp_path / "first/checkpoints/iter_000000002").rename(tmp_path / "first/checkpoints/good")

    def config() -> Trainer.Config:
        tree = short(world, 8)
        tree.checkpoint.load_path = str(tmp_path / "first/checkpoints/good/model")
        tree.checkpoint.init, tree.checkpoint.load_training_state = "pretrained", True
        return tree

    plan = list(plan_run(resolve(config()), tmp_path / "run", world_size=1))
    assert "run          steps 3 to 8, about 24 samples and 96 tokens: 4.0 epochs" in plan
    resumed = list(plan_run(resolve(short(world, 8)), tmp_path / "fresh", world_size=1))
    packs = [next(line for line in lines if line.startswith("first pack")) for lines in (plan, resumed)]
    assert packs[0] != packs[1]
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        Trainer(config(), run_folder=tmp_path / "run").train()
    assert "run          steps 3 to 8, about 24 samples and 96 tokens: 4.0 epochs" in caplog.messages


def test_the_dry_run_of_a_resumed_run_reads_the_pack_that_comes_next(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = resolve(short(world, 8))
    (fresh,) = [line for line in plan_run(config, tmp_path / "run", world_size=1) if line.startswith("first pack")]
    trained(world, tmp_path / "run", 2, caplog)
    (later,) = [line for line in plan_run(config, tmp_path / "run", world_size=1) if line.startswith("first pack")]
    assert later != fresh


def test_done_names_the_next_command(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "my runs"))
    (tmp_path / "run.yaml").write_text(to_yaml(short(world, 2)))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # after the training, and for a run that is complete
        assert main(["train", str(tmp_path / "run.yaml")]) == 0
        lines = capsys.readouterr().out.splitlines()
        export, generate, *rest = [shlex.split(line) for line in lines[lines.index("next:") + 1 :]]
        run = "my runs/tests/tiny/run"
        assert export == ["worldsmith", "export", run, "--dtype", "float32", "-o", f"{run}/export"]
        assert generate[:3] == ["worldsmith", "generate", "my runs/tests/tiny/run"]
        assert not rest, "without validation clips there is nothing to evaluate on"
