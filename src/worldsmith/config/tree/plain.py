"""The config as plain data: dicts, lists and scalars.

If a field allows several classes, the class is stored in the key ``type``. The field ``custom`` of the root contains
data of the project and is omitted by default.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from worldsmith.config.declare.class_tags import tag_of
from worldsmith.config.declare.configurable import OPAQUE, Config, field_hints
from worldsmith.config.declare.value_types import item_hint, nested_config_classes
from worldsmith.config.tree import paths

TAG = "type"
MISSING = "???"
"""Value in a file that means that the key is omitted."""


def to_dict(config: Config, *, custom: bool = False) -> dict[str, Any]:
    """Converts a config to plain dicts, lists and scalars, with the root class in ``type``.

    Args:
        config: Config.
        custom: Whether to include the opaque data in ``custom``.
    """
    found: dict[str, Any] = _to_plain(config, Any, custom)
    return found


def class_defaults(cls: type[Config]) -> dict[str, Any]:
    """Returns the default of every field of a Config class that has one, by name. Mutable defaults are new objects."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def required_fields(cls: type[Config]) -> list[str]:
    """Returns the names of the fields of a Config class without a default."""
    absent = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is absent and f.default_factory is absent]


def to_yaml(config: Config, *, custom: bool = False) -> str:
    """Returns the config as YAML text, which `from_yaml` reads.

    Args:
        config: Config.
        custom: Whether to include the opaque data in ``custom``.
    """
    from worldsmith.config.yaml.yaml_text import dump_yaml

    return dump_yaml(to_dict(config, custom=custom))


def to_plain(value: Any) -> Any:
    """Converts a config value to plain data, including the opaque data in ``custom`` and the class name of sections."""
    return _to_plain(value, Any, custom=True)


def _to_plain(value: Any, hint: Any, custom: bool) -> Any:
    if isinstance(value, Config):
        found = {} if nested_config_classes(hint) == [type(value)] else {TAG: tag_of(type(value))}
        for name, inner in field_hints(type(value)).items():
            if name == OPAQUE and custom:
                found[name] = copy.deepcopy(getattr(value, name))
            elif name != OPAQUE:
                found[name] = _to_plain(getattr(value, name), inner, custom)
        return found
    if isinstance(value, (list, dict)):
        inner = item_hint(hint, type(value))
        if isinstance(value, list):
            return [_to_plain(item, inner, custom) for item in value]
        return {key: _to_plain(item, inner, custom) for key, item in value.items()}
    return value


def flatten(tree: dict[str, Any]) -> dict[str, object]:
    """Flattens nested dicts to one dict with dotted paths as keys; lists are values, and empty dicts are omitted."""
    return {".".join(map(str, path)): value for path, value in paths.flatten(tree) if value != {}}
