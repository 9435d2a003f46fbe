"""The `worldsmith` command: finds the subcommand, imports only that one, and turns users' mistakes into exit code 2."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from worldsmith import __version__

COMMANDS = {
    "config": "show or check the run that a file or recipe describes",
    "train": "fine-tune a model from a recipe file or a recipe's name",
    "dataset": "make a dataset",
    "generate": "make videos with a trained model",
    "export": "turn a checkpoint into a folder that other libraries load",
    "evaluate": "measure the quality of generated videos",
}
"""Each is a module of worldsmith.cli with `HELP`, `add_arguments(parser)` and `run(args) -> int`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code: 0 done, 2 a mistake of the user, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"worldsmith {__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        return fail(f"there is no command '{name}'{_advice(name)}; commands: {', '.join(COMMANDS)}")
    try:
        return run_command(name, words[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has gone: nothing is left to say, also not at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as stop:  # argparse: help is 0, a wrong flag is 2
        return stop.code if isinstance(stop.code, int) else 2


def run_command(name: str, words: list[str]) -> int:
    """Imports the command's module, reads its words and runs it."""
    from worldsmith.config.errors import ConfigError, UserError

    module = importlib.import_module(f"worldsmith.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"worldsmith {name}", description=module.HELP, allow_abbrev=False)
    module.add_arguments(parser)
    head, tail = split_tail(words)
    args = parser.parse_args(head)
    if tail:
        if not hasattr(args, "overrides"):
            parser.error(f"worldsmith {name} takes no overrides after --")
        args.overrides = [*args.overrides, *tail]
    try:
        return int(module.run(args))
    except ConfigError as error:
        return fail(str(error))
    except UserError as error:
        return fail(str(error))
    except FileNotFoundError as error:
        return fail(f"{error.strerror}: {error.filename}" if error.filename is not None else str(error))


def split_tail(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before and after the first ``--``: flags and names, and override words."""
    if "--" not in words:
        return words, []
    index = words.index("--")
    return words[:index], words[index + 1 :]


def overview() -> str:
    """The text of `worldsmith --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: worldsmith COMMAND …",
            "",
            "Fine-tuning for world models, from one typed run description.",
            "",
            "commands:",
            *lines,
            "",
            "worldsmith COMMAND --help   what a command takes",
            "worldsmith --version        the version",
        ]
    )


def fail(message: str) -> int:
    """Prints a mistake of the user; returns exit code 2."""
    print(f"worldsmith: error: {message}", file=sys.stderr)
    return 2


def _advice(name: str) -> str:
    from worldsmith.config.suggest import did_you_mean

    advice = did_you_mean(name, COMMANDS)
    return f"; {advice}" if advice else ""


if __name__ == "__main__":
    sys.exit(main())
