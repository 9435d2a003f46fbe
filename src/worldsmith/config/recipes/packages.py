"""Recipes of other packages: through the entry point group ``worldsmith.recipes``, or a module named by the user.

A package says in its pyproject.toml where its recipes are, and they are listed and found like the shipped ones:

    [project.entry-points."worldsmith.recipes"]
    my_package = "my_package.recipes"

The recipes of a model family of another package (`models/families.py`) are found through its `Family.recipes`.
Importing such a module runs its code; the top-level package is trusted from then on (see `class_tags.trust`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType

from worldsmith.config.declare.class_tags import trust
from worldsmith.config.declare.configurable import Config
from worldsmith.config.errors import ConfigError, Problem, blamed_line, raise_interrupt
from worldsmith.config.recipes.registry import Recipe, check_shape, registered
from worldsmith.config.tree.suggest import did_you_mean

GROUP, FAMILIES = "worldsmith.recipes", "worldsmith.families"
_LOADED: dict[tuple[str, str, str], list[Problem]] = {}
"""The entry points that were imported (group, name, value), and what is wrong with them."""


def load_installed(group: str = GROUP, what: str = "recipes") -> list[Problem]:
    """Imports what installed packages bring for an entry point group, once each; returns why some of it is missing."""
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
            module = import_module(point.module, f"the {what} {source}")
            if point.group == FAMILIES and (recipes := getattr(module, point.attr).recipes) is not None:
                import_module(recipes, f"the {what} {source}")
        except ConfigError as error:
            _LOADED[key] = error.problems
    return [problem for key, problems in _LOADED.items() if key[0] in groups for problem in problems]


def import_recipes(name: str) -> ModuleType:
    """Imports a module of recipes, as ``--import NAME``. The working directory counts as a place of modules.

    Raises ConfigError with the true cause: no such module, an error inside it and its line, a recipe's name taken.
    """
    if name.endswith(".py") or os.sep in name:
        dotted = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise ConfigError([Problem("", f"--import takes a module's name, found '{name}'", hint=f"write {dotted}")])
    search_here()
    return import_module(name, f"the module '{name}'")


def search_here() -> None:
    """Lets Python find modules of the working directory; last, so that no file lying about hides a package."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()


def import_module(name: str, what: str) -> ModuleType:
    """The module; if it fails, the recipes that it had registered before are taken back."""
    before = dict(registered())
    try:
        module = importlib.import_module(name)
        trust(name)
    except BaseException as error:
        raise_interrupt(error)
        registered().clear()
        registered().update(before)
        raise ConfigError([_import_problem(name, what, error)]) from error
    return module


def adopt_function(module: ModuleType, name: str) -> str:
    """The recipe's name for ``--module M --config NAME``: a recipe of M, or a function of M, registered as ``M:NAME``.

    Raises ConfigError that lists what M has, for a name that is neither.
    """
    package = f"{module.__name__}."
    own = {key: found.make for key, found in registered().items() if f"{found.module}.".startswith(package)}
    if name in own:
        return name
    function = getattr(module, name, None)
    if callable(function) and not isinstance(function, type):
        known = next((key for key, make in own.items() if make is function), None)
        return known or _register(function, module, name)
    functions = {key for key, value in vars(module).items() if _returns_config(value, module)}
    recipes = {key: make for key, make in own.items() if ":" not in key}
    names = sorted((functions - {make.__name__ for make in recipes.values()}) | set(recipes))
    listing = f"it has: {', '.join(names)}" if names else "it registers no recipe and has no function of that name"
    advice = did_you_mean(name, names)
    message = f"{module.__name__} has no recipe and no function '{name}'"
    raise ConfigError([Problem("", message, hint=f"{advice} {listing}" if advice else listing)])


def _register(function: Callable[..., Config], module: ModuleType, name: str) -> str:
    try:
        check_shape(function, name)
    except TypeError as error:
        raise ConfigError([Problem("", str(error))]) from None
    key = f"{module.__name__}:{name}"
    doc = (function.__doc__ or "").strip().partition("\n")[0]
    registered()[key] = Recipe(key, function, module.__name__, doc)
    return key


def _returns_config(value: object, module: ModuleType) -> bool:
    """Whether a function of the module says that it returns a config."""
    if getattr(value, "__module__", None) != module.__name__:
        return False
    result = getattr(value, "__annotations__", {}).get("return")
    return (isinstance(result, type) and issubclass(result, Config)) or str(result).endswith(".Config")


def _import_problem(name: str, what: str, error: BaseException) -> Problem:
    missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    if missing and (name == error.name or name.startswith(f"{error.name}.")):  # type: ignore[attr-defined]
        hint = "it is neither installed, nor in the working directory, nor on PYTHONPATH"
        return Problem("", f"{what} cannot be imported: there is no module '{error.name}'", hint=hint)  # type: ignore[attr-defined]
    place = blamed_line(error)
    where = f", at {place.file}:{place.line}" if place else ""
    return Problem("", f"{what} cannot be imported: {type(error).__name__}: {error}{where}")
