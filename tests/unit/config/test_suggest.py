"""Suggestions: the usual slips lead back to the key that was meant."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.config.toml.toml_schema import FIELDS
from worldsmith.config.tree.suggest import (
    did_you_mean,
    did_you_mean_folder,
    did_you_mean_path,
    distance,
    nearest,
    nearest_path,
)

PATHS = [entry.path for entry in FIELDS]


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [("abc", "abc", 0), ("abc", "acb", 1), ("abc", "abbc", 1), ("", "ab", 2), ("kitten", "sitting", 3)],
)
def test_distance_counts_edits_and_a_swap_is_one(a: str, b: str, edits: int) -> None:
    assert distance(a, b) == distance(b, a) == edits


def test_nothing_is_suggested_for_a_word_that_is_far_from_all() -> None:
    assert nearest("zzzz", ["alpha", "beta"]) == []


def test_the_hint_of_an_unknown_key_names_the_nearest_one() -> None:
    keys = [("optimizer", "lr"), ("trainer", "max_iter")]
    assert did_you_mean("lrr", ["lr", "betas"]) == "did you mean 'lr'?"
    assert did_you_mean("--dryrn", ["--dryrun"], shown="{}") == "did you mean --dryrun?"
    assert did_you_mean_path(("optimizer", "lrr"), keys) == "did you mean 'optimizer.lr'?"
    assert did_you_mean_path(("max_itr",), keys, shown="${{{}}}") == "did you mean ${trainer.max_iter}?"
    assert did_you_mean_path(("zzzz",), keys) is None


def slip(path: tuple[str, ...], kind: str, rng: random.Random) -> tuple[str, ...]:
    name = path[-1]
    at = rng.randrange(len(name) - 1)
    sections = sorted({p[:-1] for p in PATHS if p[:-1] != path[:-1] and len(p) > 1 and (*p[:-1], name) not in PATHS})
    return {
        "drop": (*path[:-1], name[:at] + name[at + 1 :]),
        "swap": (*path[:-1], name[:at] + name[at + 1] + name[at] + name[at + 2 :]),
        "double": (*path[:-1], name[: at + 1] + name[at:]),
        "case": (*path[:-1], name.upper()),
        "section": (*rng.choice(sections), name),
    }[kind]


def test_the_right_key_is_the_first_suggestion_for_nearly_all_slips() -> None:
    rng = random.Random(0)
    # A name that stands in several sections cannot be traced back from a wrong section.
    once = Counter(path[-1] for path in PATHS)
    right = total = 0
    for _ in range(400):
        path, kind = rng.choice(PATHS), rng.choice(["drop", "swap", "double", "case", "section"])
        wrong = slip(path, kind, rng)
        if len(path) < 2 or wrong in PATHS or (kind == "section" and once[path[-1]] > 1):
            continue
        total += 1
        right += nearest_path(wrong, PATHS) == path
    assert total > 250
    assert right / total >= 0.95, f"{right} of {total}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("outputs/demo/moving_shpes", "outputs/demo/moving_shapes"),
        ("outputs/dmeo/moving_shape", "outputs/demo/moving_shapes"),
        ("outputs/demo/moving_shapes/iter_00000003", "outputs/demo/moving_shapes/iter_000000003"),
        ("outputs/demo/quite_another_name", None),
        ("outputs/demo/moving_shapes", None),
        ("outputs/demo/notes.txt/x", None),
    ],
)
def test_a_mistyped_folder_is_suggested(
    name: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outputs/demo/moving_shapes/iter_000000003").mkdir(parents=True)
    (tmp_path / "outputs/demo/notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert did_you_mean_folder(name) == (f"; did you mean '{expected}'?" if expected else "")
    absolute = f"; did you mean '{tmp_path}/{expected}'?" if expected else ""
    assert did_you_mean_folder(tmp_path / name) == absolute


@pytest.mark.parametrize("command", ["generate --prompt x -o v", "export -o x", "report", "explain", "lineage"])
def test_a_mistyped_run_folder_is_an_error_with_the_nearest_one(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path("outputs/train/worldsmith/demo/moving_shapes")
    (tmp_path / run).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    name, *words = command.split()
    assert main([name, f"{run.parent}/moving_shpes", *words]) == 2
    assert f"did you mean '{run}'?" in capsys.readouterr().err
