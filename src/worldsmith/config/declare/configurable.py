"""`Configurable`: a component class that owns its typed, buildable `Config`.

class AdamW(Configurable):
    class Config(Configurable.Config):
        lr: float = 2e-4
        '''Base learning rate.'''

    def __init__(self, config: Config, *, network: nn.Module): ...

AdamW.Config(lr=1e-4).build(network=network)  # an AdamW
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, cast, dataclass_transform

from worldsmith.config.declare.ranges import check_ranges, ranges_first
from worldsmith.config.declare.value_types import (
    check_hint,
    fit,
    is_config_class,
    is_reference,
    item_hint,
    resolved_hints,
)
from worldsmith.config.errors import Problem
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.suggest import did_you_mean

ABSENT: Any = object()
"""Value of a path that a config does not have."""
OPAQUE = "custom"
"""Field at the root of a config for data of the user's project; it is omitted when a config is written."""


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class ConfigMeta(type):
    """Metaclass that makes every subclass of `Config` a keyword-only dataclass."""

    def __new__(meta, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> ConfigMeta:
        _check_class_body(namespace.get("__qualname__", name), namespace)
        if "check" in namespace:
            namespace["check"] = ranges_first(namespace["check"])
        cls = super().__new__(meta, name, bases, namespace, **kwargs)
        return cast(ConfigMeta, dataclasses.dataclass(kw_only=True, repr=True, eq=True)(cast(Any, cls)))

    if not TYPE_CHECKING:  # type checkers read the dataclass fields instead

        def __call__(cls, *args: Any, **values: Any) -> Any:
            if args:
                example = ", ".join(f"{name}=…" for name in field_names(cls)[:2])
                raise TypeError(f"{cls.__qualname__} accepts keywords only: {cls.__qualname__}({example})")
            for name in values:
                if name not in cls.__dataclass_fields__:
                    raise TypeError(unknown_field(cls, name))
            return super().__call__(**values)


_RESERVED = {
    "check": "the cross-field check of the section",
    "list_warnings": "the method that returns the warnings of the section",
    "build": "the method that builds the component",
    "type": "the key that names a section's class in text",
    OPAQUE: "the top-level field for custom values of the user's project",
}
"""Names that a field cannot have, each with the reason."""


def _check_class_body(qualname: str, namespace: dict[str, Any]) -> None:
    """Raises TypeError, with a suggestion, if the body of a Config class is not valid.

    Args:
        qualname: Qualified name of the class, for messages.
        namespace: Namespace of the class body.
    """
    annotations = namespace.get("__annotations__", {})
    for key, value in namespace.items():
        plain = callable(value) or isinstance(value, (property, classmethod, staticmethod, type))
        if not (key.startswith("_") or key in annotations or plain):
            raise TypeError(f"{qualname}.{key} has no type annotation; write `{key}: {type(value).__name__} = …`")
    for key, annotation in annotations.items():
        if "ClassVar" in str(annotation):
            continue
        value = namespace.get(key)
        if key in _RESERVED and not (key == OPAQUE and "_root" in namespace):
            raise TypeError(f"{qualname}.{key}: the name '{key}' is {_RESERVED[key]}; choose another name")
        if key.startswith("_"):
            raise TypeError(
                f"{qualname}.{key}: a field's name must not start with '_'; rename it or make it a ClassVar"
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


class Config(metaclass=ConfigMeta):
    """A section of the config: typed data without behavior.

    Subclasses declare fields as in a dataclass. Setting an unknown field raises AttributeError, and setting a value of
    a wrong type raises TypeError. A string such as ``"${trainer.max_iter}"`` is a reference to another value, which is
    allowed for every type; references are resolved for the complete config, see `resolve`.
    """

    __is_worldsmith_config__: ClassVar[bool] = True

    def __setattr__(self, name: str, value: Any) -> None:
        hints = field_hints(type(self))
        if name not in hints:
            raise AttributeError(unknown_field(type(self), name))
        problems: list[Problem] = []
        value = fit(value, hints[name], (name,), problems)
        if problems:
            first = problems[0]
            raise TypeError(f"{type(self).__qualname__}.{first.path}: expected {first.expected}, found {first.found}")
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raises WrongValueError (see `wrong`) for values that are invalid or contradict each other.

        It is called on the resolved config, after the checks of the sections below. The declared ranges of the fields
        are checked before the code of a subclass runs.
        """
        check_ranges(self)

    def list_warnings(self) -> Iterable[str]:
        """Returns warnings about values that are valid but have a surprising effect. Called on the checked config."""
        return ()


class Configurable:
    """A component that is built from its own `Config` and from runtime objects.

    The runtime objects are the other arguments of its constructor, such as the network of an optimizer.

    A subclass that defines no class `Config` gets a new one, derived from the `Config` of its base class.
    """

    class Config(Config):
        _owner: ClassVar[type[Configurable]]

        def build(self, **runtime: Any) -> Any:
            """Builds the component from a deep copy of the config.

            Args:
                **runtime: Further arguments of the component's constructor.

            Raises:
                TypeError: If a runtime argument is unexpected or missing, or a reference is not resolved.
            """
            owner = owner_of(type(self))
            if owner is None:
                raise TypeError(
                    f"{type(self).__qualname__} is not the Config class of any component, "
                    "so nothing can be built from it"
                )
            _check_runtime(owner, runtime)
            for path, value in walk(self):
                if not is_reference(value):
                    continue
                where = f"{type(self).__qualname__}.{format_path(path)}"
                raise TypeError(
                    f"{where} is still the reference {value!r}; call resolve() on the complete config first"
                )
            return owner(copy.deepcopy(self), **runtime)  # type: ignore[call-arg]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("Config")
        if own is None:
            parent = next(base.__dict__["Config"] for base in cls.__mro__[1:] if "Config" in base.__dict__)
            own = ConfigMeta(
                "Config", (parent,), {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config"}
            )
            cls.Config = own  # type: ignore[misc, assignment]
        if not isinstance(own, type) or not issubclass(own, Configurable.Config):
            raise TypeError(
                f"{cls.__qualname__}.Config must derive from Configurable.Config; "
                "write `class Config(Configurable.Config): …`"
            )
        for base in cls.__bases__:
            if issubclass(base, Configurable) and not issubclass(own, base.Config):
                raise TypeError(
                    f"{cls.__qualname__}.Config must derive from {base.__qualname__}.Config, whose component it "
                    f"extends; write `class Config({base.__qualname__}.Config): …`"
                )
        if own is Configurable.Config or "_owner" in own.__dict__:
            name = own._owner.__qualname__ if "_owner" in own.__dict__ else "Configurable"
            raise TypeError(
                f"{cls.__qualname__}.Config is {name}.Config itself; write its own: `class Config({name}.Config): …`"
            )
        init = cls.__dict__.get("__init__")
        if init and any(p.kind is p.VAR_KEYWORD for p in inspect.signature(init).parameters.values()):
            raise TypeError(
                f"{cls.__qualname__}.__init__ accepts **keywords, which hide typos; name each runtime object, "
                "keyword-only"
            )
        own._owner = cls


def owner_of(config_class: type) -> type[Configurable] | None:
    """Returns the component class that a Config class builds; None for a section without one."""
    return config_class.__dict__.get("_owner")


_HINTS: dict[type, dict[str, Any]] = {}
_NAMES: dict[type, tuple[str, ...]] = {}


def field_hints(cls: type) -> dict[str, Any]:
    """Returns the type of every field of a Config class by name, without annotations such as `Range`.

    Raises:
        TypeError: If a field has a type that a config cannot contain.
    """
    if cls not in _HINTS:
        hints = resolved_hints(cls)
        fields = {name: hints[name] for name in field_names(cls)}
        for name, hint in fields.items():
            check_hint(hint, f"{cls.__qualname__}.{name}")
        _HINTS[cls] = fields
    return _HINTS[cls]


def field_names(cls: type) -> tuple[str, ...]:
    """Returns the names of a Config class's fields, in order."""
    if cls not in _NAMES:
        _NAMES[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return _NAMES[cls]


def unknown_field(cls: type, name: str) -> str:
    """Returns the error message for the name of a field that a Config class does not have, with a suggestion."""
    names = field_names(cls)
    advice = did_you_mean(name, names) or f"it has: {', '.join(names) or 'none'}"
    return f"{cls.__qualname__} has no field '{name}'; {advice}"


def children(node: Any) -> list[tuple[Any, Any]]:
    """Returns (name or index, value) of the values directly below a section, table or list; empty for a leaf.

    The field `custom` of the root, which stores uninterpreted data of the user, is omitted.
    """
    if isinstance(node, Config):
        return [(name, getattr(node, name)) for name in field_names(type(node)) if name != OPAQUE]
    if isinstance(node, dict):
        return list(node.items())
    if isinstance(node, list):
        return list(enumerate(node))
    return []


def walk(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields (path, value) for every value of a config, parents first.

    Args:
        node: Section, table, list or leaf.
        path: Path of `node`, the prefix of all paths.
    """
    yield path, node
    for name, child in children(node):
        yield from walk(child, (*path, name))


def find(node: Any, path: Path, default: Any = None) -> Any:
    """Returns the value at a path below `node`.

    Args:
        node: Section, table or list.
        path: Keys and list indexes from `node`.
        default: Result if the path does not exist.
    """
    for part in path:
        if isinstance(node, Config):
            known = part != OPAQUE and part in field_names(type(node))
            node = getattr(node, str(part)) if known else ABSENT
        elif isinstance(node, dict):
            node = node.get(part, ABSENT)
        elif isinstance(node, list):
            node = node[part] if isinstance(part, int) and part < len(node) else ABSENT
        else:
            return default
        if node is ABSENT:
            return default
    return node


def child_hint(node: Any, part: str | int, hint: Any) -> Any:
    """Returns the type hint of a value directly below a section, table or list.

    Args:
        node: Section, table or list.
        part: Name, key or index of the value.
        hint: Type hint of `node`.
    """
    if isinstance(node, Config):
        return field_hints(type(node)).get(str(part), Any)
    return item_hint(hint, type(node))


def all_paths(tree: Config) -> list[Path]:
    """Returns the paths of all fields and table keys of a config; paths that end in a list index are omitted."""
    return [path for path, _ in walk(tree) if path and not isinstance(path[-1], int)]


def _check_runtime(owner: type[Configurable], runtime: dict[str, Any]) -> None:
    if owner.__init__ is object.__init__:
        raise TypeError(f"{owner.__qualname__} has no constructor; write `def __init__(self, config: Config)`")
    parameters = list(inspect.signature(owner.__init__).parameters.values())[2:]  # after self and config
    takes = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    required = [name for name, p in takes.items() if p.default is p.empty]
    listing = ", ".join(name if name in required else f"{name} (optional)" for name in takes) or "nothing"
    for name in runtime:
        if name not in takes:
            advice = did_you_mean(name, takes)
            raise TypeError(
                f"{owner.__qualname__} has no parameter '{name}'; {f'{advice} ' if advice else ''}in addition to "
                f"its config it accepts: {listing}"
            )
    missing = [name for name in required if name not in runtime]
    if missing:
        raise TypeError(
            f"{owner.__qualname__} needs {', '.join(missing)}; in addition to its config it accepts: {listing}"
        )
