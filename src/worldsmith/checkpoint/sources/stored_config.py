"""Configs that are stored with weights, and what to do if this version cannot read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.plain import TAG


def with_classes_of(stored: Any, present: Any) -> Any:
    """Returns the plain data of the config `stored`, with class tags (`type`) copied from the config `present`.

    A tag is copied if `stored` has no tag at this path. It is also copied if the tag there has the same class name, so
    that a class that was moved to another module is found.

    Args:
        stored: Plain data in which tags are missing, as in a base checkpoint, or are those of an earlier version.
        present: Plain data of a config of the same structure, with all tags.
    """
    if not isinstance(stored, dict) or not isinstance(present, dict):
        return stored
    merged = {name: with_classes_of(value, present.get(name)) for name, value in stored.items()}
    tag = present.get(TAG)
    if tag is not None and str(stored.get(TAG, tag)).rpartition(".")[2] == tag.rpartition(".")[2]:
        merged[TAG] = tag
    return merged


@contextmanager
def explain_config_errors(file: Path) -> Iterator[None]:
    """Context manager around the reading of a config in `file`: converts a ConfigError to a UserError with a fix."""
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
