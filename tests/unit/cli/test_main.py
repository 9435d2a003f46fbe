"""The command line: dispatch, exit codes, one-line errors, and how quickly it answers."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from processor_time import run_timed

from worldsmith import __version__
from worldsmith.__main__ import COLLECTED, program
from worldsmith.cli import main as cli
from worldsmith.cli.commands import COMMANDS
from worldsmith.config import ConfigError, Problem, UserError

RECIPE = """
from dataclasses import field
from typing import Any, ClassVar
from worldsmith.config import Configurable, recipe
from worldsmith.config.declare.class_tags import trust
from worldsmith.config.sections import JobConfig

trust("tiny_recipes")

class Trainer(Configurable):
    class Config(Configurable.Config):
        job: JobConfig = field(default_factory=JobConfig)
        steps: int = 3
        custom: dict[str, Any] = field(default_factory=dict)
        _root: ClassVar[bool] = True
    def __init__(self, config: Config) -> None: ...

@recipe("tiny")
def tiny() -> Trainer.Config:
    return Trainer.Config()
"""
RUN = """
import sys, types
sys.modules["worldsmith.families.recipes"] = types.ModuleType("worldsmith.families.recipes")
import tiny_recipes
from worldsmith.cli.main import main
code = main(sys.argv[1:])
names = ("torch", "numpy", "diffusers", "transformers", "pydantic", "omegaconf")
heavy = [name for name in names if name in sys.modules]
print("heavy:", heavy, file=sys.stderr)
sys.exit(code)
"""


QUICK = 6
"""Max processor time of an answer without a recipe, relative to imports of the standard library; 2.6 was measured."""


def run(*words: str, folder: Path) -> tuple[int, str, str]:
    return run_and_time(*words, folder=folder)[0]


def run_and_time(*words: str, folder: Path) -> tuple[tuple[int, str, str], float]:
    (folder / "tiny_recipes.py").write_text(RECIPE)
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done, time = run_timed([sys.executable, "-c", RUN, *words], env=environment, timeout=240, cwd=folder)
    return (done.returncode, done.stdout, done.stderr), time


def command(monkeypatch: pytest.MonkeyPatch, result: Any, *, overrides: bool = True) -> None:
    """Puts a command of ours in the place of `train`."""
    module = types.ModuleType("worldsmith.cli.train")

    def add_arguments(parser: Any) -> None:
        parser.add_argument("source", nargs="?")
        parser.add_argument("--flag", action="store_true")
        if overrides:
            parser.add_argument("overrides", nargs="*")

    def run_it(args: Any) -> int:
        if isinstance(result, BaseException):
            raise result
        return int(result(args))

    module.__dict__.update(HELP="Trains.", add_arguments=add_arguments, run=run_it)
    monkeypatch.setitem(sys.modules, "worldsmith.cli.train", module)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError([Problem("a.b", "is wrong", hint="mend it")]), 2, "a.b: is wrong"),
        (UserError("no such run"), 2, "worldsmith: error: no such run"),
        (FileNotFoundError(2, "No such file or directory", "x.mp4"), 2, "No such file or directory: x.mp4"),
        (FileNotFoundError("unknown asset 'x'"), 2, "unknown asset 'x'"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "worldsmith: error: Permission denied: a/b\n"),
        (NotADirectoryError(20, "Not a directory", "file/out"), 2, "worldsmith: error: Not a directory: file/out\n"),
        (OSError(28, "No space left on device"), 2, "worldsmith: error: No space left on device\n"),
        (OSError(18, "Invalid cross-device link", "a", None, "b"), 2, "Invalid cross-device link: a -> b\n"),
        (OSError("no tokenizer in x"), 2, "worldsmith: error: no tokenizer in x\n"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_mistakes_of_the_user_end_in_a_report_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    command(monkeypatch, error)
    assert cli.main(["train", "x"]) == code
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    command(monkeypatch, ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["train", "x"])


def test_words_after_the_dashes_are_overrides_wherever_the_flags_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    command(monkeypatch, lambda args: seen.append((args.source, args.flag, args.overrides)) or 0)
    assert cli.main(["train", "f.toml", "--flag", "--", "a.b=1", "~c", "--", "-x=2"]) == 0
    assert cli.main(["train", "f.toml", "a.b=1"]) == 0
    assert seen == [("f.toml", True, ["a.b=1", "~c", "--", "-x=2"]), ("f.toml", False, ["a.b=1"])]


def test_overrides_for_a_command_that_takes_none_and_wrong_flags_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command(monkeypatch, lambda args: 0, overrides=False)
    assert cli.main(["train", "--", "a=1"]) == 2
    assert "accepts no overrides" in capsys.readouterr().err
    assert cli.main(["train", "--fla"]) == 2


def test_help_version_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"worldsmith {__version__}\n"
    assert cli.main([]) == 0
    assert cli.main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and text in shown for name, text in COMMANDS.items())


@pytest.mark.parametrize(
    "words",
    [
        ["schema", "reference", "-o", "file/page.md"],
        ["dataset", "moving-shapes", "file/data", "--clips", "1", "--val-clips", "1"],
        ["convert", "file/source", "-o", "out"],
        ["config", "check", "file/run.toml"],
    ],
)
def test_a_path_below_a_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert "file" in error
    assert error.startswith(("worldsmith: error: ", "file/run.toml"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_config_show_and_check(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[job]\nexperiment = "tiny"\nname = "x"\n[custom]\na = 1\n')
    code, out, err = run("config", "show", "--plain", "run.toml", "--", "steps=5", folder=tmp_path)
    assert code == 0, err
    assert out == (
        "type: tiny_recipes.Trainer\njob:\n  task: vfm\n  experiment: tiny\n  project: ''\n  group: ''\n"
        "  name: x\n  folder: ''\n  resume_newest: false\n  wandb_mode: disabled\nsteps: 5\n"
    )
    assert run("config", "check", "tiny", folder=tmp_path)[:2] == (0, "OK: tiny\n")
    assert "custom:\n  a: 1\n" in run("config", "show", "--plain", "--custom", "run.toml", folder=tmp_path)[1]


def test_help_and_a_config_error_answer_at_once_and_import_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('[job]\nexperiment = "tiny"\nnam = "x"\n')
    for words, expected in ((["--help"], 0), (["config", "check", "bad.toml"], 2)):
        times = []
        for _ in range(3):
            (code, _, err), time = run_and_time(*words, folder=tmp_path)
            times.append(time)
            assert code == expected, err
            assert "heavy: []" in err
            assert "Traceback" not in err
        assert min(times) < QUICK, times
    assert "bad.toml:3:1: job.nam" in err
    assert "did you mean 'job.name'?" in err


def test_the_program_looks_for_garbage_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = gc.get_threshold()
    monkeypatch.setattr(sys, "argv", ["worldsmith", "--version"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    try:
        with pytest.raises(SystemExit) as end:
            program()
        assert end.value.code == 0
        assert gc.get_threshold() == COLLECTED
    finally:
        gc.set_threshold(*usual)


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"recipes"}))
def test_a_command_without_arguments_prints_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name]) == 0
    bare = capsys.readouterr()
    assert cli.main([name, "--help"]) == 0
    assert bare == capsys.readouterr()
    assert bare.out
    assert not bare.err


def test_recipes_without_arguments_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes"]) == 0
    assert "moving_shapes" in capsys.readouterr().out


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_that_wait_do_not_spin_unless_asked_to(given: str | None) -> None:
    script = (
        "import os, sys; from worldsmith.__main__ import program; sys.argv = ['worldsmith', 'recipes']\n"
        "try:\n    program()\nexcept SystemExit:\n    print('policy', os.environ['OMP_WAIT_POLICY'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert f"policy {given or 'PASSIVE'}" in done.stdout, done.stderr


def test_an_older_python_gets_one_line(tmp_path: Path) -> None:
    """This interpreter with an older version number, and a real Python 3.10 if this machine has one."""
    script = "import sys; sys.version_info = (3, 10, 13); from worldsmith.__main__ import program; program()"
    commands = [[sys.executable, "-c", script]]
    if (older := shutil.which("python3.10")) and subprocess.run([older, "-V"], capture_output=True).returncode == 0:
        commands.append([older, "-m", "worldsmith"])
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    for command in commands:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("worldsmith: error: Python is too old: expected 3.11 or newer, found 3.10."), line
        assert "python3.11 -m venv" in line


def test_a_clock_that_python_cannot_read_gets_one_line() -> None:
    """As `time.time()` ends where the system clock is after the year 2262."""
    script = (
        "import time\n\n"
        "def after_2262():\n    raise OverflowError('timestamp too large to convert to C _PyTime_t')\n\n"
        "time.time = after_2262\nfrom worldsmith.__main__ import program\nprogram()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("worldsmith: error: the system clock is wrong: expected a date from 1678 to 2261,"), line


@pytest.mark.parametrize(
    "words",
    [
        ["--version"], ["--help"], ["recipes"], ["recipes", "--json"], ["recipes", "--help"], ["train", "--help"],
        ["schema", "toml"], ["config", "show", "moving_shapes"], ["plan", "moving_shapes", "--quick"],
        ["generate", "--help"], ["launch", "--help"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_reader_that_has_gone_ends_a_command_quietly(words: list[str]) -> None:
    """As in `worldsmith recipes | head -1`, however much of the output is still buffered."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "DATASET_PATH": "clips"}
    environment.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, "-m", "worldsmith", *words]
    try:
        done = subprocess.run(command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141 or (done.returncode == 0 and words[-1] == "--help")  # argparse ignores the error


def test_a_full_disk_under_the_output_is_an_error() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    environment.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, "-m", "worldsmith", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.stderr == "worldsmith: error: standard output: No space left on device\n"
    assert done.returncode == 2
