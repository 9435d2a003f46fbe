"""Flags that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from worldsmith.cli import export
from worldsmith.cli.export import require_meaning
from worldsmith.cli.main import main, read_command
from worldsmith.config import UserError


@pytest.mark.parametrize(
    ("command", "rest", "name"),
    [
        ("convert", ["-o", "x"], "source"),
        ("export", ["--force"], "model"),
        ("generate", ["--prompt", "a cat"], "model"),
    ],
)
def test_weights_are_named_by_place_or_by_flag(
    command: str, rest: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [vars(read_command(command, words)[1]) for words in (["w", *rest], [*rest, "w"])]
    given += [vars(read_command(command, ["--checkpoint-path=w", *rest])[1])]
    assert given[0] == given[1] == given[2]
    assert str(given[0][name]) == "w"
    for words, complaint in (([], "is required"), (["w", "--checkpoint-path", "w"], "not allowed with")):
        assert main([command, *rest, *words]) == 2
        assert complaint in capsys.readouterr().err


def test_export_takes_the_config_of_its_run_and_no_other(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    checkpoint = tmp_path / "run/checkpoints/iter_000000002"
    (checkpoint / "model").mkdir(parents=True)
    for file, fits in ((tmp_path / "run/config.yaml", True), (tmp_path / "config.yaml", False)):
        args = parser.parse_args(["--checkpoint-path", str(checkpoint), "--config-file", str(file)])
        if fits:
            require_meaning(args, None)  # type: ignore[arg-type]
        else:
            with pytest.raises(UserError, match="exported with its own config"):
                require_meaning(args, None)  # type: ignore[arg-type]
