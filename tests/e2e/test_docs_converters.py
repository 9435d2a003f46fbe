"""The files and commands of docs/converters.md work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from torch import nn

from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict
from worldsmith.models.converters import FrozenBase

PAGE = (Path(__file__).parents[2] / "docs/converters.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def run(commands: str) -> None:
    """The `worldsmith` commands of a shell block, in this process."""
    for line in commands.strip().splitlines():
        program, *words = shlex.split(line)
        assert program == "worldsmith"
        assert main(words) == 0, line


def test_the_forms_of_a_list_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASET_PATH", "clips")
    Path("my_qlora.toml").write_text(blocks("toml")[0])
    found = []
    for line in blocks("bash")[1].splitlines():
        run(line)
        found.append(yaml.safe_load(capsys.readouterr().out)["model"]["config"]["converters"])
    by_yaml = yaml.safe_load(blocks("yaml")[0])["model"]["config"]["converters"]
    written = [{**to_dict(from_dict(by_yaml[0])), "type": "worldsmith.models.converters.frozen_base.FrozenBase"}]
    assert found == [written, written]
    assert from_dict(by_yaml[0]) == FrozenBase.Config(bits=8)


@pytest.mark.slow
def test_the_page_from_training_to_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is made here, of two steps on three clips; the run of the page is cut to two steps."""
    monkeypatch.chdir(tmp_path)
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    setting, shell = blocks("bash")[0].split("\n", 1)
    monkeypatch.setenv(*setting.removeprefix("export ").split("="))
    Path("my_qlora.toml").write_text(blocks("toml")[0])
    run(
        "worldsmith dataset moving-shapes clips --clips 3 --val-clips 0 --num-frames 5\n"
        "worldsmith train moving_shapes -- trainer.max_iter=2 'scheduler.warm_up_steps=[0]'"
    )
    run(shell.replace("my_qlora.toml", "my_qlora.toml --trainer.max_iter 2"))
    assert list(Path("my_pipeline/transformer").glob("*.safetensors"))
    assert Path("my_adapter/adapter_model.safetensors").is_file()


def test_the_converter_of_the_page_changes_what_it_says() -> None:
    found: dict = {}
    exec(blocks("python")[0], found)
    network = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    assert found["Silu"].Config(inplace=True).build().convert(network, None) == ["1"]
    assert isinstance(network[1], nn.SiLU)
