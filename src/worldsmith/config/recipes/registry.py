"""Named recipes: functions that return a whole run tree.

@recipe("small")
def small() -> Trainer.Config: ...

@recipe("small_fast", starts_from="small")
def small_fast(config: Trainer.Config) -> Trainer.Config:  # gets a fresh tree of `small` and returns it changed
    config.trainer.max_iter = 10
    return config
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, overload

import worldsmith
from worldsmith.config.declare.class_tags import trust
from worldsmith.config.declare.configurable import Config, field_names, walk
from worldsmith.config.errors import ConfigError, Problem, code_problem, raise_interrupt
from worldsmith.config.tree.suggest import did_you_mean

Tree = TypeVar("Tree", bound=Config)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A registered recipe. `doc` is the first line of its function's docstring."""

    name: str
    make: Callable[[], Config]
    module: str
    doc: str
    starts_from: str | None = None
    """The recipe whose tree it changes; None for one that is written from nothing."""
    aliases: tuple[str, ...] = ()
    """Other names under which it is found; lists and trees have `name`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variable -> how to get what it names, for the error where it is not set."""


_RECIPES: dict[str, Recipe] = {}
_UNAVAILABLE: dict[str, str] = {}
_ACTIVE: list[str] = []


@overload
def recipe(
    name: str, *, aliases: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> Callable[[Callable[[], Tree]], Callable[[], Tree]]: ...


@overload
def recipe(
    name: str, *, starts_from: str, aliases: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> Callable[[Callable[[Any], Tree]], Callable[[], Tree]]: ...


def recipe(
    name: str,
    *,
    starts_from: str | None = None,
    aliases: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Any:
    """Registers a function that returns a Trainer.Config; what it leaves in the module is called without arguments.

    With `starts_from`, the function gets a fresh tree of that recipe as its only argument, so that the declaration and
    the code cannot disagree. `aliases` are other names of the same recipe. `variables` are its environment variables,
    each with the advice for one that is not set; those of `starts_from` hold too. Raises ValueError for a name that is
    taken, TypeError for a function of another shape.
    """
    if not isinstance(name, str) or not name:
        raise TypeError('write the recipe\'s name: `@recipe("my_recipe")`')

    def register(function: Callable[..., Config]) -> Callable[[], Config]:
        taken = _RECIPES.get(name)
        if taken and (taken.module, _qualname(taken.make)) != (function.__module__, _qualname(function)):
            raise ValueError(f"recipe '{name}' of {function.__module__} is already registered by {taken.module}")
        check_shape(function, name, starts_from)
        make = _starting_from(starts_from, function) if starts_from else cast(Callable[[], Config], function)
        doc = (inspect.getdoc(function) or "").partition("\n")[0]
        _RECIPES[name] = Recipe(name, make, function.__module__, doc, starts_from, tuple(aliases), variables or {})
        return make

    return register


def not_available(why: str, *names: str) -> None:
    """Registers names of released recipes that do not exist here, with the reason that a file that names one gets."""
    _UNAVAILABLE.update(dict.fromkeys(names, why))


def recipe_names() -> list[str]:
    """The names of all recipes, sorted: the shipped ones, those of installed packages and those imported so far."""
    from worldsmith.config.recipes.packages import load_installed

    import_shipped()
    load_installed()
    return sorted(_RECIPES)


def is_recipe(name: str) -> bool:
    """Whether there is a recipe of that name or alias. Installed packages are imported only for other names."""
    import_shipped()
    return bool(_registered(name)) or name in recipe_names()


def _registered(name: str) -> Recipe | None:
    return _RECIPES.get(name) or next((entry for entry in _RECIPES.values() if name in entry.aliases), None)


def find_recipe(name: str) -> Recipe:
    """The registration of a recipe, also by an alias. Raises ConfigError, with the nearest name, for other names."""
    if is_recipe(name) and (found := _registered(name)):
        return found
    from worldsmith.config.recipes.packages import load_installed

    if name in _UNAVAILABLE:
        hint = "`worldsmith recipes` lists those that are available"
        raise ConfigError([Problem("", f"the recipe '{name}' does not exist here: {_UNAVAILABLE[name]}", hint=hint)])
    names = recipe_names()
    advice = did_you_mean(name, names)
    listing = f"there are: {', '.join(names)}" if names else "none is registered"
    problem = Problem("", f"no recipe is named '{name}'", hint=f"{advice} {listing}" if advice else listing)
    raise ConfigError([problem, *load_installed()])


def get_recipe(name: str) -> Config:
    """A fresh tree of a recipe, with its references unresolved. The packages of its classes are trusted from then on.

    Raises ConfigError for an unknown name, and for a function that fails or returns no config.
    """
    found = find_recipe(name)
    name = found.name
    if name in _ACTIVE:
        chain = " -> ".join([*_ACTIVE[_ACTIVE.index(name) :], name])
        raise ConfigError([Problem("", f"the recipe '{name}' starts from itself: {chain}")])
    _ACTIVE.append(name)
    try:
        tree = found.make()
    except ConfigError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        raise ConfigError([code_problem(f"the recipe '{name}' cannot be made", error)]) from error
    finally:
        _ACTIVE.pop()
    if not isinstance(tree, Config):
        message = f"the recipe '{name}' of {found.module} returned {type(tree).__name__} instead of a Trainer.Config"
        hint = "end the function with `return config`" if tree is None else None
        raise ConfigError([Problem("", message, hint=hint)])
    job = getattr(tree, "job", None)
    if isinstance(job, Config) and "experiment" in field_names(type(job)):
        job.experiment = name
    for _, node in walk(tree):
        if isinstance(node, Config):  # its code runs here already, so text may name it: the run's own dump does
            with contextlib.suppress(ValueError):  # a module without a name that text could write
                trust(type(node).__module__)
    return tree


def variables_of(names: Iterable[str]) -> dict[str, str]:
    """Environment variables of recipes, a later recipe's advice in place of an earlier one's."""
    found = (_registered(name) for name in names)
    return {name: advice for entry in found if entry is not None for name, advice in entry.variables.items()}


def lineage(name: str) -> list[tuple[str, Config]]:
    """A recipe and those that it starts from, oldest first, each with the tree that its function returns."""
    chain: list[tuple[str, Config]] = []
    current: str | None = name
    while current is not None:
        found = find_recipe(current)
        chain.insert(0, (found.name, get_recipe(current)))
        current = found.starts_from
    return chain


def registered() -> dict[str, Recipe]:
    """The live table of registrations, for code that imports packages of recipes."""
    return _RECIPES


def import_shipped() -> None:
    """Imports the recipes of the package itself."""
    importlib.import_module(f"{worldsmith.FAMILIES}.recipes")


def _starting_from(parent: str, function: Callable[..., Config]) -> Callable[[], Config]:
    @functools.wraps(function)
    def make() -> Config:
        return function(get_recipe(parent))

    del make.__wrapped__  # its signature is that of a function without arguments
    return make


def check_shape(function: Callable[..., Any], name: str, starts_from: str | None = None) -> None:
    """Raises TypeError, saying what to write, for a function that does not take what a recipe takes."""
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if starts_from and len(required) != 1:
        shape = f"def {function.__name__}(config: Trainer.Config) -> Trainer.Config: ..."
        raise TypeError(f"recipe '{name}' starts from '{starts_from}' and gets its tree as one argument: `{shape}`")
    if not starts_from and required:
        raise TypeError(
            f"recipe '{name}' takes no arguments, found: {', '.join(required)}; "
            f'to change another recipe\'s tree write `@recipe("{name}", starts_from="…")`'
        )


def _qualname(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", ""))
