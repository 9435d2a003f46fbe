"""The commands and the output of docs/planning.md."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.distributed.gpus import GPUS, find_gpu

FILE = Path(__file__).parents[2] / "docs/planning.md"
PAGE = FILE.read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[1:]
    for line in "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)).splitlines()
]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH", "TOKENIZER_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_what_the_commands_say_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) == 6
    for name, *words in COMMANDS:
        assert main([name, "--quick", *words]) == 0, words
    said = capsys.readouterr().out
    assert said.count("run          vision_sft_nano on 8 GPUs (replicate 1 × shard 8), h100-80 with 79.1 GiB") == 2
    assert "on 64 GPUs (replicate 8 × shard 8)" in said


def test_the_words_of_the_table_are_known() -> None:
    cells = re.findall(r"`([\w.]+=[\w]+)`", PAGE.partition("## Make it fit")[2])
    assert len(cells) == 6
    assert main(["plan", "vision_sft_nano_tiny", "--quick", "--", *cells, "optimizer.keys_to_select=[lora_]"]) == 0


def test_a_plan_of_the_tiny_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "vision_sft_nano_tiny", "--json", "--gpus", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["verdict"] == "fits"
    assert found["memory"]["peak_bytes"] == max(phase["peak"] for phase in found["step"]["work"]["phases"])
    assert found["assumptions"]["not set"].startswith("BASE_CHECKPOINT_PATH, DATASET_PATH")
    assert {traffic["group"] for traffic in found["step"]["work"]["traffic"]} >= {"dp_shard"}


def test_the_gpus_of_the_page_are_known() -> None:
    named = re.findall(r"`([a-z]\w*(?:-\w+)*)`", PAGE.partition("`--gpu` takes a name")[2].partition("a wrong one")[0])
    assert len(named) > 5
    assert {find_gpu(word).name for word in named} <= set(GPUS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    """UPDATE_GOLDEN=1 writes the output anew: look at the difference."""
    said = []
    for words in COMMANDS:
        assert main(words) == 0, words
        said.append(capsys.readouterr().out)
    start, shown, end = re.split(r"(?s)(?<=```text\n)(.*?)(?=```)", PAGE, maxsplit=1)
    if os.environ.get("UPDATE_GOLDEN"):
        FILE.write_text(start + said[1] + end, encoding="utf-8")
    assert shown == said[1]
    assert "DOES NOT FIT" in said[2]
    assert "fits on" in said[3]
    assert "network " in said[4]
    assert json.loads(said[5])["run"] == "vision_sft_nano"
