"""Command line of every action: the fields of its config are flags, parsed like the flags of a run."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from worldsmith.actions.action import Action, ColoredLine, Result, user_errors
from worldsmith.actions.pool_action import PoolAction
from worldsmith.actions.registry import command_class_for_model, command_class_for_word, command_classes, commands
from worldsmith.cli.run_source import take_help
from worldsmith.cli.spec_and_parent import (
    PARENT,
    PARENT_HELP,
    SPEC,
    SPEC_HELP,
    adopt_parent,
    read_spec_words,
    read_stack_words,
    reads_model,
    reads_specs,
)
from worldsmith.config.command_line.command_flags import Words, draft_settings, read_settings_file, sort_words
from worldsmith.config.command_line.overrides import apply_overrides
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.config_draft import Loaded, finish
from worldsmith.config.tree.read_config import unset_tree
from worldsmith.dialects.translation import SpecTranslation, format_report, name_classes
from worldsmith.distributed.world import world_size
from worldsmith.monitor.terminal_text import print_text, print_warning

PROCESSES = "processes"
"""Config field with the number of processes that an action starts, as `worldsmith launch` does."""
SETTINGS, DRYRUN, SHOW_TREE, JSON, HELP = "--settings", "--dryrun", "--show-tree", "--json", "--help"
OPTIONS = {
    f"{SETTINGS} FILE": "a TOML, YAML or JSON file with values of these flags; flags override the file",
    f"{SPEC} FILE": SPEC_HELP,
    f"{PARENT} NAME": PARENT_HELP,
    DRYRUN: "check everything that can be checked in advance, and print what would be done",
    SHOW_TREE: "with --dryrun: print every setting and its source, in the format of a settings file",
    JSON: "print the outcome as JSON",
    f"{HELP} [WORD]": "print this help, or only flags whose name or description contains the word",
}
Launch = Callable[[Sequence[str], Sequence[str]], int]
"""Function (launch arguments, arguments added for each process) -> exit code, which runs `worldsmith launch`."""
OWN = {option.partition(" ")[0]: option.startswith((SETTINGS, SPEC, PARENT)) for option in OPTIONS}


def run_action(name: str, head: list[str], tail: list[str], packages: Sequence[str] = (), *, start: Launch) -> int:
    """Runs the action that the arguments before and after ``--`` describe; returns its exit code.

    Args:
        name: Name of the command.
        head: Arguments before ``--``.
        tail: Overrides after ``--``.
        packages: ``--import`` and ``--trust`` arguments, passed to each process that the action starts.
        start: Starts several processes for an action that splits its work: gets the arguments of `worldsmith launch`
            and `packages`, and returns the exit code.

    Raises:
        ConfigError: For mistakes in the settings.
        UserError: For other mistakes that the user can fix.
        OSError: If a file cannot be read or written.
    """
    head, topic = take_help(head, os.path.exists)
    if commands()[name].by == "word" and (not head or head[0].startswith("-")):
        if topic is None:
            raise UserError(f"select one:\n{list_variants(name)}")
        print_text(list_variants(name))
        return 0
    with user_errors():
        prefix, kinds, words = choose_action(name, head)
        file = words.own.get(SETTINGS)
        if topic is not None:
            texts = [text for kind in kinds if (text := format_help(name, prefix, kind, words, file, topic))]
            if not texts:
                raise UserError(f"no flag has '{topic}' in its name or description")
            print_text("\n".join(texts).removesuffix("\n"))
            return 0
        if SHOW_TREE in words.own and DRYRUN not in words.own:
            raise UserError(f"{SHOW_TREE} requires {DRYRUN}")
        loaded = load_settings(prefix, kinds[0], words, tail)
        spec = words.spec if isinstance(words.spec, SpecTranslation) else None
        processes = processes_to_start(loaded, spec)
        if processes > 1 and DRYRUN not in words.own:
            words_of_launch = ["--nproc-per-node", str(processes), name, *head, *(["--", *tail] if tail else [])]
            return start(words_of_launch, packages)
        for warning in loaded.warnings if is_first() else ():
            print_warning(warning)
        action: Action = loaded.tree.build()
        if DRYRUN in words.own:
            first_lines = [format_report(spec)] if spec is not None else []
            first_lines += [f"starts   {processes} processes, which share the work"] if processes > 1 else []
            return show_plan(action, loaded, first_lines, with_tree=SHOW_TREE in words.own)
        result = action.run()
        return print_result(result, as_json=JSON in words.own) if is_first() else result.code


def check_action(name: str, head: list[str], tail: list[str]) -> None:
    """Checks the arguments of an action without running it: parses them and loads the settings as `run_action` does.

    Args:
        name: Name of the command.
        head: Arguments before ``--``.
        tail: Overrides after ``--``.

    Raises:
        ConfigError: For mistakes in the settings.
        UserError: For other mistakes that the user can fix.
    """
    with user_errors():
        prefix, kinds, words = choose_action(name, head)
        load_settings(prefix, kinds[0], words, tail)


def load_settings(prefix: str, kind: type[Action], words: Words, tail: list[str]) -> Loaded:
    """Loads the settings of an action from its arguments, its settings file or spec, and overrides in `tail`.

    Args:
        prefix: Beginning of the command, such as "worldsmith evaluate", used as the source in messages.
        kind: Class of the action.
        words: Sorted arguments before ``--``.
        tail: Overrides after ``--``.

    Raises:
        ConfigError: With all mistakes.
    """
    if words.spec is not None:
        name_classes(words.spec.data, kind.Config)
    with name_error_source("the command"):
        return finish(*draft_settings(prefix, kind.Config, words, kind.places, words.own.get(SETTINGS), tail))


def is_first() -> bool:
    """Returns whether this process is rank 0 of its launch, which prints for all ranks."""
    return os.environ.get("RANK", "0") == "0"


def choose_action(name: str, head: list[str]) -> tuple[str, list[type[Action]], Words]:
    """Selects the class of the action that a command runs, and sorts its arguments.

    Args:
        name: Name of the command, such as "evaluate".
        head: Arguments before ``--``.

    Returns:
        The beginning of the command for messages ("worldsmith evaluate"), the classes that may implement it with the
        selected class first, and the sorted arguments.
    """
    prefix, kinds = f"worldsmith {name}", list(command_classes(name).values())
    if commands()[name].by == "word":
        prefix, kinds, head = f"{prefix} {head[0]}", [command_class_for_word(name, head[0])], head[1:]
    words = sort_action_words(head, kinds)
    if SPEC in words.own and name == "tune":  # the spec describes the run that is tuned
        words.loose.insert(0, words.own.pop(SPEC))
    if SPEC in words.own and name == "generate":
        read_stack_words(words, settings=SETTINGS)
        return prefix, kinds, words
    if SPEC in words.own:
        read_spec_words(name, words, settings=SETTINGS)
    if PARENT in words.own:
        adopt_parent(words.own[PARENT], words, kinds, words.own.get(SETTINGS))
    if commands()[name].by == "model" and (model := find_model_name(words, "model", words.loose)):
        kinds = [command_class_for_model(name, model, base=find_model_name(words, "base"))]
    return prefix, kinds, words


def list_variants(name: str) -> str:
    """Returns lines that list the variants of the command `name`, each with the first line of its description."""
    descriptions = {kind: (inspect.getdoc(cls) or "").partition("\n")[0] for kind, cls in command_classes(name).items()}
    return "\n".join(f"  worldsmith {name} {kind} …\n      {text}" for kind, text in descriptions.items())


def sort_action_words(head: list[str], kinds: list[type[Action]]) -> Words:
    """Sorts the arguments before ``--`` into typed flags, general options and positional arguments.

    Args:
        head: Arguments before ``--``.
        kinds: Classes that may implement the command; their config fields are the flags.
    """
    aliases = {alias: field for kind in kinds for alias, field in kind.aliases.items()}
    return sort_words(head, [unset_tree(kind.Config) for kind in kinds], OWN, aliases)


def find_model_name(words: Words, field: str, loose: Sequence[str] = ()) -> str | None:
    """Returns the name or path of a model that the user gives to a command.

    Args:
        words: Sorted arguments of the command.
        field: Field of the settings that names the model: "model" or "base".
        loose: Positional arguments, the first of which is the value; empty if `field` cannot be positional.

    Returns:
        The value from the arguments, else from the spec, else from the settings file; None if none of them has it.
    """
    given: list[Any] = [
        *loose[:1],
        *(flag.values[0] for flag in words.flags if flag.name == field and flag.values),
    ]
    if not given and words.spec is not None:
        given = [words.spec.data.get(field)]
    if not given and SETTINGS in words.own:
        given = [read_settings_file(words.own[SETTINGS]).data.get(field)]
    return given[0] if given and isinstance(given[0], str) else None


def format_help(name: str, prefix: str, kind: type[Action], words: Words, file: str | None, topic: str) -> str:
    """Returns the help text of an action.

    Args:
        name: Name of the command.
        prefix: Beginning of the command for the usage line.
        kind: Class of the action.
        words: Sorted arguments; the help shows their values.
        file: Settings file, whose values the help shows; None: no file.
        topic: Show only flags that mention this word; empty: all flags. The result is empty if no flag mentions it.
    """
    from worldsmith.cli.flag_help import action_help

    draft, overrides = draft_settings(prefix, kind.Config, words, kind.places, file, [])
    apply_overrides(draft.tree, overrides, draft.problems, draft.warnings, places=draft.places)
    places = "".join(f" {place.upper()}" for place in kind.places)
    aliases = [f"{alias} is the same as --{field}.".replace("_", "-") for alias, field in kind.aliases.items()]
    usage = f"usage: {prefix}{places} [--flag VALUE]… [-- override…]\n\n{join_lines(inspect.getdoc(kind) or '')}"
    return action_help("\n".join([usage, *aliases]), draft, applicable_options(name, kind), topic)


def join_lines(text: str) -> str:
    """Joins the lines of each paragraph to one line, which the terminal wraps; indented lines are not joined."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text)


