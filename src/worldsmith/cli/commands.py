"""The subcommands of `worldsmith`: their names, their modules, and the parsing of their arguments."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from worldsmith.actions.registry import commands

ORDER = (
    *("recipes", "dataset", "check", "config", "schema", "plan", "encode", "train", "launch"),
    *("watch", "report", "export", "generate", "evaluate", "infer"),
)
"""Commands in the order of a typical workflow; all others follow in alphabetical order."""
COMMANDS = {
    **dict.fromkeys(ORDER, ""),
    **{name: command.help for name, command in commands().items()},
    "config": "show or check the run config of a file or recipe",
    "recipes": "list the recipes, or show one and its changes",
    "schema": "print the JSON Schema of recipe files",
    "train": "fine-tune a model from a recipe file or a recipe's name",
    "launch": "start train, encode, generate or evaluate in several processes, on one or more machines",
}
"""Command -> help text. Actions are run by `cli.action_command`. The others are modules of this package with `HELP`,
`add_arguments(parser)` and `run(args) -> int`; actions about a run are `RunCommand` objects with the same members.

Commands with typed flags also have `read_words(parser, words) -> Namespace`, for the arguments before ``--``. `launch`
parses its own options, because another command follows them.
"""


def read_command(name: str, words: list[str]) -> tuple[Any, argparse.Namespace]:
    """Finds a command and parses its arguments.

    Args:
        name: Name of the command.
        words: Arguments after the name; those after ``--`` are appended to `overrides`.

    Returns:
        Module or object of the command, whose `run(args)` runs it, and the parsed arguments.

    Raises:
        SystemExit: For invalid arguments, with code 2, and after ``--help``.
    """
    head, tail = split_tail(words)
    module = find_command(name)
    parser = CommandParser(prog=f"worldsmith {name}", description=module.HELP, allow_abbrev=False)
    module.add_arguments(parser)
    read_words = getattr(module, "read_words", lambda parser, words: parser.parse_args(words))
    args = read_words(parser, head)
    if tail:
        if not isinstance(getattr(args, "overrides", None), list):
            parser.error(f"worldsmith {name} accepts no overrides after --")
        args.overrides = [*args.overrides, *tail]
    return module, args


def find_command(name: str) -> Any:
    """Returns the module or object that implements a command, with `HELP`, `add_arguments(parser)` and `run(args)`."""
    if name in commands():
        from worldsmith.cli.run_command import RunCommand

        return RunCommand(name)
    return importlib.import_module(f"worldsmith.cli.{name}")


def split_tail(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits arguments at the first ``--``; returns those before it, and those after it (the overrides)."""
    if "--" not in words:
        return words, []
    index = words.index("--")
    return words[:index], words[index + 1 :]


class CommandParser(argparse.ArgumentParser):
    """Argument parser that escapes control characters in its messages."""

    def _print_message(self, message: str, file: Any = None) -> None:
        from worldsmith.config.write.values import escape_controls

        super()._print_message(escape_controls(message), file)
