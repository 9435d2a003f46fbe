"""The actions that are commands, and which class does one of them for the model, the word or the flag that is given.

Each folder of `worldsmith/tools/` names its commands as `COMMANDS`. `CLASSES` of `worldsmith/demo/` has further classes
of commands, by "command word", "command output" or "command --flag". An action of another package is an entry point:

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
    """An action by name."""

    help: str
    kinds: Mapping[str, str]
    """Implementing classes as module:class, by the value that selects them."""
    by: Literal["", "model", "word"] = ""
    """What selects the implementation: "" (there is only one), `Model.Config.makes`, or the first argument of the
    command."""
    about_run: bool = False
    """Whether it is a `RunAction`, whose arguments describe a run, as those of `worldsmith train` do."""


@cache
def commands() -> dict[str, Command]:
    """Returns all actions that are commands, sorted by name."""
    package = importlib.import_module(worldsmith.TOOLS)
    found: dict[str, Command] = {}
    for module in pkgutil.iter_modules(package.__path__):
        found |= importlib.import_module(f"{worldsmith.TOOLS}.{module.name}").COMMANDS
    return dict(sorted(found.items()))


def kinds_of(name: str) -> dict[str, type[Action]]:
    """Returns the classes of an action, by what chooses among them; those of other packages last."""
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
    """Returns the classes of commands that `worldsmith/demo/` has."""
    found: dict[str, str] = importlib.import_module(worldsmith.DEMO).CLASSES
    return found


def kind_for_flag(name: str, flag: str) -> type[Action]:
    """Returns the class that does the action instead of the usual one when this flag is given."""
    kind: type[Action] = pkgutil.resolve_name(demo_classes()[f"{name} {flag}"])
    return kind


def kind_for_model(name: str, model: str, *, base: str | None = None) -> type[Action]:
    """Returns the class that does the action for the model at `model`.

    Raises UserError for none; else as `identify` does.
    """
    from worldsmith.checkpoint.formats.find_model import identify
    from worldsmith.config.errors import UserError

    spec, kinds = identify(model, base)[0].spec, kinds_of(name)
    made = spec.config.makes
    if made not in kinds:
        raise UserError(
            f"{model}: models of the family '{spec.name}' generate {made or 'no known output'}; `worldsmith {name}` "
            f"needs a model that generates {' or '.join(kinds)}"
        )
    return kinds[made]


def kind_for_word(name: str, word: str) -> type[Action]:
    """Returns the class that a command's first word names. Raises UserError for another word."""
    from worldsmith.config.errors import UserError
    from worldsmith.config.tree.suggest import did_you_mean

    kinds = kinds_of(name)
    if word not in kinds:
        advice = did_you_mean(word, kinds)
        known = f"available: {', '.join(kinds)}"
        raise UserError(f"worldsmith {name}: unknown '{word}'; {f'{advice} ' if advice else ''}{known}")
    return kinds[word]
