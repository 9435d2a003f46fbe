"""`worldsmith schema`: what recipe files may say, for editors, for other programs and for readers."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from worldsmith.config.errors import UserError

HELP = "Print the JSON Schema of the recipe TOML or of the run tree, or the reference page."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("toml", "tree", "reference"), help="what to describe")
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="tree: with the values of this recipe as defaults")
    parser.add_argument("-o", "--output", metavar="FILE", help="write FILE instead of printing")


def run(args: argparse.Namespace) -> int:
    """Prints or writes the text. Raises UserError or ConfigError."""
    if args.recipe and args.what != "tree":
        raise UserError(f"a recipe goes with `worldsmith schema tree`, not with `{args.what}`")
    text = render(args.what, args.recipe)
    if args.output:
        Path(args.output).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def render(what: str, recipe: str | None = None) -> str:
    """The text that the command prints."""
    from worldsmith.config.recipes.registry import get_recipe, recipe_names

    trees = {name: get_recipe(name) for name in ([recipe] if recipe else recipe_names())}
    if what == "reference":
        from worldsmith.config.write.reference_page import reference_page

        return reference_page(trees)
    if what == "toml":
        from worldsmith.config.write.json_schema_toml import toml_schema

        return _json(toml_schema(trees))
    from worldsmith.config.write.json_schema import tree_schema

    return _json(tree_schema(trees))


def _json(schema: object) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
