"""A recipe TOML to begin with: every key that has an effect on a recipe, with its value there, as a comment."""

from __future__ import annotations

import textwrap
from typing import Any

from worldsmith.config.declare.configurable import OPAQUE, Config, find
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.value_types import describe
from worldsmith.config.recipes.registry import find_recipe, get_recipe, recipe_task
from worldsmith.config.toml.schema import TASKS, TomlField
from worldsmith.config.tree.plain import MISSING
from worldsmith.config.write.json_schema_toml import hint_at, keys_of
from worldsmith.config.write.values import TOML, toml_pair, write

WIDTH = 118
JOB = "job"


def new_recipe_toml(name: str) -> str:
    """The text of a recipe TOML whose tree is that of the recipe, also with every key uncommented.

    Raises ConfigError for an unknown recipe.
    """
    tree, doc = get_recipe(name), find_recipe(name).doc
    task = recipe_task(tree) or TASKS[0]
    lines = [
        *_prose(f"A run of the recipe {name}: {doc}" if doc else f"A run of the recipe {name}."),
        "#",
        "# As it stands, this file is the recipe. To change a value, remove the # in front of its key. A key that is",
        '# left out, or is "???", keeps the value of the recipe. Text may refer to another value, ${trainer.max_iter},',
        "# or to the environment, ${oc.env:NAME} or ${oc.env:NAME,default}.",
        "#",
        "#   worldsmith config check FILE     worldsmith config show --changed FILE     worldsmith train FILE --dryrun",
        "",
        f"[{JOB}]",
        toml_pair("task", task),
        toml_pair("experiment", name),
    ]
    section: tuple[str, ...] = (JOB,)
    for entry, target in keys_of(tree):
        if entry.path[:-1] != section:
            section = entry.path[:-1]
            lines += ["", f"[{'.'.join(section)}]"]
        lines += ["", *_prose(_about(entry, tree, target)), f"#{entry.path[-1]} = {_shown(tree, target)}"]
    lines += [
        "",
        "# [custom] holds the project's own data. It is kept with the run and read by nothing here.",
        f"#[{OPAQUE}]",
        *(f"#{toml_pair(key, value)}" for key, value in getattr(tree, OPAQUE, {}).items()),
    ]
    return "\n".join(lines) + "\n"


def _about(entry: TomlField, tree: Config, target: tuple[Any, ...]) -> str:
    """What a key is: in the words of the field that it sets, else in those of the recipe TOML."""
    hint = hint_at(tree, target)
    doc = " ".join(field_docs(type(find(tree, target[:-1]))).get(str(target[-1]), entry.doc).split())
    default = "" if entry.default in (None, MISSING, "") else f" Default: {write(entry.default, TOML)}."
    return f"{doc} ({describe(hint, null=False)}){default}"


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _shown(tree: Config, path: tuple[Any, ...]) -> str:
    value = find(tree, path)
    try:
        return write(value, TOML)
    except ValueError:  # null: TOML has no form for it, and a key that is left out keeps it
        return f'"{MISSING}"'
