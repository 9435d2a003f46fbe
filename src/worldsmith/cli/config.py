"""`worldsmith config`: shows, checks, compares, converts and creates config files."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from worldsmith.cli import run_source
from worldsmith.config.command_line.overrides import parse_overrides
from worldsmith.config.declare.configurable import ABSENT
from worldsmith.config.errors import ConfigError, Problem, UserError, locate
from worldsmith.config.load import load, read_draft
from worldsmith.config.tree.config_draft import Loaded, finish
from worldsmith.config.tree.difference import find_differences
from worldsmith.config.tree.paths import format_path
from worldsmith.config.write.values import SHOWN, write
from worldsmith.monitor.terminal_text import print_message, print_text, print_warning

HELP = "Show, check, compare, convert or create a run config, without starting the run."

ACTIONS = {
    "show": "print the resolved config as YAML, with the source of every value",
    "check": "print OK, or all mistakes",
    "diff": "print the differences between two runs; exit code 1 if there are any",
    "convert": "write the config as TOML, YAML, JSON or Python",
    "new": "create a commented file with every setting",
}

SOURCE = "recipe TOML, YAML config, run folder, or a recipe's name"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions of `worldsmith config` and their arguments to a parser, except those that `read_words` adds."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in ACTIONS.items():
        description = f"{text[0].upper()}{text[1:]}."
        command = commands.add_parser(name, help=text, description=description, allow_abbrev=False)
        if name in ("show", "check"):
            run_source.add_source_arguments(command)
        if name == "diff":
            command.add_argument("old", metavar="A", help=SOURCE)
            command.add_argument("new", metavar="B", help=SOURCE)
        if name == "check":
            command.add_argument(
                "--files", action="store_true", help="also check the files and folders that the run reads and writes"
            )
        if name == "show":
            command.add_argument("--changed", action="store_true", help="print only the differences from the recipe")
            command.add_argument("--plain", action="store_true", help="omit the sources of values")
        if name in ("show", "diff"):
            command.add_argument("--custom", action="store_true", help="include the [custom] data")


def read_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of `worldsmith config` before ``--``.

    Args:
        parser: Parser of the command; the arguments of `convert` and `new` are added only if the action is used.
        words: Arguments before ``--``.

    Returns:
        The parsed arguments; `action` is the name of the action.
    """
    actions = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    name = words[0] if words else ""
    if name in ("convert", "new"):
        (add_convert_arguments if name == "convert" else add_new_arguments)(actions.choices[name])
    if name not in ("show", "check"):
        return parser.parse_args(words)
    args = run_source.read_words(actions.choices[name], words[1:])
    args.action = name
    return args


def run(args: argparse.Namespace) -> int:
    """Runs the selected action of `worldsmith config`, such as `show`, and returns its exit code.

    Raises ConfigError with all mistakes of a config, and UserError for invalid arguments.
    """
    return {"show": show, "check": check, "diff": diff, "convert": convert_config, "new": new}[args.action](args)


def show(args: argparse.Namespace) -> int:
    """Prints the config as YAML, with the origins of the values as comments; returns 0."""
    from worldsmith.config.write.annotate import show_tree

    loaded = _load(args)
    print(show_tree(loaded, custom=args.custom, origins=not args.plain, changed=args.changed), end="")
    return 0


def check(args: argparse.Namespace) -> int:
    """Prints OK and returns 0, or raises ConfigError with all mistakes in the config.

    With `--files` it also checks the files and folders that the run reads and writes.
    """
    from worldsmith.cli.spec_and_parent import leave_parent_out
    from worldsmith.training.preflight import check_files

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
    """Prints one line per difference between two configs; returns 1 if they differ, else 0.

    References to unset environment variables are compared as text.
    """
    old, new = (load(source, keep_unset=True) for source in (args.old, args.new))
    found = find_differences(old.tree, new.tree, custom=args.custom)
    for change in found:
        sides = ("(only in the second)", "(only in the first)")
        old_text, new_text = (
            side if value is ABSENT else write(value, SHOWN) for value, side in zip((change.old, change.new), sides)
        )
        print_text(f"{format_path(change.path)}: {old_text} -> {new_text}")
    return 1 if found else 0


