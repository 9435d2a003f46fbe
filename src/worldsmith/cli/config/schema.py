"""`worldsmith schema`: what files may say, for editors, for other programs and for readers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from worldsmith.config.errors import UserError

HELP = "Print a JSON Schema (recipe TOML, run tree, spec of an action), the reference page or the table of metrics."
DESCRIBED = ("toml", "tree", "reference", "metrics")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from worldsmith.cli.config.action_forms import NAMES

    parser.add_argument("what", nargs="?", choices=(*DESCRIBED, *NAMES), help="what to describe")
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="tree: with the values of this recipe as defaults")
    parser.add_argument("-o", "--output", metavar="FILE", help="write FILE instead of printing; with --all a folder")
    parser.add_argument("--all", action="store_true", help="write schema and template of every action, and a manifest")
    parser.add_argument(
        "--style",
        choices=("json-schema", "tao"),
        default="json-schema",
        help="spec of an action: JSON Schema, or the key names of NVIDIA TAO",
    )


def run(args: argparse.Namespace) -> int:
    """Prints or writes the text. Raises UserError or ConfigError."""
    if args.recipe and args.what != "tree":
        raise UserError(f"a recipe goes with `worldsmith schema tree`, not with `{args.what or '--all'}`")
    if args.all != (args.what is None):
        raise UserError("say what to describe, or give --all and a folder: worldsmith schema --all -o DIR")
    if args.style != "json-schema" and args.what in DESCRIBED:
        raise UserError(f"--style goes with the spec of an action, not with `{args.what}`")
    if args.all:
        return write_all(args.output, args.style)
    text = render(args.what, args.recipe, style=args.style)
    if args.output:
        Path(args.output).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def write_all(folder: str | None, style: str) -> int:
    """Writes the files of all spec forms; 1 if some could not be made."""
    from worldsmith.cli.config.action_forms import all_forms
    from worldsmith.dialects.cosmos_rl.write.spec_folder import spec_files
    from worldsmith.files.atomic import write_text

    if folder is None:
        raise UserError("--all writes several files: name a folder with -o DIR")
    forms = all_forms()
    files = spec_files(forms, style)
    for name, text in files.items():
        place = Path(folder) / name
        if text is None:
            place.unlink(missing_ok=True)
            print(f"{place} could not be made; the manifest says why", file=sys.stderr)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, text)
    written = sum(text is not None for text in files.values())
    print(f"{folder}: {written} files, of the actions {', '.join(forms)}")
    return int(None in files.values())


def render(what: str, recipe: str | None = None, *, style: str = "json-schema") -> str:
    """The text that the command prints."""
    from worldsmith.dialects.cosmos_rl.write.spec_folder import STYLES, as_text

    if what not in DESCRIBED:
        from worldsmith.cli.config.action_forms import find_form

        return as_text(STYLES[style](find_form(what)))
    if what == "metrics":
        from worldsmith.evaluation.metrics.registry import metrics_table

        return "".join(f"{row}\n" for row in metrics_table())
    from worldsmith.config.recipes.registry import get_recipe, recipe_names

    trees = {name: get_recipe(name) for name in ([recipe] if recipe else recipe_names())}
    if what == "reference":
        from worldsmith.config.write.reference_page import reference_page

        return reference_page(trees)
    if what == "toml":
        from worldsmith.config.write.json_schema_toml import toml_schema

        return as_text(toml_schema(trees))
    from worldsmith.config.write.json_schema import tree_schema

    return as_text(tree_schema(trees))
