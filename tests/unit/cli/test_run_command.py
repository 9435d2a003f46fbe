"""Commands about a run are actions: their flags are the fields of a component, beside those that describe the run."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser
from typing import Any

import pytest

from worldsmith.actions.registry import ACTIONS, kinds_of
from worldsmith.cli import run_source
from worldsmith.cli.main import main, read_command
from worldsmith.config.declare.configurable import field_hints
from worldsmith.config.tree.draft import Loaded

NAMES = [name for name, command in ACTIONS.items() if command.about_run]
FLAGS = {
    "check": ["--recipe NAME", "--processes N", "--workers N", "--sample N", "--headers"],
    "plan": ["--gpus N", "--gpu WORD", "--quick", "--encoded", "--fit", "-o FILE, --output FILE"],
    "encode": ["--processes N", "--passes N"],
}


def options_of(module: Any) -> dict[str, Any]:
    parser = ArgumentParser(add_help=False)
    module.add_arguments(parser)
    return {action.dest: action for action in parser._actions}


@pytest.mark.parametrize("name", NAMES)
def test_the_flags_of_a_command_are_the_fields_of_its_component(name: str) -> None:
    (kind,) = kinds_of(name).values()
    options = options_of(read_command(name, ["moving_shapes"])[0])
    own = [dest for dest in options if dest not in {*options_of(run_source), "json"}]
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
    (kind,) = kinds_of("plan").values()
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