def convert_config(args: argparse.Namespace) -> int:
    """Prints or writes a run config in another format; returns 0.

    Raises UserError if the format cannot express the complete config.
    """
    from worldsmith.config.write.convert_config import convert, write_new
    from worldsmith.dialects.sat.recognize import is_change, is_sat_stack

    for option, needed in (("name", "python"), ("overrides", "toml"), ("print_overrides", "toml")):
        if getattr(args, option) and args.to != needed:
            raise UserError(f"--{option.replace('_', '-')} requires --to {needed}")
    if args.print_overrides and not args.output:
        raise UserError("--print-overrides prints the overrides instead of the TOML; name the TOML file with -o FILE")
    given = [args.source, *args.words]
    files, changes = [w for w in given if not is_change(w)], [w for w in given if is_change(w)]
    if is_sat_stack(files):
        draft, overrides = read_draft(files, (), changes)
    elif len(files) > 1:
        problems: list[Problem] = []
        draft, overrides = read_draft(files, parse_overrides(changes, problems))
        draft.problems += problems
    else:
        draft, overrides = read_draft(args.source, (), args.words or None)
    print_message(draft.report.rstrip("\n")) if draft.report else None
    loaded = finish(draft, overrides, keep_unset=True)
    for warning in () if loaded.report else loaded.warnings:
        print_warning(warning)
    converted = convert(loaded, args.to, name=args.name)
    rest = "".join(f"{shlex.quote(word)}\n" for word in converted.words)
    if converted.rest and not (args.overrides or args.print_overrides):
        paths = "\n".join(f"  {format_path(change.path)}" for change in converted.rest)
        output = ["-o", str(Path(args.output).with_suffix(".yaml"))] if args.output else []
        command = shlex.join(["worldsmith", "config", "convert", *given, "--to", "yaml", *output])
        raise UserError(
            f"the recipe TOML has no key for\n{paths}\nYAML can express the complete config: {command}\nor write "
            "these as overrides next to the TOML, with --overrides FILE or --print-overrides"
        )
    if args.overrides:
        write_new(args.overrides, rest, args.force)
    if args.output:
        write_new(args.output, converted.text, args.force)
        print(rest if args.print_overrides else "", end="")
    else:
        print(converted.text, end="")
    return 0


def new(args: argparse.Namespace) -> int:
    """Writes a new config file of a recipe with a comment for each field; returns the exit code 0.

    Raises ConfigError for an unknown recipe, and UserError if the file exists.
    """
    from worldsmith.config.write.convert_config import write_new
    from worldsmith.config.write.describe_toml import new_recipe_toml

    if args.spec_action:
        from worldsmith.cli.schema import find_form
        from worldsmith.dialects.cosmos_rl.write.spec_template import spec_template

        write_new(args.file, spec_template(find_form(args.spec_action), args.file), args.force)
        print(f"{args.file}: wrote all keys of the spec of {args.spec_action}, with their defaults or examples")
        return 0
    if not args.file.lower().endswith(".toml"):
        raise UserError(f"{args.file}: the name of a recipe TOML must end in .toml")
    write_new(args.file, new_recipe_toml(args.recipe), args.force)
    print(f"{args.file}: wrote all keys of the recipe {args.recipe}; check: `worldsmith config check {args.file}`")
    return 0


def add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `config convert`."""
    from worldsmith.config.write.convert_config import FORMATS

    parser.add_argument(
        "source", metavar="SRC", help="recipe TOML, YAML or JSON config, nested spec, run folder, or a recipe's name"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FILE_OR_KEY=VALUE",
        help="more YAML files, merged in order, and overrides; for a nested spec, for example train.epoch=2",
    )
    parser.add_argument("--to", required=True, choices=FORMATS, help="output format")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of printing")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--name", help="python: name of the new recipe; default: the name of the source")
    parser.add_argument(
        "--overrides",
        metavar="FILE",
        help="toml: write the settings that a recipe TOML cannot express to FILE, as overrides to append after --",
    )
    parser.add_argument(
        "--print-overrides", action="store_true", help="toml: print these overrides, quoted for a shell; requires -o"
    )


def add_new_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `config new`."""
    from worldsmith.cli.schema import SPEC_ACTIONS

    parser.add_argument("file", metavar="FILE", help="the file to write; a spec may be .toml, .yaml or .json")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--from", dest="recipe", metavar="RECIPE", help="a recipe TOML, and the recipe that it changes")
    kind.add_argument("--action", dest="spec_action", choices=SPEC_ACTIONS, help="a spec of this action")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def _load(args: argparse.Namespace) -> Loaded:
    loaded, _ = run_source.load_run(args)
    for warning in loaded.warnings:
        print_warning(warning)
    return loaded
