"""`worldsmith train --rehearse`: the words that go with it, and how many processes are rehearsed."""

from __future__ import annotations

import pytest

from worldsmith.actions.action import Result
from worldsmith.cli import train
from worldsmith.cli.main import main
from worldsmith.tools.rehearse.rehearse import Rehearse


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--rehearse", "--dryrun"], "--rehearse simulates all ranks without them. Run one"),
        (["--rehearse", "--resume-changed"], "--rehearse reads no run folder"),
        (["--rehearse", "--gpu", "h200"], "--gpu requires --dryrun"),
        (["--rehearse", "--show-tree"], "--show-tree requires --dryrun"),
        (["--rehearse", "--gpus", "3"], "--gpus 3, but the run has 2 processes"),
        (["--dryrun", "--gpus", "3"], "--gpus 3, but the run has 2 processes"),
        (["--gpus", "2"], "--gpus requires --rehearse or --dryrun"),
    ],
)
def test_words_that_would_change_nothing_are_refused(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "no_such_recipe", *words]) == 2
    assert reason in capsys.readouterr().err


def test_a_dry_run_of_so_many_gpus_does_not_ask_for_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(train, "dryrun", lambda tree, **_: 0)
    monkeypatch.setenv("DATASET_PATH", "/nowhere")
    shard = ["--", "model.config.parallelism.data_parallel_shard_degree=2"]
    assert main(["train", "vision_sft_tiny", "--dryrun", *shard]) == 0
    assert "WORLD_SIZE is not set" in caplog.text
    caplog.clear()
    assert main(["train", "vision_sft_tiny", "--dryrun", "--gpus", "2", *shard]) == 0
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (["train", "vision_sft_tiny", "--rehearse"], 8),
        (["train", "vision_sft_tiny", "--rehearse", "--gpus", "4"], 4),
        (["launch", "--nproc-per-node", "2", "--nnodes", "3", "train", "vision_sft_tiny", "--rehearse"], 6),
    ],
    ids=["degrees", "gpus", "launch"],
)
def test_a_launch_says_how_many_are_rehearsed_and_one_process_does_it(
    words: list[str], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they rehearse is known from another test."""
    asked: list[int] = []

    def run(self: Rehearse) -> Result:
        asked.append(self.ranks)
        return Result()

    monkeypatch.setattr(Rehearse, "run", run)
    monkeypatch.setenv("WORLD_SIZE", "")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("DATASET_PATH", "/nowhere")
    assert main(words) == 0
    assert asked == [ranks]
