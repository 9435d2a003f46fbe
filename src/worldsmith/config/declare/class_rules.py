"""What a `Config` class body may hold, checked when the class is made."""

from __future__ import annotations

from typing import Any

from worldsmith.config.declare.value_types import is_config_class

RESERVED = {
    "check": "the cross-field check of the section",
    "build": "what makes the component",
    "type": "the tag that names a section's class in text",
    "custom": "the project's own data at the root of a tree, which dumps leave out",
}


def check_class_body(qualname: str, namespace: dict[str, Any]) -> None:
    """Raises TypeError, saying what to write instead, for a class body that is no config."""
    annotations = namespace.get("__annotations__", {})
    for key, value in namespace.items():
        plain = callable(value) or isinstance(value, (property, classmethod, staticmethod, type))
        if not (key.startswith("_") or key in annotations or plain):
            raise TypeError(f"{qualname}.{key} has no type annotation; write `{key}: {type(value).__name__} = …`")
    for key, annotation in annotations.items():
        if "ClassVar" in str(annotation):
            continue
        value = namespace.get(key)
        if key in RESERVED and not (key == "custom" and "_root" in namespace):
            raise TypeError(f"{qualname}.{key}: the name '{key}' is {RESERVED[key]}; choose another name")
        if key.startswith("_"):
            raise TypeError(
                f"{qualname}.{key}: a field's name does not start with '_'; rename it or make it a ClassVar"
            )
        if isinstance(value, (list, dict, set, bytearray)):
            raise TypeError(
                f"{qualname}.{key} has a mutable default; write `{key}: … = field(default_factory=lambda: {value!r})`"
            )
        if is_config_class(type(value)):
            raise TypeError(
                f"{qualname}.{key} has a section as its default; "
                f"write `{key}: … = field(default_factory={type(value).__qualname__})`"
            )
