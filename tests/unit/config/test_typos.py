"""Slips of the finger in the shipped recipe files: the report's first suggestion is the key that was meant."""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from worldsmith.config import ConfigError
from worldsmith.config.errors import Problem
from worldsmith.config.load import load
from worldsmith.config.toml.toml_schema import toml_fields
from worldsmith.config.tree.paths import flatten, format_path

FILES = sorted((Path(__file__).parents[3] / "examples/toml/sft_config").glob("*.toml"))
KINDS = ("drop", "swap", "double", "case", "section")
KEYS = {entry.path for entry in toml_fields()}
SECTIONS = {key[:length] for key in KEYS for length in range(1, len(key))}
COUNT = 300


@pytest.fixture
def only_these_recipes() -> None:
    """The shipped recipes are what these tests are about."""


def misspell(name: str, kind: str, rng: random.Random) -> str:
    at = rng.randrange(len(name) - 1) if len(name) > 1 else 0
    if kind == "drop":
        return name[:at] + name[at + 1 :]
    if kind == "swap":
        return name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :]
    if kind == "double":
        return name[: at + 1] + name[at:]
    return rng.choice([name.upper(), name.capitalize(), name.title(), "".join(w.title() for w in name.split("_"))])


def slip(lines: list[str], kind: str, rng: random.Random) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    """A file with one slip, the path that it now holds, and the path that was meant. None if nothing is wrong."""
    section: tuple[str, ...] = ()
    places: list[tuple[int, tuple[str, ...]]] = []
    for number, line in enumerate(lines):
        if match := re.fullmatch(r"\[(.+)\]", line):
            section = tuple(match[1].split("."))
            places.append((number, section))
        elif match := re.match(r"(\w+) = ", line):
            places.append((number, (*section, match[1])))
    places = [place for place in places if place[1][:2] != ("optimizer", "lr_multipliers")]  # any key is allowed
    number, path = rng.choice([place for place in places if kind != "section" or place[1] in KEYS])
    changed = list(lines)
    if kind == "section":
        others = [(n, p) for n, p in places if p in SECTIONS and p != path[:-1]]
        target, home = rng.choice(others)
        line = changed[number]
        changed.insert(target + 1, line)
        del changed[number + (number > target)]
        wrong = (*home, path[-1])
    else:
        wrong = (*path[:-1], misspell(path[-1], kind, rng))
        changed[number] = re.sub(rf"\b{path[-1]}(?=\]| = )", wrong[-1], lines[number], count=1)
    # What the slip hits on by chance, or what TOML itself refuses, is no unknown key.
    if wrong in KEYS | SECTIONS or wrong == path or not wrong[-1]:
        return None
    try:
        tomllib.loads("\n".join(changed))
    except tomllib.TOMLDecodeError:
        return None
    return "\n".join(changed) + "\n", wrong, path


def suggestion(problems: list[Problem], wrong: tuple[str, ...]) -> str | None:
    (problem,) = [problem for problem in problems if problem.path == format_path(wrong)]
    found = re.match(r"did you mean '(.+?)'\?", problem.hint or "")
    return found[1] if found else None


def test_the_right_key_is_the_first_suggestion_for_300_slips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATASET_PATH", "/data")
    rng = random.Random(2025)
    totals: Counter[str] = Counter()
    right: Counter[str] = Counter()
    missed: list[str] = []
    path = tmp_path / "slip.toml"
    while totals.total() < COUNT:
        kind = KINDS[totals.total() % len(KINDS)]
        made = slip(rng.choice(FILES).read_text().splitlines(), kind, rng)
        if made is None:
            continue
        text, wrong, meant = made
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load(str(path))
        totals[kind] += 1
        found = suggestion(caught.value.problems, wrong)
        if found == format_path(meant):
            right[kind] += 1
        else:
            missed.append(f"{format_path(wrong)}: meant {format_path(meant)}, suggested {found}")
    share = right.total() / totals.total()
    figures = ", ".join(f"{kind} {right[kind]}/{totals[kind]}" for kind in KINDS)
    with capsys.disabled():
        print(f"\nfirst suggestion right: {right.total()} of {totals.total()} = {share:.1%} ({figures})")
    assert share >= 0.95, "\n".join(missed)


def test_every_key_of_every_file_is_really_reached() -> None:
    """The files hold enough different keys for the figure to mean something."""
    keys = {path for file in FILES for path, _ in flatten(tomllib.loads(file.read_text()))}
    assert len(FILES) >= 2
    assert len(keys) >= 15
    own = {path for path in keys if path[0] != "custom"}
    assert all(path in KEYS or path[:-1] in KEYS for path in own)  # or a key of a table that is a value
