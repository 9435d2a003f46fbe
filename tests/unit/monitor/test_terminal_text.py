"""What the terminal gets of keys, paths and texts from outside: no control characters, no floods."""

from __future__ import annotations

import io
import json
import logging
import re
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console

from worldsmith.actions.action import ColoredLine, Result, make_progress_reporter
from worldsmith.cli.action_command import print_result
from worldsmith.cli.main import main
from worldsmith.config.write.values import escape_controls, limit_message, shorten
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.monitor.process_log import CopiedStream, ProcessLog
from worldsmith.monitor.terminal_text import command_lines, fit_width, fitting_columns, print_warning, terminal_handler
from worldsmith.monitor.terminal_view import TerminalView
from worldsmith.tools.datasets.preview_chats import TokenSpan, format_spans

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


@pytest.mark.parametrize(
    "words",
    [
        [EVIL],
        ["config", "check", f"/tmp/{EVIL}.toml"],
        ["evaluate", f"/tmp/{EVIL}"],
        ["schema", EVIL],
        ["config", EVIL],
        ["config", "diff", "moving_shapes", "flux_tiny", EVIL],
        ["launch", f"--{EVIL}", "train"],
    ],
)
def test_an_error_is_escaped(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert is_clean(error)
    assert "\\u001b]0;title\\u0007" in error or repr(EVIL) in error


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
    print_result(Result([EVIL, "x" * 9000], {"key": EVIL}))
    print_result(Result([], {"key": EVIL}), as_json=True)
    out, err = capsys.readouterr()
    assert is_clean(out)
    assert is_clean(err)
    assert "x" * 9000 in out  # results are whole
    assert json.loads(out[out.index("{") :]) == {"key": EVIL}
    assert len(err) < 1000


def test_colors_of_ours_stay_and_those_of_data_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    text = format_spans([TokenSpan(f"{EVIL}\x1b[31m", 3, True, "text")], colour=True)
    print_result(Result([ColoredLine(text)]))
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


@pytest.mark.parametrize("width", [60, 80, 200])
def test_lines_end_between_words_in_the_column_of_their_text(width: int) -> None:
    words = [f"word{number}" for number in range(60)]
    folder = f"/{'folder/' * 40}file"
    text = f"label        {' '.join(words)}\n    -> {' '.join(words)}\nin {folder} {' '.join(words)}\nshort"
    lines = fit_width(text, width).split("\n")
    assert " ".join(" ".join(lines).split()) == " ".join(text.split()), "nothing is lost"
    assert all(len(line) <= width or line.strip() == folder for line in lines)
    second = lines[1]
    assert second.startswith(" " * 13 + "word")
    assert next(line for line in lines if "->" in line).startswith("    -> word0")
    assert fit_width(text, None) == text


@pytest.mark.parametrize(("length", "indent"), [(40, 13), (67, 13), (70, 4), (76, 4), (77, 0), (120, 0)])
def test_a_path_has_a_line_of_its_own_that_fits_the_terminal_where_it_can(length: int, indent: int) -> None:
    """A path that is wider than the terminal begins in the first column, where the terminal itself continues it."""
    path = "/" + "p" * (length - 1)
    lines = fit_width(f"run folder   {'word ' * 13}{path} (new, random weights)", 80).split("\n")
    (line,) = [line for line in lines if path in line]
    assert line.startswith(" " * indent + path)
    assert len(line) <= max(80, length)


def test_lines_of_files_with_their_marks_and_commands_are_not_wrapped() -> None:
    command = f"next: worldsmith export {'folder' * 9} -o DIR"
    assert fit_width(command, 60) == command
    frame = f"   12 | {'key = 1 ' * 20}\n      | {' ' * 90}^^^"
    assert fit_width(frame, 60) == frame


def test_a_command_of_several_lines_stays_what_it_is() -> None:
    """A break within its quotes would be part of the prompt."""
    prompt = "A red train slides along a dim platform, its lit windows blurring as it gathers speed."
    text = "\n".join(["next:", *command_lines(["worldsmith", "generate", "run", "--prompt", prompt, "-o", "videos"])])
    shown = fit_width(text, 60)
    assert f"'{prompt}'" in shown
    assert shlex.split(shown.partition("next:")[2].replace("\\\n", " "))[4] == prompt
    assert fit_width("path \\\n" + "word " * 20, 60).count("\n") == 2  # no command


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["recipes"],
        ["recipes", "moving_shapes"],
        ["dataset"],
        ["dataset", "import", "--help"],
        ["generate", "--help"],
        ["launch", "--help"],
        ["train", "--help"],
        ["train", "moving_shapes", "--help", "lr"],
        ["config", "check", "vision_sft_nano", "--", "a=1", "trainer.max_iter=x"],
        ["plan", "no_recipe"],
    ],
)
def test_what_commands_print_fits_the_terminal(
    words: list[str], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words as through a pipe, on lines that are not wider than the terminal."""
    for name in ("WAN_VAE_PATH", "BASE_CHECKPOINT_PATH", "DATASET_PATH"):
        monkeypatch.delenv(name, raising=False)
    main(words)
    piped = "".join(capsys.readouterr())
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    main(words)
    shown = terminal.getvalue()
    assert sorted(shown.split()) == sorted(piped.split()) or words in (["launch", "--help"], ["train", "--help"])
    assert all(word in shown.split() for word in piped.split() if "/" in word), "no path is cut"
    assert all(len(line) <= width or len(line.split()) < 3 for line in shown.split("\n"))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_wide_table_has_its_columns_in_groups(width: int) -> None:
    parts = fitting_columns([5] * 12, width - 10)
    assert [column for part in parts for column in part] == list(range(12))
    assert all(7 * len(part) <= width - 10 for part in parts)
    assert fitting_columns([5], 2) == [[0]]


def test_progress_that_is_complete_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some work reports its last part and then its end."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show = make_progress_reporter("reading clips")
    for done in (1, 2, 2):
        show(done, 2)
    assert terminal.getvalue().count("100%") == 1


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_live_line_of_a_run_is_not_cropped(width: int) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=width, force_terminal=True, color_system=None)
    with TerminalView(total_steps=20_000, console=console) as view:
        view.update(12_345, loss=1.23456, tokens_per_second=123_456, remaining_seconds=4567)
        view.print("Saved checkpoint " + "word " * 40)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).replace("\r", "\n")
    assert all(len(line) <= width for line in text.split("\n"))
    assert "…" not in text
    assert "loss 1.2346" in text
    assert re.search(r"step 12345/20000 .*left", text)
    assert ("tokens/s" in text) == (width > 60)
