"""The commands and the Python of docs/models.md do what the page says, on models of a few thousand weights."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import tiny_runs
from stored_models import write_tiny_base

from worldsmith.cli.main import main
from worldsmith.training.trainer import Trainer

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_commands_and_code_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reasoner under the page's name, converted; two runs from it, one with adapters, exported in every format."""
    monkeypatch.chdir(tmp_path)
    world = tiny_runs.make_world(tmp_path / "world", clips=3)
    write_tiny_base(tmp_path / "models" / "Qwen3-VL-8B-Instruct")
    converting, _, exporting = blocks("bash")  # between them, a reasoner out of released weights
    transformer_code, source_code = blocks("python")
    run_lines(converting)
    said = capsys.readouterr().out
    assert "copied from other tensors of the source" in said
    assert "not in the source, initialized: 8 " in said
    variables: dict[str, object] = {}
    exec(transformer_code, variables)
    assert variables["transformer"].config.hidden_size == 32  # type: ignore[attr-defined]

    for name in ("my_run", "my_lora"):
        config = tiny_runs.tiny_config(world, steps=1)
        config.scheduler.warm_up_steps = [0]
        config.checkpoint.init, config.checkpoint.load_path = "pretrained", "models/base"
        if name == "my_lora":
            config.model.config.lora_enabled, config.checkpoint.save_weights = True, "trained"
        Trainer(config, run_folder=tmp_path / name).train()
        assert (tmp_path / name / "load_report.json").is_file()
    run_lines(exporting.replace("my_pipeline", "my_pipeline --shift 3"))
    for folder, file in (
        ("my_pipeline", "model_index.json"),
        ("my_weights", "model.safetensors"),
        ("my_adapter", "adapter_model.safetensors"),
        ("my_merged", "config.json"),
    ):
        assert (tmp_path / folder / file).is_file()
        assert (tmp_path / folder / "worldsmith.json").is_file()
    exec(source_code, variables)
    assert variables["table"].shape == (tiny_runs.VOCAB_SIZE, 32)  # type: ignore[attr-defined]
    assert "native export" in capsys.readouterr().out


def run_lines(block: str) -> None:
    """Each line is a command of its own."""
    for line in block.strip().splitlines():
        words = shlex.split(line)
        assert words[0] == "worldsmith"
        assert main(words[1:]) == 0, line


def test_links_and_fields_of_the_page_exist() -> None:
    """Every dotted setting that the page names is a setting."""
    reference = (Path(__file__).parents[2] / "docs" / "config_reference.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"`checkpoint\.(\w+)", PAGE)) - {"save_weights"}:
        assert name in reference, name
