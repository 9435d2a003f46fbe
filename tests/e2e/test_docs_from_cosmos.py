"""docs/from_cosmos.md: its commands are commands, their flags exist, and what it says of a file is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from worldsmith.cli.commands import COMMANDS
from worldsmith.cli.launch import LAUNCHED
from worldsmith.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "from_cosmos.md"
TEXT = PAGE.read_text(encoding="utf-8")
OURS = re.findall(r"`worldsmith ([^`]+)`", TEXT)
SHAPES = ROOT / "examples/toml/sft_config/moving_shapes.toml"


@pytest.mark.parametrize("command", dict.fromkeys(OURS))
def test_every_command_and_flag_of_the_table_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(SHAPES) if word == "FILE" else word.replace("=FILE", f"={SHAPES}") for word in shlex.split(command)]
    words = words[: words.index("--")] if "--" in words else words
    assert words[0] in COMMANDS
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    if words[0] == "launch":
        words = words[next(place for place, word in enumerate(words) if word in LAUNCHED) :]
    if words[0] == "generate":
        words = words[:1]
    elif words[0] not in ("train", "config"):
        words = words[: 2 if words[0] == "dataset" else 1]
    words = [word for word in words if word not in ("--spec", "spec.toml")]  # the help of a spec needs its data
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out.replace("_", "-")
    flags = [flag for flag in flags if flag != "--nproc-per-node"]
    assert all(re.search(rf"{flag.replace('_', '-')}[ \n]", shown) for flag in flags)


def test_the_commands_of_the_block_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", "outputs")
    assert main(["dataset", "moving-shapes", "clips", "--clips", "2", "--val-clips", "0", "--num-frames", "5"]) == 0
    monkeypatch.setenv("DATASET_PATH", "clips")
    (block,) = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    for line in block.splitlines():
        words = shlex.split(line.replace("FILE", str(SHAPES)))
        assert words[0] == "worldsmith"
        assert main(words[1:]) == 0, capsys.readouterr().err
    assert "run folder" in capsys.readouterr().out


def test_every_variable_that_is_called_the_same_is_read() -> None:
    texts = [file.read_text() for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.sh")]]
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert len(rows) == 6
    for names, here in rows:
        for name in re.findall(r"`(\w+)`", names) if "the same" in here else ():
            assert any(name in text for text in texts), name


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", TEXT):
        assert (PAGE.parent / link).exists(), link
