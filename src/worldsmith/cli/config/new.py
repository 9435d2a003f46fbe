"""`worldsmith config new`: begins a recipe TOML, or an action's spec, that shows every key."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from worldsmith.cli.config.action_forms import NAMES

    parser.add_argument("file", metavar="FILE", help="the file to write; a spec may be .toml, .yaml or .json")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--from", dest="recipe", metavar="RECIPE", help="a recipe TOML, and the recipe that it changes")
    kind.add_argument("--action", dest="spec_action", choices=NAMES, help="a spec of this action")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def run(args: argparse.Namespace) -> int:
    """Writes the file. Raises ConfigError for an unknown recipe, UserError if the file is there already."""
    from worldsmith.config.errors import UserError
    from worldsmith.config.write.convert import write_new
    from worldsmith.config.write.new_file import new_recipe_toml

    if args.spec_action:
        from worldsmith.cli.config.action_forms import find_form
        from worldsmith.dialects.cosmos_rl.write.spec_template import spec_template

        write_new(args.file, spec_template(find_form(args.spec_action), args.file), args.force)
        print(f"{args.file}: every key of the spec of {args.spec_action}, with its default or an example")
        return 0
    if not args.file.lower().endswith(".toml"):
        raise UserError(f"{args.file}: the name of a recipe TOML ends in .toml")
    write_new(args.file, new_recipe_toml(args.recipe), args.force)
    print(f"{args.file}: every key of the recipe {args.recipe}; check it with `worldsmith config check {args.file}`")
    return 0
