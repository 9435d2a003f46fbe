"""What the terminal gets of keys, paths and texts from outside: no control characters, no floods."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest
from rich.console import Console

from worldsmith.actions.action import ColoredLine, Result
from worldsmith.cli.action import show
from worldsmith.cli.main import main
from worldsmith.config.write.values import escape_controls, limit_message, shorten
from worldsmith.data.conversations.preview import Stretch, written
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.monitor.process_log import CopiedStream, ProcessLog
from worldsmith.monitor.terminal_text import print_warning, terminal_handler
from worldsmith.monitor.terminal_view import TerminalView

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
EVIL = "a\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.\u2066b\rc"
LONG = "9" * 5000


def is_clean(text: str) -> bool:
    return not set(CONTROLS) - {"\n", "\t"} & set(text) and not any(c in text for c in CONTROLS if c not in "\n\t")


def test_every_control_character_is_escaped_and_text_is_kept() -> None:
    assert is_clean(escape_controls("".join(CONTROLS)))
    assert escape_controls("\x1b[0m\u202e\x9b") == "\\u001b[0m\\u202e\\u009b"
    assert escape_controls("größer — 你好 🙂\n\tתודה") == "größer — 你好 🙂\n\tתודה"
    assert escape_controls("a\nb\tc", lines=False) == "a\\u000ab\\u0009c"


def test_long_values_and_lines_are_cut_and_paths_are_kept() -> None:
    assert limit_message("key " + "k" * 305_000) == f"key {'k' * 200}… (305000 characters)"
    assert len(limit_message("found " + "word " * 60_000)) < 2100
    path = "/".join(["folder"] * 60)
    assert limit_message(f"{path}: no such file") == f"{path}: no such file"
    assert shorten("x" * 200) == "x" * 200


@pytest.mark.parametrize("words", [[EVIL], ["config", "check", f"/tmp/{EVIL}.toml"], ["evaluate", f"/tmp/{EVIL}"]])
def test_an_error_is_escaped(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert is_clean(error)
    assert "\\u001b]0;title\\u0007" in error


@pytest.mark.parametrize("key", ["k" * 305_000, json.dumps(EVIL)])
def test_a_key_of_a_file_is_escaped_and_cut(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'recipe = "moving_shapes"\n[trainer]\n{key} = 1\n')
    assert main(["config", "check", str(file)]) == 2
    error = capsys.readouterr().err
    assert is_clean(error)
    assert "[trainer] has no key" in error
    assert len(error) < 5000


@pytest.mark.parametrize("name", ["run.toml", "settings.json", "run.yaml"])
def test_a_number_of_too_many_digits_has_a_message_of_ours(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    text = {"toml": f'recipe = "moving_shapes"\n[trainer]\nmax_iter = {LONG}\n', "json": f'{{"seed": {LONG}}}'}
    file.write_text(text.get(file.suffix[1:], f"trainer:\n  max_iter: {LONG}\n"))
    words = ["generate", "--settings"] if name.endswith("json") else ["config", "check"]
    assert main([*words, str(file)]) == 2
    error = capsys.readouterr().err
    assert "5000 digits" in error
    assert "sys." not in error
    assert "Exceeds" not in error


def test_a_number_of_too_many_digits_in_a_model_folder(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(f'{{"hidden_size": {LONG}}}')
    with pytest.raises(UserError, match=r"config\.json: not valid JSON"):
        read_json_object(file)


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_a_long_number_of_another_base(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / f"run.{kind}"
    number = f"0x{'f' * 5000}"
    text = {"toml": f'recipe = "moving_shapes"\n[job]\nname = {number}\n', "yaml": f"trainer:\n  seed: {number}\n"}
    file.write_text(text[kind])
    assert main(["config", "check", str(file)]) == 2
    error = capsys.readouterr().err
    assert "sys." not in error
    assert len(error) < 5000


def test_warnings_results_and_facts_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_warning(f"{EVIL} {'w' * 9000}")
    show(Result([EVIL, "x" * 9000], {"key": EVIL}))
    show(Result([], {"key": EVIL}), as_json=True)
    out, err = capsys.readouterr()
    assert is_clean(out)
    assert is_clean(err)
    assert "x" * 9000 in out  # results are whole
    assert json.loads(out[out.index("{") :]) == {"key": EVIL}
    assert len(err) < 1000


def test_colors_of_ours_stay_and_those_of_data_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    text = written([Stretch(f"{EVIL}\x1b[31m", 3, True, "text")], colour=True)
    show(Result([ColoredLine(text)]))
    assert is_clean(capsys.readouterr().out.replace("\x1b[1;32m", "").replace("\x1b[0m", ""))


def test_log_records_are_escaped_wherever_they_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    handler = terminal_handler()
    handler.handle(logging.makeLogRecord({"msg": f"{EVIL} {'w' * 9000}", "levelno": logging.WARNING}))
    error = capsys.readouterr().err
    assert is_clean(error)
    assert len(error) < 1000
    shown = io.StringIO()
    with TerminalView(total_steps=1, console=Console(file=shown, width=300)) as view:
        logging.getLogger("worldsmith.test").warning("%s", EVIL)
        view.print(EVIL)
    assert is_clean(shown.getvalue())
    assert shown.getvalue().count("title") == 2


def test_the_log_of_a_process_is_escaped(tmp_path: Path) -> None:
    log = ProcessLog()
    log.begin(tmp_path / "logs/rank_00000.log", "head")
    print(f"{EVIL}\x1b[32mgreen\x1b[0m", file=CopiedStream(io.StringIO(), log))  # type: ignore[call-overload]
    text = (tmp_path / "logs/rank_00000.log").read_text()
    assert is_clean(text)
    assert "green" in text
    assert sys.stdout is not None
