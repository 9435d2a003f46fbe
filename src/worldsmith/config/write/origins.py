"""Who wrote each value of a loaded tree, as plain data that lies beside a run's config."""

from __future__ import annotations

from typing import Any

from worldsmith.config.tree.draft import Loaded
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.write.annotate import comment, leaves


def describe_origins(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """For each value of `config.yaml`: its `origin`, whether it is `changed` from the recipe, and what it `was` there.

    Without a recipe it is compared with the defaults of the classes, and what it was is not said.
    """
    before = {} if loaded.base is None else dict(leaves(to_dict(loaded.base)))
    found: dict[str, dict[str, Any]] = {}
    for path, value in leaves(to_dict(loaded.tree)):
        about = found[format_path(path)] = {"origin": comment(loaded, path, value)}
        if path in loaded.changed:
            about["changed"] = True
            if path in before:
                about["was"] = before[path]
    return found
