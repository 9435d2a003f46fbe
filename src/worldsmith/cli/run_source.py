"""Source of a run config on the command line: a recipe, a file or a YAML stack, plus flags and overrides."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from worldsmith.config.command_line.overrides import Override, apply_overrides, parse_overrides
from worldsmith.config.command_line.typed_flags import read_flags, split_flags, take_recipe_flags, take_source
from worldsmith.config.errors import ConfigError, Problem, UserError
from worldsmith.config.load import is_spec, read_draft
from worldsmith.config.recipes.registry import is_recipe
from worldsmith.config.tree.config_draft import Draft, Loaded, finish
from worldsmith.config.tree.references import Kept
from worldsmith.dialects.cosmos_rl.policy import Policy, choose_policy, take_policy
from worldsmith.dialects.sat.recognize import split_arguments
from worldsmith.monitor.redaction import redact_arguments
from worldsmith.monitor.terminal_text import print_text

FILES = (".toml", ".yaml", ".yml")

COMMAND_VARIABLE = "WORLDSMITH_COMMAND"
"""Environment variable with the command that started a launcher, which it sets for its processes."""
MODULES = ("__main__.py", "main.py")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that select the source of a run config to a parser."""
    parser.add_argument(
        "source", nargs="?", metavar="FILE_OR_RECIPE", help="recipe TOML, YAML config, or recipe's name"
    )
    parser.add_argument("--sft-toml", metavar="FILE", help="recipe TOML (the same as giving it as FILE_OR_RECIPE)")
    parser.add_argument(
        "--base",
        nargs="+",
        metavar="FILE",
        help="YAML files, merged in order: later files override earlier ones; also those of CogVideoX's SAT",
    )
    parser.add_argument(
        "--spec",
        metavar="FILE",
        help="nested spec of Cosmos-RL or TAO; arguments such as train.epoch=2 after it override it",
    )
    parser.add_argument("--module", metavar="M", help="a Python module with recipes; requires --config")
    parser.add_argument("--config", metavar="NAME", help="a recipe of --module, or a function that returns a config")
    parser.set_defaults(overrides=[], flags=[], spec_words=None, policy=None)


def integer_from(minimum: int) -> Callable[[str], int]:
    """Returns an argparse type for integers that are at least `minimum`."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {minimum}, found '{text}'")
        return int(text)

    return read


def read_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of a command before ``--``.

    Flags of config fields, such as --optimizer.lr 1e-4, may stand between the other arguments.

    Args:
        parser: Parser with the arguments of the command, among them those of `add_source_arguments`.
        words: Arguments before ``--``.

    Returns:
        The parsed arguments. `flags` contains the flags of config fields, whose values are not yet parsed, and
        `spec_words` the overrides of a spec.

    Raises:
        SystemExit: For invalid arguments, and after help is printed on request.
    """
    own = {option for action in parser._actions for option in action.option_strings}
    words, topic = take_help(list(words), is_source_name)
    rest, flags = split_flags(words, own)
    args, extra = parser.parse_known_args(rest)
    if extra and args.source and not args.spec and is_spec(args.source):
        args.spec, args.source = args.source, None
    if args.spec:
        args.spec_words, args.policy = take_search_policy(
            args.spec, [word for word in (args.source, *extra) if word], getattr(args, "parent", None)
        )
        args.source = None
        extra = [word for word in args.spec_words if "=" not in word and not word.startswith("~")]
    if args.base:
        args.base, changes, flags = split_arguments(args.base, flags)
        args.spec_words = changes or None
    if extra:
        parser.error(
            f"unexpected argument '{extra[0]}'. Overrides of single values come last, after --: … -- {extra[0]}"
        )
    if not any(sources(args)):
        args.source = take_source(flags, is_source_name)
    args.flags, args.own_options = flags, sorted(own)
    if topic is not None:
        print_help(parser, args, topic or None)
        raise SystemExit(0)
    return args


def take_search_policy(spec: str, words: list[str], parent: str | None = None) -> tuple[list[str], Policy | None]:
    """Removes the search policy (``automl_policy=…``) from the arguments of a spec.

    Args:
        spec: Path of the spec, for the message.
        words: Overrides of the spec.
        parent: Value of ``--parent`` (an earlier run or export), for the message; None: no parent.

    Returns:
        The arguments without the policy, and the policy: "off", or None if the arguments contain no policy.

    Raises:
        UserError: For the policy "auto", which requests a search.
    """
    policy, rest = take_policy(words)
    if policy is None:
        return rest, None
    if choose_policy(policy) == "auto":
        raise UserError(
            "automl_policy=auto requests a search: expected `worldsmith tune`, found a command that trains once. "
            f"Run `{search_command(spec, rest, parent)}`, or write automl_policy=off"
        )
    return rest, "off"


def search_command(spec: str, words: Sequence[str], parent: str | None = None) -> str:
    """Returns the `worldsmith tune` command that searches settings for the training that a spec describes.

    Args:
        spec: Path of the spec.
        words: Overrides of the spec.
        parent: Value of ``--parent`` (an earlier run or export) for the command; None: no parent.
    """
    start = ["--parent", parent] if parent else []
    return f"worldsmith tune {shlex.join(['--spec', spec, *words, *start])} -o DIR"


