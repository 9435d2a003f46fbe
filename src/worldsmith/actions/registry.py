"""Registry of the actions that are commands, and of the class that implements each for a model, word or flag.

Each folder of `worldsmith/tools/` defines its commands in `COMMANDS`. `CLASSES` of `worldsmith/demo/` has additional
classes of commands, by "command word", "command output" or "command --flag". Another package registers an action as an
entry point:

    [project.entry-points."worldsmith.actions"]
    "evaluate my_kind" = "my_package.evaluate:EvaluateMine"
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import worldsmith

if TYPE_CHECKING:  # the list of commands is printed without importing anything
    from worldsmith.actions.action import Action


@dataclass(frozen=True, slots=True)
class Command:
    """Registry entry of a command: its help line and the classes that implement it."""

    help: str
    kinds: Mapping[str, str]
    """Value that selects an implementation (see `by`) -> its class as "module:class"."""
    by: Literal["", "model", "word"] = ""
    """What selects the implementation: "" (there is only one), `Model.Config.makes`, or the first argument of the
    command."""
    about_run: bool = False
    """Whether the command is a `RunAction`: its arguments describe a run, as those of `worldsmith train` do."""


@cache
def commands() -> dict[str, Command]:
    """Returns all commands: name -> registry entry, sorted by name."""
    package = importlib.import_module(worldsmith.TOOLS)
    found: dict[str, Command] = {}
    for module in pkgutil.iter_modules(package.__path__):
        found |= importlib.import_module(f"{worldsmith.TOOLS}.{module.name}").COMMANDS
    return dict(sorted(found.items()))


def command_classes(name: str) -> dict[str, type[Action]]:
    """Imports the classes that implement the command `name`; returns them in a dict by the value that selects them.

    This value is the output type of a model, the first argument, or "" for the only class, see `Command.by`. Classes
    of other packages (entry points) replace those of this package with the same value.
    """
    from importlib.metadata import entry_points

    paths = {f"{name} {kind}": path for kind, path in commands()[name].kinds.items()} | demo_classes()
    kinds: dict[str, type[Action]] = {}
    for key, path in paths.items():
        command, _, kind = key.partition(" ")
        if command == name and not kind.startswith("--"):
            kinds[kind] = pkgutil.resolve_name(path)
    for point in entry_points(group="worldsmith.actions"):
        command, _, kind = point.name.partition(" ")
        if command == name:
            kinds[kind] = point.load()
    return kinds


def demo_classes() -> dict[str, str]:
    """Returns the command classes of the synthetic datasets as "module:class".

    The keys are "COMMAND WORD", where the first argument selects the class, or "COMMAND --FLAG", where a flag does.
    """
    return importlib.import_module(worldsmith.DEMO).CLASSES


def command_class_for_flag(name: str, flag: str) -> type[Action]:
    """Returns the class that implements a command when `flag` is given.

    Args:
        name: Name of the command.
        flag: Flag such as "--prompts", for which `CLASSES` of `worldsmith.demo` has an entry; else KeyError is raised.
    """
    return pkgutil.resolve_name(demo_classes()[f"{name} {flag}"])


def command_class_for_model(name: str, model: str, *, base: str | None = None) -> type[Action]:
    """Returns the class that implements a command for a model, which depends on the output type of the model.

    Args:
        name: Name of the command.
        model: Path or Hub name of the model.
        base: Base weights of an adapter or of a partial checkpoint; None: as the model states.

    Raises:
        UserError: If the command does not support the model; other errors as `find_model`.
    """
    from worldsmith.checkpoint.formats.find_model import identify
    from worldsmith.config.errors import UserError

    spec, kinds = identify(model, base)[0].spec, command_classes(name)
    made = spec.config.makes
    if made not in kinds:
        raise UserError(
            f"{model}: models of the family '{spec.name}' generate {made or 'no known output'}; `worldsmith {name}` "
            f"requires a model that generates {' or '.join(kinds)}"
        )
    return kinds[made]


def command_class_for_word(name: str, word: str) -> type[Action]:
    """Returns the class that implements the command `name` for its first argument `word`.

    Raises UserError for an unknown word.
    """
    from worldsmith.config.errors import UserError
    from worldsmith.config.tree.suggest import did_you_mean

    kinds = command_classes(name)
    if word not in kinds:
        advice = did_you_mean(word, kinds)
        known = f"available: {', '.join(kinds)}"
        raise UserError(f"worldsmith {name}: unknown '{word}'; {f'{advice} ' if advice else ''}{known}")
    return kinds[word]
