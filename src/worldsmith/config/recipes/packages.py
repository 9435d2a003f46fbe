"""Imports the modules that register recipes: entry points of installed packages, and modules named by the user.

A package states in its pyproject.toml where its recipes are; they are listed and found like the built-in ones:

    [project.entry-points."worldsmith.recipes"]
    my_package = "my_package.recipes"

The recipes of a model family of another package (`models/families.py`) are found through its `Family.recipes`.
Importing such a module runs its code; its top-level package is trusted from then on (see `class_tags.trust`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from worldsmith.config.declare.class_tags import trust
from worldsmith.config.declare.configurable import Config
from worldsmith.config.errors import ConfigError, Problem, blamed_line, raise_interrupt

GROUP, FAMILIES = "worldsmith.recipes", "worldsmith.families"
_RECIPES: dict[str, Recipe] = {}
_LOADED: dict[tuple[str, str, str], list[Problem]] = {}
"""Imported entry points, as (group, name, value), each with the problems of its import."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Registration of a recipe: a named function that builds a complete run config.

    Attributes:
        name: Name of the recipe.
        make: Function without arguments that returns a new config, with unresolved references.
        module: Module that defines the recipe's function.
        doc: First line of the function's docstring.
    """

    name: str
    make: Callable[[], Config]
    module: str
    doc: str
    starts_from: str | None = None
    """Name of the recipe whose config this recipe changes; None for a recipe that builds its own config."""
    aliases: tuple[str, ...] = ()
    """Other names that users can write for the recipe; recipe lists and saved configs always contain `name`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variable -> how to get its value, for the error if the variable is not set."""


def registered() -> dict[str, Recipe]:
    """Returns the registry of recipes by name; changes to the dict change the registry."""
    return _RECIPES


def load_installed(group: str = GROUP, contents: str = "recipes") -> list[Problem]:
    """Imports the modules that installed packages list in an entry point group, unless an earlier call imported them.

    Args:
        group: Entry point group. That of recipes includes the recipes of installed model families.
        contents: What the modules contain, for messages, such as "recipes".

    Returns:
        One problem per module whose import failed, in this call or an earlier one.
    """
    from importlib.metadata import entry_points

    groups = [group, FAMILIES] if group == GROUP else [group]
    for point in (point for name in groups for point in sorted(entry_points(group=name))):
        key = (point.group, point.name, point.value)
        if key in _LOADED:
            continue
        _LOADED[key] = []
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "an installed package"
        source = f"of {package} (entry point '{point.name}' of {point.group})"
        try:
            module = import_module(point.module, f"the {contents} {source}")
            if point.group == FAMILIES and (recipes := getattr(module, point.attr).recipes) is not None:
                import_module(recipes, f"the {contents} {source}")
        except ConfigError as error:
            _LOADED[key] = error.problems
    return [problem for key, problems in _LOADED.items() if key[0] in groups for problem in problems]


def import_recipes(name: str) -> ModuleType:
    """Imports a module of recipes, as ``--import NAME`` does. Modules in the working directory are found too.

    Raises:
        ConfigError: If the module does not exist, its code fails (with the line), or a recipe name is in use.
    """
    if name.endswith(".py") or os.sep in name:
        dotted = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise ConfigError([Problem("", f"--import needs a module's name, found '{name}'", hint=f"write {dotted}")])
    search_here()
    return import_module(name, f"the module '{name}'")


def search_here() -> None:
    """Adds the working directory to the end of `sys.path`: its modules can be imported, but hide no other module."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()


def import_module(name: str, description: str) -> ModuleType:
    """Imports a module and allows config files to name classes of its package, see `class_tags.trust`.

    If the import fails, the recipes that the module registered are removed.

    Args:
        name: Dotted name of the module.
        description: Description of the module, as the beginning of the message.

    Returns:
        The module.

    Raises:
        ConfigError: If the module does not exist or its code fails.
    """
    before = dict(registered())
    try:
        module = importlib.import_module(name)
        trust(name)
    except BaseException as error:
        raise_interrupt(error)
        registered().clear()
        registered().update(before)
        raise ConfigError([_import_problem(name, description, error)]) from error
    return module


def _import_problem(name: str, description: str, error: BaseException) -> Problem:
    missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    if missing and (name == error.name or name.startswith(f"{error.name}.")):  # type: ignore[attr-defined]
        hint = "it is neither installed, nor in the working directory, nor on PYTHONPATH"
        return Problem("", f"{description} cannot be imported: module '{error.name}' does not exist", hint=hint)  # type: ignore[attr-defined]
    place = blamed_line(error)
    where = f", at {place.file}:{place.line}" if place else ""
    return Problem("", f"{description} cannot be imported: {type(error).__name__}: {error}{where}")