def applicable_options(name: str, kind: type[Action]) -> dict[str, str]:
    """Returns the general options, such as ``--json``, that apply to the action class `kind`: option -> help text."""
    applies = {SPEC: reads_specs(name) or name in ("tune", "generate"), PARENT: reads_model(kind)}
    return {option: text for option, text in OPTIONS.items() if applies.get(option.partition(" ")[0], True)}


def show_plan(action: Action, loaded: Loaded, first_lines: Sequence[str], *, with_tree: bool) -> int:
    """Prints the dry run of an action and returns the exit code.

    Args:
        action: Action whose plan is printed.
        loaded: Its settings.
        first_lines: Lines printed before the plan.
        with_tree: Whether to print all settings with their origins after the plan.
    """
    code = print_result(Result(chain(first_lines, action.plan())))
    if with_tree:
        from worldsmith.config.write.annotate import show_tree

        print(f"---\n{show_tree(loaded)}", end="")
    return code


def print_result(result: Result, *, as_json: bool = False) -> int:
    """Prints the result of an action, as lines or as JSON; returns the exit code that the result contains."""
    if as_json:
        facts = result.facts() if callable(result.facts) else result.facts
        print_text(json.dumps(dict(facts), indent=2, ensure_ascii=False))
    else:
        for line in result.lines:
            print(line, flush=True) if isinstance(line, ColoredLine) else print_text(line)
    return result.code


