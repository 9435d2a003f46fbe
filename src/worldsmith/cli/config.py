"""`worldsmith config`: show or check the run that a file or recipe describes, without starting it."""

from __future__ import annotations

import argparse
import sys

from worldsmith.config.load import load
from worldsmith.config.tree import to_yaml

HELP = "Show or check the run that a file or recipe describes."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (("show", "print the resolved tree as YAML"), ("check", "print OK, or every mistake")):
        command = commands.add_parser(name, help=text, description=f"{text.capitalize()}.", allow_abbrev=False)
        command.add_argument("source", metavar="FILE_OR_RECIPE", help="recipe TOML, YAML tree, or a recipe's name")
        command.add_argument("overrides", nargs="*", metavar="-- a.b=v", help="changes of single values")
        if name == "show":
            command.add_argument("--custom", action="store_true", help="print the [custom] data too")


def run(args: argparse.Namespace) -> int:
    """Prints the tree or OK. Raises ConfigError with every mistake."""
    loaded = load(args.source, args.overrides)
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if args.action == "show":
        print(to_yaml(loaded.tree, custom=args.custom), end="")
    else:
        print(f"OK: {args.source}")
    return 0
