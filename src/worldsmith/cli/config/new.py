"""`worldsmith config new`: begins a recipe TOML that shows every key."""

from __future__ import annotations

import argparse

from worldsmith.cli.config.convert import write_new


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the recipe TOML to write")
    parser.add_argument("--from", dest="recipe", required=True, metavar="RECIPE", help="the recipe that it changes")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def run(args: argparse.Namespace) -> int:
    """Writes the file. Raises ConfigError for an unknown recipe, UserError if the file is there already."""
    from worldsmith.config.errors import UserError
    from worldsmith.config.write.new_file import new_recipe_toml

    if not args.file.lower().endswith(".toml"):
        raise UserError(f"{args.file}: the name of a recipe TOML ends in .toml")
    write_new(args.file, new_recipe_toml(args.recipe), args.force)
    print(f"{args.file}: every key of the recipe {args.recipe}; check it with `worldsmith config check {args.file}`")
    return 0
