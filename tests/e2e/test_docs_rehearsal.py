"""The commands of docs/rehearsal.md say what the page says, of a network of the smallest size."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from worldsmith.actions.action import Result
from worldsmith.cli.main import main
from worldsmith.tools.rehearse.rehearse import Rehearse

PAGE = (Path(__file__).parents[2] / "docs/rehearsal.md").read_text(encoding="utf-8")
(BLOCK,) = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line)[1:] for line in BLOCK.strip().splitlines()]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_are_read(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What they rehearse is known from another test."""
    asked: list[tuple[str, int | None]] = []

    def run(self: Rehearse) -> Result:
        asked.append((self.tree.job.experiment, self.config.gpus))
        return Result()

    monkeypatch.setattr(Rehearse, "run", run)
    assert main(words) == 0
    numbers = [int(word) for word in words if word.isdecimal()]
    assert asked == [(words[1], numbers[0] if numbers else None)]


def test_a_rehearsal_says_what_it_was(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET_PATH", "/nowhere")
    assert main(["train", "vision_sft_tiny", "--rehearse", "--gpus", "2"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^ranks        2 \(replicate 1 × shard 2\), simulated: all", said, re.MULTILINE)
    assert re.search(
        r"^export       diffusers: \d+ tensors, as Cosmos3OmniTransformer expects them$", said, re.MULTILINE
    )
    assert re.search(r"^resume       on 2, 1 ranks$", said, re.MULTILINE)
    assert said.startswith("found        no problems\n")
    assert "not covered  torch.compile" in said
    assert max(map(len, said.splitlines())) <= 100


def test_what_is_found_is_told_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATASET_PATH", "/nowhere")
    words = ["train", "vision_sft_tiny", "--rehearse", "--gpus", "4"]
    assert main([*words, "--", "model.config.parallelism.data_parallel_shard_degree=3"]) == 2
    said = capsys.readouterr().out
    assert "1 problem on 4 ranks:" in said
    assert "their product needs 3 processes, but the run has 4 processes" in " ".join(said.split())
    assert "Traceback" not in said


def test_gpus_are_of_a_rehearsal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "vision_sft_tiny", "--gpus", "4"]) == 2
    assert "--gpus requires --rehearse" in capsys.readouterr().err
