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
from typing import Any, ClassVar, dataclass_transform, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

MUTABLE = (list, dict, set, bytearray)


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class ConfigMeta(type):
    """Makes every subclass of `Config` a keyword-only dataclass, without a decorator to repeat."""

    def __new__(meta, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> ConfigMeta:
        annotations = namespace.get("__annotations__", {})
        for key, value in namespace.items():
            if key.startswith("_") or key in annotations or callable(value) or isinstance(value, (property, classmethod, staticmethod, type)):
                continue
            raise TypeError(
                f"{namespace.get('__qualname__', name)}.{key} has no type annotation; write `{key}: {type(value).__name__} = …`"
            )
        for key in annotations:
            if isinstance(namespace.get(key), MUTABLE):
                raise TypeError(
                    f"{namespace.get('__qualname__', name)}.{key} has a mutable default; "
                    f"write `{key}: … = field(default_factory=lambda: {namespace[key]!r})`"
                )
        cls = super().__new__(meta, name, bases, namespace, **kwargs)
        return dataclasses.dataclass(kw_only=True, repr=True, eq=True)(cls)  # type: ignore[return-value]


class Config(metaclass=ConfigMeta):
    """A section of the run tree: typed data with no behaviour of its own.

    Names and types are checked whenever a value is set. A string such as ``"${trainer.max_iter}"`` is a reference and
    is accepted for every type; it is resolved at the root of the tree.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        fields = type(self).__dataclass_fields__  # type: ignore[attr-defined]
        if name not in fields:
            raise AttributeError(f"{type(self).__qualname__} has no field '{name}'; fields: {', '.join(fields)}")
        if not is_reference(value):
            try:
                value = field_adapter(type(self), name).validate_python(value, strict=True)
            except ValidationError as error:
                first = error.errors()[0]
                where = "".join(f"[{part!r}]" for part in first["loc"])
                raise TypeError(f"{type(self).__qualname__}.{name}{where}: {first['msg']}, found {first['input']!r}") from None
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raises ValueError for values that contradict each other. Called on the resolved tree, children first."""


def is_reference(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


_ADAPTERS: dict[tuple[type, str], TypeAdapter[Any]] = {}


def field_hints(cls: type) -> dict[str, Any]:
    """The resolved annotation of every field of a Config class, in order."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def field_adapter(cls: type, name: str) -> TypeAdapter[Any]:
    """The pydantic validator of one field."""
    if (cls, name) not in _ADAPTERS:
        settings = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=True)
        for key, hint in field_hints(cls).items():
            _ADAPTERS[cls, key] = TypeAdapter(instance_only(hint), config=None if is_plain_model(hint) else settings)
    return _ADAPTERS[cls, name]


def instance_only(hint: Any) -> Any:
    return hint


def is_plain_model(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


class Configurable:
    """A component that is built from its own `Config` and from the runtime objects that its constructor names."""

    class Config(Config):
        _owner: ClassVar[type[Configurable]]

        def build(self, **runtime: Any) -> Any:
            """Makes the component. It gets a deep copy: nothing that it does changes the caller's tree."""
            owner = getattr(type(self), "_owner", None)
            if owner is None:
                raise TypeError(f"{type(self).__qualname__} belongs to no component and cannot be built")
            return owner(copy.deepcopy(self), **runtime)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("Config")
        if own is None:
            parent = next(base.Config for base in cls.__mro__[1:] if "Config" in base.__dict__)
            own = ConfigMeta("Config", (parent,), {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config"})
            cls.Config = own  # type: ignore[assignment]
        if "_owner" in own.__dict__:
            raise TypeError(f"{cls.__qualname__}.Config is {own._owner.__qualname__}.Config; give it its own: `class Config({own._owner.__qualname__}.Config): …`")
        if not issubclass(own, Configurable.Config):
            raise TypeError(f"{cls.__qualname__}.Config must derive from Configurable.Config")
        own._owner = cls
