"""Class names in text: ``type: worldsmith.training.scheduler.LambdaCosine`` names a component, hence its Config.

A config file is data: a name is imported only from packages on the allow-list, ours and those given to `trust`.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

from worldsmith.config.configurable import Config, Configurable, owner_of
from worldsmith.config.suggest import did_you_mean

_TRUSTED = {"worldsmith"}
_TAG = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+", re.ASCII)


def trust(package: str) -> None:
    """Allows class names of another top-level package in config files."""
    _TRUSTED.add(package.partition(".")[0])


def trusted_packages() -> list[str]:
    return sorted(_TRUSTED)


def tag_of(cls: type) -> str:
    """The dotted name of a Config class's component, or of the Config class itself if it has none.

    Raises TypeError for a class that is defined inside a function, since text cannot name it.
    """
    named = owner_of(cls) or cls
    if "<locals>" in named.__qualname__:
        raise TypeError(
            f"{named.__qualname__} is defined inside a function and has no name in text; define it in a module"
        )
    return f"{named.__module__}.{named.__qualname__}"


def class_of(tag: Any) -> type[Config]:
    """The Config class that a tag names. Raises ValueError, saying why not."""
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise ValueError(f"'{tag}' is no class name; write it as package.module.Class")
    package = tag.partition(".")[0]
    if package not in _TRUSTED:
        raise ValueError(f"'{tag}' is outside the trusted packages ({', '.join(trusted_packages())})")
    parts = tag.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = _import(".".join(parts[:length]))
        if module is not None:
            return _config_class(module, parts[length:], tag)
    raise ValueError(f"'{tag}': there is no module '{parts[0]}'")


def _import(name: str) -> Any:
    """The module, or None if there is none of that name. A module that exists but fails to import says so itself."""
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise


def _config_class(module: Any, names: list[str], tag: str) -> type[Config]:
    found = module
    for name in names:
        if not hasattr(found, name):
            classes = [key for key, value in vars(found).items() if isinstance(value, type) and not key.startswith("_")]
            advice = did_you_mean(name, classes)
            raise ValueError(f"'{tag}': {found.__name__} has no '{name}'{f'; {advice}' if advice else ''}")
        found = getattr(found, name)
    if isinstance(found, type) and issubclass(found, Configurable):
        return found.Config
    if isinstance(found, type) and issubclass(found, Config):
        return found
    raise ValueError(f"'{tag}' is neither a component nor a config section")