def print_help(parser: argparse.ArgumentParser, args: argparse.Namespace, topic: str | None) -> None:
    """Prints the help of the command, or the help of all flags if a recipe or file is given.

    Args:
        parser: Parser of the command.
        args: Parsed arguments, which may name a recipe or file.
        topic: Section or word to which the help of the flags is limited; None: all flags.
    """
    if not any(sources(args)):
        parser.print_help()
        return
    from worldsmith.cli.flag_help import flag_help

    draft, _, overrides = draft_run(args)
    apply_overrides(draft.tree, overrides, draft.problems, draft.warnings, draft.task, places=draft.places)
    named = [action for action in parser._actions if action.dest not in ("help", "source")]
    options = {", ".join(action.option_strings): action.help or "" for action in named}
    print_text(flag_help(draft, topic, options).removesuffix("\n"))


def load_run(args: argparse.Namespace, *, keep_unset: Kept = False) -> tuple[Loaded, list[str]]:
    """Loads the config that the parsed arguments describe.

    Args:
        args: Result of `read_words`.
        keep_unset: Treatment of references to unset environment variables. False: errors; True: they stay references;
            "names": replaced by $NAME in string fields, errors elsewhere.

    Returns:
        The resolved config, and all flags and overrides of the command line as override arguments.

    Raises:
        ConfigError: With all mistakes in the config.
        UserError: If the arguments do not name exactly one source.
    """
    draft, words, overrides = draft_run(args)
    return finish(draft, overrides, keep_unset=keep_unset), words


def draft_run(args: argparse.Namespace) -> tuple[Draft, list[str], list[Override]]:
    """Reads the config that the parsed arguments describe, without applying its flags and overrides.

    Args:
        args: Result of `read_words`.

    Returns:
        The config before its flags and overrides are applied, all flags and overrides as arguments, and the overrides
        that remain to be applied.

    Raises:
        ConfigError: If the source cannot be read.
        UserError: If the arguments do not name exactly one source.
    """
    problems: list[Problem] = []
    tail = parse_overrides(args.overrides, problems)
    choosing, flags = take_recipe_flags(args.flags)
    source = source_name(args)
    draft, tail = read_draft(args.base or source, [*choosing, *tail], args.spec_words)
    draft.problems = [*problems, *draft.problems]
    typed = read_flags(draft.tree, flags, draft.problems, own=args.own_options)
    if draft.tree is None:
        raise ConfigError(draft.problems)
    words = [*(args.spec_words or ()), *(override.word for override in [*choosing, *typed]), *args.overrides]
    return draft, words, [*typed, *tail]


def sources(args: argparse.Namespace) -> list[Any]:
    """Returns the values of all arguments that can select the source of a run; unused ones are None."""
    return [args.source, args.sft_toml, args.base, args.spec, args.module]


def source_name(args: argparse.Namespace) -> str:
    """Returns the one file or recipe that the arguments name. Raises UserError if they name none or several."""
    if sum(value is not None for value in sources(args)) != 1:
        ways = "a recipe's name, `--sft-toml FILE`, `--base FILE …`, `--spec FILE` or `--module M --config NAME`"
        raise UserError(f"name one recipe or file: {ways}; `worldsmith recipes` lists the recipes")
    if (args.module is None) != (args.config is None):
        raise UserError("--module and --config must be used together, such as `--module my_recipes --config NAME`")
    if args.base:
        return ", ".join(args.base)
    if args.module:
        from worldsmith.config.recipes.packages import import_recipes
        from worldsmith.config.recipes.registry import adopt_function

        return adopt_function(import_recipes(args.module), args.config)
    return str(args.spec or args.sft_toml or args.source)


def take_help(words: list[str], is_not_topic: Callable[[str], bool]) -> tuple[list[str], str | None]:
    """Removes the request for help from a command's arguments.

    Args:
        words: Arguments before ``--``.
        is_not_topic: Returns whether the argument after ``--help`` is not a topic but, for example, a file.

    Returns:
        The arguments without the request, and the topic of the help: a section or word; empty: the complete help;
        None: no help is requested.
    """
    for index, word in enumerate(words):
        if word in ("-h", "--help"):
            topic = next(iter(words[index + 1 :]), "")
            topic = "" if topic.startswith("-") or is_not_topic(topic) else topic
            return words[:index] + words[index + 1 + bool(topic) :], topic
    return words, None


def is_source_name(word: str) -> bool:
    """Returns whether an argument is the path of a config file, a run folder or the name of a recipe."""
    try:
        return word.lower().endswith(FILES) or os.path.isfile(os.path.join(word, "config.yaml")) or is_recipe(word)
    except ConfigError:
        return False


def start_command() -> list[str]:
    """Returns the command and arguments with which this process was started; secrets in them are redacted."""
    program, *arguments = sys.argv
    if Path(program).name in MODULES:
        first = [sys.executable, "-m", "worldsmith"]
    else:
        first = [Path(program).name if shutil.which(Path(program).name) == program else program]
    return [*first, *redact_arguments(arguments)]
