"""Named recipes: functions that return a whole run tree."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from worldsmith.config.configurable import Config
from worldsmith.config.errors import ConfigError, Problem
from worldsmith.config.suggest import did_you_mean

Function = TypeVar("Function", bound=Callable[[], Config])


@dataclass(frozen=True, slots=True)
class Recipe:
    """A registered recipe. `doc` is the first line of its function's docstring."""

    name: str
    make: Callable[[], Config]
    module: str
    doc: str


_RECIPES: dict[str, Recipe] = {}


def recipe(name: str) -> Callable[[Function], Function]:
    """Registers a function without arguments that returns a Trainer.Config. ValueError for a name that is taken."""

    def register(function: Function) -> Function:
        taken = _RECIPES.get(name)
        if taken and (taken.module, taken.make.__qualname__) != (function.__module__, function.__qualname__):
            raise ValueError(f"recipe '{name}' of {function.__module__} is already registered by {taken.module}")
        doc = (inspect.getdoc(function) or "").partition("\n")[0]
        _RECIPES[name] = Recipe(name, function, function.__module__, doc)
        return function

    return register


def recipe_names() -> list[str]:
    """The names of all recipes, sorted. Imports the shipped ones on first use."""
    importlib.import_module("worldsmith.recipes")
    return sorted(_RECIPES)


def find_recipe(name: str) -> Recipe:
    """The registration of a recipe. Raises ConfigError, with the nearest name, for one that does not exist."""
    names = recipe_names()
    if name not in names:
        advice = did_you_mean(name, names)
        listing = f"there are: {', '.join(names)}" if names else "none is registered"
        raise ConfigError(
            [Problem("", f"no recipe is named '{name}'", hint=f"{advice} {listing}" if advice else listing)]
        )
    return _RECIPES[name]


def get_recipe(name: str) -> Config:
    """A fresh tree of a recipe, with its references unresolved. Raises ConfigError for an unknown name."""
    return find_recipe(name).make()
