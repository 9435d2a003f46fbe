"""Every row of the table has an error that shows it and no other row; its advice works."""

import copy
import re
import tomllib
from pathlib import Path

import pytest

from worldsmith.actions.registry import command_classes
from worldsmith.cli.commands import COMMANDS
from worldsmith.config import get_recipe
from worldsmith.config.command_line.overrides import apply_overrides, parse_overrides
from worldsmith.config.errors import Problem
from worldsmith.config.tree.plain import to_dict
from worldsmith.tools.explain.causes import find_causes, fixed_part, match_patterns, patterns
from worldsmith.tools.explain.explanation import KINDS, OPERATION
from worldsmith.tools.explain.facts import FACTS, Run
from worldsmith.tools.explain.logs import split
from worldsmith.training.trainer import Trainer

HERE = Path(__file__).parent
SNIPPETS = {int(id): text for id, text in tomllib.loads((HERE / "snippets.toml").read_text()).items()}


def ids(text: str) -> list[int]:
    return [cause.pattern.id for cause in find_causes(split(text, "log"))]


def test_every_row_has_a_snippet() -> None:
    assert set(SNIPPETS) == set(patterns())
    assert set(range(1, 59)) <= set(patterns())


@pytest.mark.parametrize("id", SNIPPETS)
def test_a_snippet_shows_its_row_and_no_other(id: int) -> None:
    assert ids(SNIPPETS[id]) == [id]


def test_the_index_of_fixed_texts_leaves_no_row_out() -> None:
    for line in "\n".join(SNIPPETS.values()).splitlines():
        every = [id for id, pattern in patterns().items() if pattern.groups_in(line) is not None]
        assert [id for id, _ in match_patterns(line)] == every, line


def test_a_title_in_lower_case_shows_the_row_of_its_error() -> None:
    title = "attributeerror: 'distributeddataparallel' object has no attribute 'dtype'"
    assert ids(title) == ids("AttributeError: 'DistributedDataParallel' object has no attribute 'dtype'") == [420]
    assert ids("safetensors_rust.safetensorerror: error while deserializing header: headertoolarge") == [504]
    assert ids("killed") == []


@pytest.mark.parametrize("log", sorted((HERE / "logs/clean").iterdir()), ids=lambda log: log.stem)
def test_a_log_of_a_run_that_did_well_shows_nothing(log: Path) -> None:
    assert ids(log.read_text()) == []


@pytest.mark.parametrize("log", sorted((HERE / "logs/others").iterdir()), ids=lambda log: log.stem)
def test_an_error_of_something_else_shows_nothing(log: Path) -> None:
    assert ids(log.read_text()) == []


def test_numbers_of_other_rows_and_names_of_facts_are_known() -> None:
    for pattern in patterns().values():
        assert set(pattern.over) <= set(patterns()) - {pattern.id}, pattern.id
        assert not [other for other in pattern.over if pattern.id in patterns()[other].over], pattern.id
        assert set(pattern.facts) <= set(FACTS), pattern.id


@pytest.fixture(scope="module")
def trees() -> list[Trainer.Config]:
    """Runs of a generator and of reasoners, as recipes describe them."""
    return [get_recipe(name) for name in ("moving_shapes", "falling_objects", "videophy2_nano_tiny")]


def test_every_setting_that_is_named_exists_and_takes_the_value(trees: list[Trainer.Config]) -> None:
    for pattern in patterns().values():
        for sentence in pattern.remedies:
            kind = next((task for start, task in KINDS.items() if sentence.startswith(start)), None)
            for operation, path in OPERATION.findall(sentence):
                name = path.partition("=")[0]
                meant = [tree for tree in trees if kind in (None, tree.job.task) and Run(to_dict(tree)).has(name)]
                assert meant, (pattern.id, name)
                if operation == "set":
                    problems: list[Problem] = []
                    apply_overrides(copy.deepcopy(meant[0]), parse_overrides([path], problems), problems, [])
                    assert not problems, (pattern.id, path, problems)


def test_every_command_that_is_named_exists() -> None:
    for pattern in patterns().values():
        for sentence in [pattern.means, *pattern.remedies]:
            for name in re.findall(r"`worldsmith (?:--\w+ \w+ )?(\w+)", sentence):
                assert name in COMMANDS, (pattern.id, name)
            for kind in re.findall(r"`worldsmith dataset ([\w-]+)", sentence):
                assert kind in command_classes("dataset"), (pattern.id, kind)


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        (r"CUDA out of memory(?:.*?asked)?", "CUDA out of memory"),
        (r"\boom[-_]kill", "kill"),
        (r"errors? for \d+ of [abc]{2}\.pt", "error"),
        (r"a\.b\(c\)", "a.b(c)"),
        (r"one|two", ""),
        (r"(?i)killed", ""),
    ],
)
def test_the_fixed_part_of_an_expression_is_in_all_that_it_matches(expression: str, part: str) -> None:
    assert fixed_part(expression) == part
