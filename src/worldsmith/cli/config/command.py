"""`worldsmith config`: look at the run that a file or recipe describes, compare, convert and begin such files."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worldsmith.cli import run_source
from worldsmith.monitor.terminal_text import print_text, print_warning

if TYPE_CHECKING:
    from worldsmith.config.tree.draft import Loaded

HELP = "Show, check, compare, convert or begin a run description, without starting the run."

OWN = {
    "show": "print the resolved tree as YAML, with the origin of every value",
    "check": "print OK, or every mistake",
    "diff": "print what differs between two runs; exit code 1 if anything does",
}
ELSEWHERE = {
    "convert": ("worldsmith.cli.config.convert", "write the tree as TOML, YAML, JSON or Python"),
    "new": ("worldsmith.cli.config.new", "begin a commented file with every knob"),
}
"""Actions that live in modules of their own, with `add_arguments(parser)` and `run(args)`."""

SOURCE = "recipe TOML, YAML tree, run folder, or a recipe's name"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in {**OWN, **{name: text for name, (_, text) in ELSEWHERE.items()}}.items():
        description = f"{text[0].upper()}{text[1:]}."
        command = commands.add_parser(name, help=text, description=description, allow_abbrev=False)
        if name in ("show", "check"):
            run_source.add_arguments(command)
        if name == "diff":
            command.add_argument("old", metavar="A", help=SOURCE)
            command.add_argument("new", metavar="B", help=SOURCE)
        if name == "check":
            command.add_argument("--files", action="store_true", help="look for what the run reads and writes, too")
        if name == "show":
            command.add_argument("--changed", action="store_true", help="print only what differs from the recipe")
            command.add_argument("--plain", action="store_true", help="leave out the origins")
        if name in ("show", "diff"):
            command.add_argument("--custom", action="store_true", help="include the [custom] data")


def read_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Reads the words before ``--``. An action that has a module of its own imports it only now."""
    actions = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    name = words[0] if words else ""
    if name in ELSEWHERE:
        importlib.import_module(ELSEWHERE[name][0]).add_arguments(actions.choices[name])
    if name not in ("show", "check"):
        return parser.parse_args(words)
    args = run_source.read_words(actions.choices[name], words[1:])
    args.action = name
    return args


def run(args: argparse.Namespace) -> int:
    """One action. Raises ConfigError with every mistake."""
    if args.action in ELSEWHERE:
        return int(importlib.import_module(ELSEWHERE[args.action][0]).run(args))
    return {"show": show, "check": check, "diff": diff}[args.action](args)


def show(args: argparse.Namespace) -> int:
    """Prints the tree as YAML; the origins are comments."""
    from worldsmith.config.write.annotate import show_tree

    loaded = _load(args)
    print(show_tree(loaded, custom=args.custom, origins=not args.plain, changed=args.changed), end="")
    return 0


def check(args: argparse.Namespace) -> int:
    """Prints OK; whatever is wrong is raised, with `--files` also of weights, VAE, tokenizer, data and run folder."""
    from worldsmith.cli.parent_words import leave_parent_out
    from worldsmith.config.errors import ConfigError, locate
    from worldsmith.training.file_checks import check_files

    for note in leave_parent_out(args):
        print_warning(note)
    try:
        loaded = _load(args)
    except ConfigError as error:
        if not args.files or error.rest is None:
            raise
        missing = check_files(error.rest, mistakes=error.problems)
        raise ConfigError([*error.problems, *locate(missing, error.places)]) from None
    if args.files and (missing := check_files(loaded.tree, variables=loaded.variables)):
        raise ConfigError(locate(missing, loaded.places))
    print_text(f"OK: {loaded.source}")
    return 0


def diff(args: argparse.Namespace) -> int:
    """Prints one line per difference. Variables that are not set are compared as they are written."""
    from worldsmith.config.load import load
    from worldsmith.config.tree.access import ABSENT
    from worldsmith.config.tree.difference import differences
    from worldsmith.config.tree.paths import format_path
    from worldsmith.config.write.values import SHOWN, write

    old, new = (load(source, keep_unset=True) for source in (args.old, args.new))
    found = differences(old.tree, new.tree, custom=args.custom)
    for change in found:
        sides = ("(only in the second)", "(only in the first)")
        old_text, new_text = (
            side if value is ABSENT else write(value, SHOWN) for value, side in zip((change.old, change.new), sides)
        )
        print_text(f"{format_path(change.path)}: {old_text} -> {new_text}")
    return 1 if found else 0


def _load(args: argparse.Namespace) -> Loaded:
    loaded, _ = run_source.load_run(args)
    for warning in loaded.warnings:
        print_warning(warning)
    return loaded
