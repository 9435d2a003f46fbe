"""Commands about a run are actions: their flags are the fields of a component, beside those that describe the run."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worldsmith.actions.registry import command_classes, commands
from worldsmith.cli import run_source
from worldsmith.cli.commands import read_command
from worldsmith.cli.main import main
from worldsmith.config.declare.configurable import field_hints
from worldsmith.config.tree.config_draft import Loaded

NAMES = [name for name, command in commands().items() if command.about_run]
FLAGS = {
    "check": ["--recipe NAME", "--processes N", "--workers N", "--sample N", "--headers", "--examples N"],
    "plan": ["--gpus N", "--gpu WORD", "--quick", "--encoded", "--fit", "-o FILE, --output FILE"],
    "encode": ["--processes N", "--passes N"],
}


def options_of(add_arguments: Callable[[ArgumentParser], None]) -> dict[str, Any]:
    parser = ArgumentParser(add_help=False)
    add_arguments(parser)
    return {action.dest: action for action in parser._actions}


@pytest.mark.parametrize("name", NAMES)
def test_the_flags_of_a_command_are_the_fields_of_its_component(name: str) -> None:
    (kind,) = command_classes(name).values()
    options = options_of(read_command(name, ["moving_shapes"])[0].add_arguments)
    own = [dest for dest in options if dest not in {*options_of(run_source.add_source_arguments), "settings", "json"}]
    assert own == list(field_hints(kind.Config))


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_names_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.split("options:")[1].splitlines()]
    assert all(any(line == flag or line.startswith(f"{flag}  ") for line in lines) for flag in FLAGS[name])


def test_fields_without_a_flag_keep_their_defaults() -> None:
    command, args = read_command("check", ["moving_shapes", "--headers", "--workers=0", "--sample", "3"])
    config = command.action(args).config
    assert (config.headers, config.workers, config.sample, config.processes) == (True, 0, 3, None)


def test_an_action_about_a_run_is_built_for_a_run_that_is_loaded() -> None:
    (kind,) = command_classes("plan").values()
    run: Any = object()
    assert kind.Config(gpus=2).build(run=Loaded(run)).tree is run


@pytest.mark.parametrize("name", NAMES)
def test_help_comes_without_torch(name: str) -> None:
    code = (
        f"import sys; from worldsmith.cli.main import main; assert main(['{name}', '--help']) == 0; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_flags_can_be_a_file_and_win_over_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('gpus = 16\ngpu = "24GB"\nquick = true\n')
    words = ["plan", "wan21_t2v_1b", "--settings", str(file), "--json"]
    for more, gpus in (([], 16), (["--gpus", "2"], 2)):
        assert main([*words, *more, "--model.config.parallelism.data_parallel_replicate_degree", "-1"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["gpus"], facts["gpu"]["memory"], "quick" in facts) == (gpus, 24 * 10**9, True)


def test_mistakes_of_a_file_are_told_with_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "check.yaml"
    file.write_text("workers: 0\nsampel: 3\n")
    assert main(["check", "moving_shapes", "--settings", str(file)]) == 2
    shown = capsys.readouterr().err
    assert all(text in shown for text in ("the command", f"{file}:2", "sampel", "sample"))