@contextmanager
def name_error_source(where: str) -> Iterator[None]:
    """Context manager: a ConfigError that is raised inside names `where` as the source of its mistakes."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.problems, where=where) from error


def processes_to_start(loaded: Loaded, spec: SpecTranslation | None) -> int:
    """Returns the number of processes to start for an action; 1 means to run it in this process.

    The number in a spec is limited to the GPUs of this machine, with a warning in `loaded`.

    Args:
        loaded: Settings of the action.
        spec: Translated spec from which the settings come; None: no spec.

    Raises:
        UserError: If more processes than GPUs are requested, or another number than `worldsmith launch` has started.
    """
    requested, device = getattr(loaded.tree, PROCESSES, None), getattr(loaded.tree, "device", None)
    if requested is None or isinstance(loaded.tree, PoolAction.Config):  # which starts its processes itself
        return 1
    if os.environ.get("WORLD_SIZE") or os.environ.get("RANK"):
        if requested != world_size():
            raise UserError(
                f"the launch already has {world_size()} processes, which share the work: omit --{PROCESSES}"
            )
        return 1
    if requested == 1:
        return 1
    import torch

    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if spec is None or loaded.places.get((PROCESSES,)) != spec.spec.place("num_gpus"):
        if 0 < gpus < requested and device is None:
            raise UserError(
                f"--{PROCESSES} {requested}: each needs a GPU, but this machine has {gpus}; use --{PROCESSES} {gpus}"
            )
        return int(requested)
    running = 1 if device is not None else max(1, min(requested, gpus))
    if running < requested:
        found = f"this machine has {gpus or 'no'} {'GPU' if gpus == 1 else 'GPUs'}"
        reason = found if device is None else f"--device is {device}"
        advice = f"; --{PROCESSES} N starts N nevertheless" if not gpus or device is not None else ""
        loaded.warnings.append(
            f"num_gpus requests {requested} processes, each with its own GPU, but {reason}: {running} of {requested} "
            f"processes {'is' if running == 1 else 'are'} used{advice}"
        )
    return running
