"""The front door of actions: words, files and override words become a config as those of a run do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import field
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_family import ToyModel
from toy_runs import make_world, toy_config

from worldsmith.actions.action import Action, Result
from worldsmith.actions.model_action import ModelAction
from worldsmith.actions.registry import Command, command_classes, commands
from worldsmith.cli import action_command
from worldsmith.cli.action_command import OWN
from worldsmith.cli.launch import launch
from worldsmith.cli.main import main
from worldsmith.config import Configurable, UserError, field_docs
from worldsmith.config.command_line.command_flags import draft_settings, sort_words
from worldsmith.config.command_line.typed_flags import flag_kind
from worldsmith.config.declare.class_tags import trust
from worldsmith.config.declare.configurable import field_hints
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import ConfigError
from worldsmith.config.tree.config_draft import finish
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import unset_tree
from worldsmith.training.trainer import Trainer

trust(__name__)

run_action = partial(action_command.run_action, start=launch)


class Part(Configurable):
    class Config(Configurable.Config):
        width: Count = 1
        """Its width."""

    def __init__(self, config: Config) -> None:
        self.config = config


class OtherPart(Part):
    class Config(Part.Config):
        depth: int = 2
        """Its depth."""


class Try(Action):
    """Tries something."""

    places: ClassVar = ("model", "second")
    aliases: ClassVar = {"-o": "out", "--checkpoint-path": "model"}

    class Config(Action.Config):
        model: str
        """A model."""
        second: str = ""
        """Another."""
        out: str | None = None
        """A folder."""
        text: list[str] = field(default_factory=list)
        """Texts."""
        sizes: list[int] = field(default_factory=list)
        """Numbers."""
        note: str | None = None
        """Words."""
        num_steps: Count = 1
        """Steps to
        take."""
        share: float = 0.5
        """A share."""
        kind: Literal["a", "b"] = "a"
        """Which."""
        force: bool = False
        """Replace."""
        merge: bool = True
        """Put together."""
        image: str | None = None
        """One of two."""
        video: str | None = None
        """The other."""
        part: Part.Config = field(default_factory=Part.Config)
        """A part."""
        _alternatives: ClassVar = (("image", "video"),)

    def run(self) -> Result:
        if self.config.note == "refuse":
            raise ValueError("no such thing")
        if self.config.note == "large":
            raise MemoryError("Unable to allocate 1.05 TiB")
        return Result(["done"], to_dict(self.config), code=3 if self.config.note == "three" else 0)

    def plan(self) -> Iterator[str]:
        yield f"would try {self.config.model}"


def entry_points(**commands: type[Action]) -> Callable[..., list[Any]]:
    """What stands in for the entry points of installed packages; `name_kind` is the kind of the command `name`."""
    points = [SimpleNamespace(name=name.replace("_", " "), load=lambda cls=cls: cls) for name, cls in commands.items()]
    return lambda group: points if group == "worldsmith.actions" else []


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(commands(), "try", Command("try something", {}))
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points(try_=Try))


@pytest.fixture
def tried(tries: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """The settings that words amount to."""

    def read(*words: str, tail: tuple[str, ...] = ()) -> dict[str, Any]:
        capsys.readouterr()
        assert run_action("try", [*words, "--json"], list(tail)) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return read


def test_words_flags_and_their_other_names_fill_the_fields(tried: Callable[..., dict[str, Any]]) -> None:
    for words in (["w", "-o", "x"], ["-o", "x", "w"], ["--checkpoint-path=w", "--out=x"], ["--model", "w", "-o=x"]):
        found = tried(*words, "--num-steps", "3", "--share", "1", "--kind=b")
        assert [found[key] for key in ("model", "out", "num_steps", "share", "kind")] == ["w", "x", 3, 1.0, "b"]
    assert tried("w", "v", "--num_steps=2")["second"] == "v"


def test_a_switch_takes_no_word_that_is_not_its_own(tried: Callable[..., dict[str, Any]]) -> None:
    assert tried("--force", "w")["force"] is True
    assert tried("--force", "false", "w")["force"] is False
    assert tried("--no-merge", "w")["merge"] is False
    assert tried("--merge=false", "w")["merge"] is False


def test_text_stands_as_it_was_written_and_lists_take_a_flag_for_each_item(
    tried: Callable[..., dict[str, Any]],
) -> None:
    texts = ['{"subjects": [1]}', "[a]", "'quoted'", "null", "7", "-3 degrees", ""]
    found = tried("w", *(word for text in texts for word in ("--text", text)), "--note", "null", "--sizes", "1")
    assert (found["text"], found["note"], found["sizes"]) == (texts, "null", [1])
    assert tried("w", "--sizes", "1", "--sizes=-2", tail=("note=null",))["sizes"] == [1, -2]


def test_a_list_in_the_last_place_takes_all_words_that_are_left() -> None:
    from worldsmith.tools.reports.report import Report

    def read(*words: str) -> tuple[list[str], str | None]:
        sorted_words = sort_words(words, [unset_tree(Report.Config)], {}, Report.aliases)
        found = finish(*draft_settings("report", Report.Config, sorted_words, Report.places, None, [])).tree
        return found.runs, found.out

    assert read("a", "b", "-o", "c.html", "d") == (["a", "b", "d"], "c.html")
    assert read("--runs", "a", "--runs", "b") == (["a", "b"], None)
    assert read("a") == (["a"], None)
    with pytest.raises(ConfigError, match="runs: set twice, as 'a b' and as --runs"):
        read("a", "b", "--runs", "c")
    with pytest.raises(ConfigError, match="write RUNS, or --runs VALUE"):
        read("-o", "c.html")


def test_sections_and_classes_are_chosen_as_in_a_run(tried: Callable[..., dict[str, Any]]) -> None:
    part = tried("w", "--part.depth", "4", "--part", "OtherPart")["part"]
    assert (part["type"], part["depth"], part["width"]) == (f"{__name__}.OtherPart", 4, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.toml", 'model = "w"\nnum_steps = 5\nshare = 0.1\nvideo = "v"\n[part]\nwidth = 2\n'),
        ("s.yaml", "model: w\nnum_steps: 5\nshare: 0.1\nvideo: v\npart:\n  width: 2\n"),
        ("s.json", '{"model": "w", "num_steps": 5, "share": 0.1, "video": "v", "part": {"width": 2}}'),
    ],
)
def test_a_file_is_below_flags_and_these_below_words(
    tried: Callable[..., dict[str, Any]], tmp_path: Path, name: str, text: str
) -> None:
    """One of two alternatives gives way to the other that is written above it."""
    (tmp_path / name).write_text(text)
    file = ("--settings", str(tmp_path / name))
    found = tried(*file, "--share", "0.2", "--image", "i", tail=("share=0.3", "out=${note}", "note=n"))
    assert [found[key] for key in ("model", "num_steps", "share", "out")] == ["w", 5, 0.3, "n"]
    assert (found["video"], found["image"], found["part"]["width"]) == (None, "i", 2)


def test_the_shown_tree_names_origins_and_is_a_settings_file(
    tried: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text('note = "hint"\n')
    words = ["w", "--text", "[a]", "--settings", str(tmp_path / "s.toml")]
    assert run_action("try", [*words, "--dryrun", "--show-tree"], ["share=0.2"]) == 0
    plan, tree = capsys.readouterr().out.split("---\n")
    assert plan == "would try w\n"
    for line in (r"model: w +# flag --model w", r"note: hint +# s.toml:1", "share: 0.2 +# override share=0.2"):
        assert any(re.match(line, shown) for shown in tree.splitlines()), tree
    (tmp_path / "again.yaml").write_text(tree)
    assert tried("--settings", str(tmp_path / "again.yaml")) == tried(*words, tail=("share=0.2",))


def test_every_mistake_of_words_and_file_is_in_one_report(tries: None, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('kind = "c"\nnots = "n"\n')
    words = [
        "--num-step",
        "3",
        "--share",
        "much",
        "--image",
        "i",
        "--video",
        "v",
        "--settings",
        str(tmp_path / "s.toml"),
    ]
    with pytest.raises(UserError) as caught:
        run_action("try", words, ["sizes=x"])
    said = str(caught.value)
    for part in (
        "7 mistakes in the command\n",
        "model: the value is missing\n    -> write MODEL, or --model VALUE",
        "unknown flag --num-step",
        "did you mean --num_steps?",
        "share: expected a number, found 'much' (text)",
        "image = i and video = v cannot both be set",
        "s.toml:1:8: kind: expected one of 'a', 'b', found 'c' (text)",
        "s.toml:2:1: nots: Try.Config has no field 'nots'",
        "did you mean 'note'?",
        "sizes: expected a list",
    ):
        assert part in said, said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["w", "--checkpoint-path", "w"], "model: set twice, as 'w' and as --model"),
        (["w", "v", "u"], "unexpected argument 'u'\n    -> only MODEL and SECOND can be positional"),
        (["w", "--num-steps", "0"], "num_steps must be at least 1, found 0"),
        (["w", "--num-steps"], "the value is missing"),
        (["w", "-x", "1"], "unknown flag --x"),
        (["w", "--show-tree"], "--show-tree requires --dryrun"),
        (["w", "--settings"], "--settings needs a value"),
        (["w", "--settings", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["w", "--note", "refuse"], "no such thing"),
        (["w", "--note", "large"], "the command needs more memory than the machine has: Unable to allocate 1.05 TiB"),
        (["--help", "wrod"], "no flag has 'wrod' in its name or description"),
    ],
)
def test_a_mistake_is_said_without_a_traceback(tries: None, words: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=re.escape(complaint)):
        run_action("try", words, [])


WORDS = [
    "--",
    "-o",
    "-o=",
    "-h",
    "--help",
    "--json",
    "--dryrun",
    "--show-tree",
    "--settings",
    "--settings=",
    "--no-force",
]
WORDS += [
    "--force",
    "--no-",
    "--text",
    "--text.0",
    "--sizes",
    "--part",
    "--part.",
    "--part.depth",
    "--.a",
    "--a..b",
    "---",
]
WORDS += [
    "OtherPart",
    "w",
    "3",
    "-3",
    "",
    "=",
    "true",
    "null",
    "{",
    "[a",
    "${model}",
    "${",
    "--out=${out}",
    "\ud800",
    "é",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(head=st.lists(st.sampled_from(WORDS), max_size=7), tail=st.lists(st.sampled_from(WORDS), max_size=2))
def test_no_words_end_in_a_traceback(tries: None, head: list[str], tail: list[str]) -> None:
    with suppress(UserError), redirect_stdout(StringIO()):
        run_action("try", head, tail)


def test_the_outcome_is_lines_or_json_and_an_exit_code(tries: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_action("try", ["w", "--note", "three"], []) == 3
    assert capsys.readouterr().out == "done\n"


def test_help_lists_every_field_with_its_default_and_who_wrote_it(
    tries: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text("num_steps = 4\n")
    assert run_action("try", ["--settings", str(tmp_path / "s.toml"), "--help"], []) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: worldsmith try MODEL SECOND [--flag VALUE]…")
    assert "Tries something.\n-o is the same as --out." in shown
    assert "  --model TEXT (required)\n      A model." in shown
    assert "  --num-steps INT = 4 (s.toml:1)\n      Steps to take." in shown
    assert "--part.width INT = 1 (default)" in shown
    assert all(option in shown for option in OWN if option != "--spec")  # this command reads none
    assert run_action("try", ["--help", "depth", "--part", "OtherPart"], []) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  --part.depth INT = 2 (default)", "      Its depth."]


def test_a_kind_is_chosen_by_word(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in (([], 0), (["--help"], 0), (["moving-shape", "x"], 2)):
        assert main(["dataset", *words]) == code
        said = capsys.readouterr()
        assert "moving-shapes" in (said.err if code else said.out)


class Judge(ModelAction):
    """Judges what a toy makes."""

    class Config(ModelAction.Config):
        strict: bool = False
        """Whether to be strict."""

    def run(self) -> Result:
        return Result([f"judged {self.config.model}{', strictly' * self.config.strict}"])


def test_the_model_chooses_the_kind_and_one_that_nothing_is_known_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A family of another package brings its own evaluation, with flags of its own, by an entry point."""
    run = tmp_path / "run"
    Trainer(toy_config(make_world(tmp_path / "world"), steps=4), run_folder=run).train()
    assert main(["evaluate", str(run), "--prompts", "p", "-o", "x"]) == 2
    assert "'toy' generate no known output; `worldsmith evaluate` requires a model that generates videos" in (
        capsys.readouterr().err
    )
    monkeypatch.setattr(ToyModel.Config, "makes", "numbers")
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points(evaluate_numbers=Judge))
    (tmp_path / "s.yaml").write_text(f"model: {run}\n")
    for words in (["--strict", str(run)], ["--settings", str(tmp_path / "s.yaml"), "--strict"]):
        assert main(["evaluate", *words]) == 0
        assert capsys.readouterr().out == f"judged {run}, strictly\n"
    assert main(["evaluate", str(run), "--dryrun"]) == 2
    assert "Judge has no dry run" in capsys.readouterr().err
    assert main(["evaluate", "--help", "evaluators"]) == 0  # a flag of one kind, where no model says which
    assert capsys.readouterr().out.count("--evaluators") == 1
    assert main(["evaluate", "--help"]) == 0  # of every kind
    shown = capsys.readouterr().out
    assert "Judges what a toy makes." in shown
    assert "Evaluates a generator on your own clips" in shown


@pytest.mark.parametrize("name", list(commands()))
def test_every_field_has_a_doc_and_a_name_of_its_own(name: str) -> None:
    """Kinds of a command agree on what a flag takes: the words are sorted before the kind is known."""
    taken: dict[str, Any] = {}
    for cls in command_classes(name).values():
        assert cls.__doc__
        docs, tree = field_docs(cls.Config), unset_tree(cls.Config)
        assert {*cls.places, *cls.aliases.values()} <= {*docs}
        assert {"out", "gaps_parquet"} & {*docs} or "force" not in docs, "there is nothing to replace"
        for key in field_hints(cls.Config):
            assert docs.get(key), f"{cls.__name__}.{key}"
            assert f"--{key.replace('_', '-')}" not in OWN
            assert taken.setdefault(key, flag_kind(tree, key)) == flag_kind(tree, key)
