"""`worldsmith recipes`: lists the recipes, or shows one recipe with its changes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from worldsmith.config.declare.class_tags import tag_of
from worldsmith.config.declare.configurable import ABSENT, Config, find, owner_of, walk
from worldsmith.config.errors import ConfigError
from worldsmith.config.recipes.packages import load_installed
from worldsmith.config.recipes.registry import find_recipe, get_recipe, recipe_names
from worldsmith.config.tree.difference import find_differences
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.plain import TAG, to_yaml
from worldsmith.config.write.values import LAUNCH_WORD, write
from worldsmith.models.model import Model
from worldsmith.monitor.short_text import short_number
from worldsmith.monitor.terminal_text import print_text, print_warning, text_width, wrap_words

HELP = "List the recipes with model, task, size and initial weights; or show one with its data and changes."
NEXT = """next:
  start with, on a CPU     vision_sft_tiny (videos)
                           videophy2_nano_tiny (answers)
  its settings             worldsmith recipes RECIPE
  its memory on a GPU      worldsmith plan RECIPE
  a check before training  worldsmith train RECIPE --dryrun"""
UNBROKEN = "\N{NO-BREAK SPACE}"
DETAILS = " " * 6
"""Indentation of the description of a recipe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `worldsmith recipes` to a parser."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this recipe and its changes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a list")


def run(args: argparse.Namespace) -> int:
    """Prints the list of recipes, or one recipe; returns 0. Raises ConfigError for an unknown name."""
    found, broken = [], []
    for name in [args.name] if args.name else recipe_names():
        try:
            found.append(describe_recipe(name))
        except ConfigError as error:
            if args.name:
                raise
            broken += error.problems
    for problem in [*load_installed(), *broken]:
        print_warning(problem.render())
    if args.name:
        print_recipe(found[0], args.json)
    elif args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print_list(found)
    return 0


def describe_recipe(name: str) -> dict[str, Any]:
    """Returns the facts about a recipe that ``worldsmith recipes --json`` prints.

    Returns:
        `name`; `task` ("vfm" or "vlm"); `model` (name); `parameters` (number; None if it is not known without building
        the model); `data` (class and path of the dataset, or None); `starts_from` (parent recipe, or None); `doc`
        (first line of the docstring); `module`.
    """
    entry, tree = find_recipe(name), get_recipe(name)
    model = find(tree, ("model", "config"))
    return {
        "name": name,
        "task": find(tree, ("job", "task")),
        "model": find(tree, ("model", "name")),
        "parameters": model.count_parameters() if isinstance(model, Model.Config) else None,
        "data": describe_data(find(tree, ("dataloader_train",))),
        "starts_from": entry.starts_from,
        "doc": entry.doc,
        "module": entry.module,
    }


def describe_data(loader: Any) -> str | None:
    """Returns class name and path of the first section with a path in the config `loader`, as "VideoDataset data/x"."""
    for _, node in walk(loader):
        path = getattr(node, "path", None)
        if isinstance(node, Config) and isinstance(path, str):
            named = owner_of(type(node)) or type(node)
            return f"{named.__name__} {path}".rstrip()
    return None


def print_recipe(entry: dict[str, Any], as_json: bool) -> None:
    """Prints one recipe: its facts, and its changes to its parent recipe or, without a parent, its complete config.

    Args:
        entry: Result of `describe_recipe`.
        as_json: Whether to print the facts and the changes as JSON.
    """
    tree, parent = get_recipe(entry["name"]), entry["starts_from"]
    changes = recipe_changes(get_recipe(parent), tree) if parent else []
    if as_json:
        named = [{"path": path, "before": before, "after": after} for path, before, after in changes]
        print(json.dumps({**entry, "changes": named}, indent=2, ensure_ascii=False))
        return
    size = f", {short_number(entry['parameters'])} parameters" if entry["parameters"] is not None else ""
    print_text(f"{entry['name']}: {entry['doc']}".rstrip(": "))
    print_text(f"  task    {entry['task']}\n  model   {entry['model']}{size}\n  data    {entry['data']}")
    print_text(f"  module  {entry['module']}\n  from    {parent or 'no other recipe: it sets the complete config'}")
    if not parent:
        print(f"\n{to_yaml(tree)}", end="")
        return
    print_text(f"\nchanges from {parent}:")
    for path, before, after in changes:
        print_text(f"  {path} = {after}  (was {before})")


def recipe_changes(old: Config, new: Config) -> list[tuple[str, str, str]]:
    """Returns (path, old value, new value), as text, for every value that differs between two configs."""
    # A section whose class changes is listed at the path of the section, not of its `type`.
    paths = [c.path[:-1] if c.path[-1] == TAG else c.path for c in find_differences(old, new)]
    return [(format_path(path), _shown(old, path), _shown(new, path)) for path in dict.fromkeys(paths)]


def _shown(tree: Config, path: Path) -> str:
    value = find(tree, path, ABSENT)
    if value is ABSENT:
        return "absent"
    if isinstance(value, Config):
        return tag_of(type(value))
    return write(value, LAUNCH_WORD) or "''"


def print_list(recipes: list[dict[str, Any]]) -> None:
    """Prints the recipes by model: a line with name, size and parent recipe, and the description below it.

    Lines break between words, and never between `from` and the name of the parent recipe.

    Args:
        recipes: Results of `describe_recipe`.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in recipes:
        groups.setdefault((entry["model"], entry["task"]), []).append(entry)
    for number, ((model, task), entries) in enumerate(groups.items()):
        print(*[""] * (number > 0), f"{model}, task {task}:", sep="\n")
        names, counts = [entry["name"] for entry in entries], [entry["parameters"] for entry in entries]
        sizes = ["" if count is None else short_number(count) for count in counts]
        for entry, name, size in zip(entries, names, sizes):
            row = f"{name:<{max(map(len, names))}}  {size:>{max(map(len, sizes))}}"
            parent = f"  from{UNBROKEN}{entry['starts_from']}" if entry["starts_from"] else ""
            print(*wrap(row + parent, "  "), *wrap(entry["doc"], DETAILS), sep="\n")
    print(f"\n{NEXT}")


def wrap(text: str, indent: str) -> list[str]:
    """Wraps text to the width of the terminal without breaking words.

    Args:
        text: Text to wrap.
        indent: Indentation of the first line; the others have that of a description.

    Returns:
        The lines.
    """
    return [line.replace(UNBROKEN, " ") for line in wrap_words(text.rstrip(), text_width(), indent, DETAILS)]
