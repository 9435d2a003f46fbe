"""Every recipe as flat text: a change of any default or value shows up in a review.

Refresh after a wanted change: WORLDSMITH_REFRESH_GOLDEN=1 pytest tests/unit/recipes/test_golden_texts.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worldsmith.config import get_recipe, recipe_names
from worldsmith.config.recipes.registry import find_recipe
from worldsmith.config.tree.paths import flatten, format_path
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.write.values import SHOWN, write

GOLDEN = Path(__file__).parents[2] / "golden"
REFRESH = "WORLDSMITH_REFRESH_GOLDEN"
COMMAND = f"{REFRESH}=1 pytest tests/unit/recipes/test_golden_texts.py"
SHIPPED = [name for name in recipe_names() if find_recipe(name).module.startswith("worldsmith.")]


def flat_text(name: str) -> str:
    """One ``path: value`` line per leaf. References stay, so that no line depends on the machine."""
    leaves = flatten(to_dict(get_recipe(name), custom=True))
    return "".join(f"{format_path(path)}: {write(value, SHOWN)}\n" for path, value in leaves)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_is_what_its_golden_text_says(name: str) -> None:
    file, text = GOLDEN / f"{name}.txt", flat_text(name)
    if os.environ.get(REFRESH):
        file.write_text(text, encoding="utf-8")
    assert file.is_file(), f"{name} has no golden text yet; write it with: {COMMAND}"
    assert text == file.read_text(encoding="utf-8"), f"{name} has changed; if that is wanted: {COMMAND}"


def test_every_golden_text_belongs_to_a_recipe() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(SHIPPED)


def test_golden_texts_name_no_folder_of_this_machine() -> None:
    for file in GOLDEN.glob("*.txt"):
        text = file.read_text(encoding="utf-8")
        assert str(Path.home()) not in text
        assert str(GOLDEN.parents[1]) not in text
        assert "${oc.env:" in text  # the data set, or what the weights are read from


def test_two_processes_dump_the_same_bytes() -> None:
    code = (
        "from worldsmith.config import get_recipe; from worldsmith.config.tree.plain import to_yaml; "
        f"print(*(to_yaml(get_recipe(name)) for name in {SHIPPED!r}))"
    )
    dumps = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert dumps[0] == dumps[1] != b""
