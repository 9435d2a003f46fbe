"""Configs that are kept with weights, and what can still be done with one that this version does not understand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.plain import TAG


def with_classes_of(stored: Any, present: Any) -> Any:
    """Adds the class tags of another config to the plain data of a config that lacks them."""
    if not isinstance(stored, dict) or not isinstance(present, dict):
        return stored
    merged = {name: with_classes_of(value, present.get(name)) for name, value in stored.items()}
    tag = present.get(TAG)
    if tag is not None and str(stored.get(TAG, tag)).rpartition(".")[2] == tag.rpartition(".")[2]:
        merged[TAG] = tag
    return merged


@contextmanager
def written_here(file: Path) -> Iterator[None]:
    """Turns mistakes in a config that a run or an export has kept into a UserError that says what can be done."""
    try:
        yield
    except ConfigError as error:
        first, count = replace(error.problems[0], place=None, hint=None), len(error.problems)
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise UserError(
            f"{file} was written by another version of Worldsmith, or edited by hand, and cannot be read: "
            f"{first.render()}{more}. Resume or export with the version that wrote it; a new run can start from its "
            "weights, with the folder as checkpoint.load_path"
        ) from error
