"""Named recipes: functions that return a complete config.

@recipe("small") def small() -> Trainer.Config: ...

@recipe("small_fast", starts_from="small") def small_fast(config: Trainer.Config) -> Trainer.Config:  # gets a new
config of `small` and returns it changed
    config.trainer.max_iter = 10
    return config
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar, cast, overload

import worldsmith
from worldsmith.config.declare.class_tags import trust
from worldsmith.config.declare.configurable import Config, field_names, find, walk
from worldsmith.config.errors import ConfigError, Problem, code_problem, raise_interrupt
from worldsmith.config.recipes.packages import Recipe, load_installed, registered
from worldsmith.config.tree.suggest import did_you_mean

Tree = TypeVar("Tree", bound=Config)


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
    """Decorator that registers a function as a recipe and returns a function without arguments that builds its config.

    Args:
        name: Name of the recipe.
        starts_from: Recipe that the function changes: it gets a new config of that recipe as its only argument. None:
            the function has no arguments.
        aliases: Other names of the recipe.
        variables: Environment variable → how to get its value, for the error if it is not set. Those of `starts_from`
            apply too.

    Raises:
        ValueError: If another function has registered the name.
        TypeError: If the function has other parameters.
    """
    if not isinstance(name, str) or not name:
        raise TypeError('write the recipe\'s name: `@recipe("my_recipe")`')

    def register(function: Callable[..., Config]) -> Callable[[], Config]:
        taken = registered().get(name)
        if taken and (taken.module, _qualname(taken.make)) != (function.__module__, _qualname(function)):
            raise ValueError(f"recipe '{name}' of {function.__module__} is already registered by {taken.module}")
        _check_signature(function, name, starts_from)
        make = _starting_from(starts_from, function) if starts_from else cast(Callable[[], Config], function)
        doc = (inspect.getdoc(function) or "").partition("\n")[0]
        registered()[name] = Recipe(name, make, function.__module__, doc, starts_from, tuple(aliases), variables or {})
        return make

    return register


def recipe_names() -> list[str]:
    """Returns the names of all built-in, installed and imported recipes, sorted. Imports installed packages."""
    import_shipped()
    load_installed()
    return sorted(registered())


def is_recipe(name: str) -> bool:
    """Returns whether a recipe has the name or alias. Imports installed packages if no built-in recipe has it."""
    import_shipped()
    return bool(_registered(name)) or name in recipe_names()


def find_recipe(name: str) -> Recipe:
    """Returns the registration of a recipe for its name or alias.

    Raises:
        ConfigError: If no recipe has the name; the message suggests the most similar name.
    """
    if is_recipe(name) and (found := _registered(name)):
        return found
    names = recipe_names()
    advice = did_you_mean(name, names)
    listing = f"available: {', '.join(names)}" if names else "none is registered"
    problem = Problem("", f"no recipe is named '{name}'", hint=f"{advice} {listing}" if advice else listing)
    raise ConfigError([problem, *load_installed()])


def get_recipe(name: str) -> Config:
    """Calls the function of a recipe and returns the new config, with unresolved references.

    Config files may name classes of the packages that the config uses from then on, see `class_tags.trust`.

    Args:
        name: Name or alias.

    Raises:
        ConfigError: If no recipe has the name, or its function fails or does not return a config.
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
        raise ConfigError([code_problem(f"the recipe '{name}' cannot be built", error)]) from error
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
        if isinstance(node, Config):  # its code has run, so a config file may name it, as the run's own file does
            with contextlib.suppress(ValueError):  # a module that a config file cannot name
                trust(type(node).__module__)
    return tree


def variables_of(names: Iterable[str]) -> dict[str, str]:
    """Returns the environment variables that several recipes use: name -> how to get its value.

    Args:
        names: Names or aliases of recipes; later recipes override the texts of earlier ones.
    """
    found = (_registered(name) for name in names)
    return {name: advice for entry in found if entry is not None for name, advice in entry.variables.items()}


def lineage(name: str) -> list[tuple[str, Config]]:
    """Returns (name, new config) of a recipe and of the recipes that it starts from, oldest first."""
    chain: list[tuple[str, Config]] = []
    current: str | None = name
    while current is not None:
        found = find_recipe(current)
        chain.insert(0, (found.name, get_recipe(current)))
        current = found.starts_from
    return chain


def recipe_task(tree: Any) -> str | None:
    """Returns `job.task` of a config, "vfm" or "vlm", which decides how TOML paths are converted; None without one."""
    task = getattr(find(tree, ("job",)), "task", None)
    return task if isinstance(task, str) else None


def import_shipped() -> None:
    """Imports the built-in recipes."""
    importlib.import_module(f"{worldsmith.FAMILIES}.recipes")


def adopt_function(module: ModuleType, name: str) -> str:
    """Returns the recipe name for ``--module M --config NAME``.

    Args:
        module: Imported module.
        name: Name of a recipe or of a function of the module; a function is registered as the recipe ``M:NAME``.

    Raises:
        ConfigError: If the module has neither; the message lists the names that it has.
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


def _check_signature(function: Callable[..., Any], name: str, starts_from: str | None = None) -> None:
    """Raises TypeError, with a suggestion, if a function does not have the parameters of a recipe.

    Args:
        function: Function to check.
        name: Name of the recipe, for the message.
        starts_from: Recipe whose config the function gets as its argument; None: it has no arguments.
    """
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if starts_from and len(required) != 1:
        example = f"def {function.__name__}(config: Trainer.Config) -> Trainer.Config: ..."
        raise TypeError(
            f"recipe '{name}' starts from '{starts_from}' and receives its config as one argument: `{example}`"
        )
    if not starts_from and required:
        raise TypeError(
            f"recipe '{name}' must have no required arguments, found: {', '.join(required)}; to change another "
            f'recipe\'s config write `@recipe("{name}", starts_from="…")`'
        )


def _starting_from(parent: str, function: Callable[..., Config]) -> Callable[[], Config]:
    @functools.wraps(function)
    def make() -> Config:
        return function(get_recipe(parent))

    del make.__wrapped__  # its signature is that of a function without arguments
    return make


def _register(function: Callable[..., Config], module: ModuleType, name: str) -> str:
    try:
        _check_signature(function, name)
    except TypeError as error:
        raise ConfigError([Problem("", str(error))]) from None
    key = f"{module.__name__}:{name}"
    doc = (function.__doc__ or "").strip().partition("\n")[0]
    registered()[key] = Recipe(key, function, module.__name__, doc)
    return key


def _returns_config(value: object, module: ModuleType) -> bool:
    """Returns whether `value` is a function of the module with a Config as its annotated return type."""
    if getattr(value, "__module__", None) != module.__name__:
        return False
    result = getattr(value, "__annotations__", {}).get("return")
    return (isinstance(result, type) and issubclass(result, Config)) or str(result).endswith(".Config")


def _qualname(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", ""))


def _registered(name: str) -> Recipe | None:
    return registered().get(name) or next((entry for entry in registered().values() if name in entry.aliases), None)
