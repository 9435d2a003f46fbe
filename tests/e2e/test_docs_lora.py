"""The file, the commands and the Python of docs/lora.md work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from safetensors.torch import load_file

from worldsmith.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/lora.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return code


def run(commands: str) -> None:
    """The lines of a shell block that is nothing but `worldsmith` commands, in this process."""
    for line in commands.strip().splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "worldsmith"
        assert main(words) == 0, line


def test_the_page_from_training_to_both_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is made here, of two steps on three clips; the run of the page is cut to two steps."""
    monkeypatch.chdir(tmp_path)
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    setting, shell = block("bash").split("\n", 1)
    monkeypatch.setenv(*setting.removeprefix("export ").split("="))
    Path("my_lora.toml").write_text(block("toml"))
    assert "my_lora.toml -- " in shell
    run(
        "worldsmith dataset moving-shapes clips --clips 3 --val-clips 0 --num-frames 5\n"
        "worldsmith train moving_shapes -- trainer.max_iter=2 'scheduler.warm_up_steps=[0]'"
    )
    shell = shell.replace("my_lora.toml -- ", "my_lora.toml -- trainer.max_iter=2 ")
    run(shell.replace("worldsmith generate", "worldsmith generate --steps 2 --num-frames 5"))
    run(*re.findall(r"`(worldsmith export [^`]*-o my_base)`", PAGE))
    assert list(Path("generated").glob("*/vision.mp4"))

    found: dict = {}
    exec(block("python"), found)
    assert len(load_file("my_adapter/adapter_model.safetensors")) == 32
    for model in (found["adapted"], found["transformer"]):
        assert sum("lora_B" in name and bool(p.any()) for name, p in model.named_parameters()) == 16
