"""Class names in text: ``type: worldsmith.training.scheduler.LambdaCosine`` names a component and thus its Config.

A config file is data: classes are imported only from trusted packages, which are this package and those of `trust`.
"""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType
from typing import Any

import worldsmith
from worldsmith.config.declare.configurable import Config, Configurable, owner_of
from worldsmith.config.errors import raise_interrupt
from worldsmith.config.tree.suggest import did_you_mean

_TRUSTED = {"worldsmith"}
_TAG = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+", re.ASCII)


def trust(package: str) -> None:
    """Allows config files to name classes of `package`, for the rest of this process (``--trust PACKAGE``).

    Raises:
        ValueError: If `package` is not a package name or is in the standard library, whose classes can start programs.
    """
    name = package.partition(".")[0]
    if not all(part.isidentifier() for part in package.split(".")):
        raise ValueError(f"'{package}' is not a package name; write --trust PACKAGE, such as --trust my_models")
    if name in sys.stdlib_module_names:
        raise ValueError(
            f"'{name}' is part of Python's standard library, which --trust does not accept; name the package of your "
            "own classes"
        )
    _TRUSTED.add(name)


def trusted_packages() -> list[str]:
    """Returns the names of the top-level packages whose classes config files may name, sorted."""
    return sorted(_TRUSTED)


def tag_of(cls: type) -> str:
    """Returns the dotted name by which config files name a Config class.

    It is the name of the component that the class configures; without a component, that of the class itself.

    Raises:
        TypeError: If the class is defined inside a function, since text cannot name it.
    """
    named = owner_of(cls) or cls
    if "<locals>" in named.__qualname__:
        raise TypeError(
            f"{named.__qualname__} is defined inside a function and cannot be named in a config file; define it in a "
            "module"
        )
    return f"{named.__module__}.{named.__qualname__}"


def class_of(tag: Any) -> type[Config]:
    """Returns the Config class for the dotted name of a component or Config class. Imports its module.

    Names that earlier versions wrote are accepted.

    Raises:
        ValueError: If `tag` is not a dotted name, is outside the trusted packages, or names no such class.
    """
    _check_name(tag)
    found = _import_object(_new_names().get(tag, tag) if tag.startswith("worldsmith.") else tag)
    if isinstance(found, type) and issubclass(found, Configurable):
        return found.Config
    if isinstance(found, type) and issubclass(found, Config):
        return found
    raise ValueError(f"'{tag}' is neither a component nor a config section")


def _new_names() -> dict[str, str]:
    """Returns the renamed classes: dotted name in files of earlier versions -> current dotted name."""
    names: dict[str, str] = importlib.import_module(f"{worldsmith.FAMILIES}.earlier_names").NEW_NAMES
    return names


def _check_name(tag: Any) -> None:
    """Raises ValueError if `tag` is not a dotted name or is outside the trusted packages."""
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise ValueError(f"'{tag}' is not a class name; write it as package.module.Class")
    package = tag.partition(".")[0]
    if package not in _TRUSTED:
        suggestion = f"if you trust it, add --trust {package}"
        if package in sys.stdlib_module_names:
            suggestion = "Python's standard library cannot be trusted"
        raise ValueError(f"'{tag}' is outside the trusted packages ({', '.join(trusted_packages())}); {suggestion}")


def _import_object(tag: str) -> Any:
    """Imports and returns the object with the dotted name `tag`.

    Raises:
        ValueError: If it does not exist, or its module cannot be imported.
    """
    parts = tag.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = _import(".".join(parts[:length]), tag)
        if module is not None:
            return _attribute(module, parts[length:], tag)
    raise ValueError(f"'{tag}': module '{parts[0]}' does not exist")


def _import(name: str, tag: str) -> Any:
    """Imports and returns the module `name`; None if it does not exist.

    Args:
        name: Dotted name of the module.
        tag: Dotted name of the class that is searched, for the message.

    Raises:
        ValueError: If the code of the module fails.
    """
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise ValueError(f"'{tag}': importing {name} failed: {error}") from error
    except BaseException as error:
        raise_interrupt(error)
        raise ValueError(f"'{tag}': importing {name} failed: {type(error).__name__}: {error}") from error


def _attribute(module: ModuleType, names: list[str], tag: str) -> Any:
    found: Any = module
    for name in names:
        try:
            inner = getattr(found, name)
        except AttributeError:
            raise ValueError(_missing(found, name, tag)) from None
        except BaseException as error:  # modules that import on first use fail here
            raise_interrupt(error)
            raise ValueError(f"'{tag}': importing it failed: {type(error).__name__}: {error}") from error
        # A module that another one happens to import does not bypass the allow-list.
        if isinstance(inner, ModuleType) and inner.__name__.partition(".")[0] != tag.partition(".")[0]:
            raise ValueError(
                f"'{tag}': '{name}' is the module {inner.__name__}, which {found.__name__} imports but does not contain"
            )
        found = inner
    return found


def _missing(found: Any, name: str, tag: str) -> str:
    classes = [key for key, value in getattr(found, "__dict__", {}).items() if isinstance(value, type)]
    advice = did_you_mean(name, [key for key in classes if not key.startswith("_")])
    where = getattr(found, "__name__", type(found).__name__)
    return f"'{tag}': {where} has no '{name}'{f'; {advice}' if advice else ''}"
