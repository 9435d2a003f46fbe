"""A tree as a Python module that registers it as a recipe: the changes from another recipe, or the whole tree."""

from __future__ import annotations

import re
from typing import Any

from worldsmith.config.declare.configurable import Config, children, field_names
from worldsmith.config.tree.access import ABSENT
from worldsmith.config.tree.difference import changes, same_value
from worldsmith.config.tree.paths import Path
from worldsmith.config.tree.plain import class_defaults
from worldsmith.config.write.values import PYTHON, Time, python_text, write

WIDTH = 110


def write_module(tree: Config, name: str, *, base: tuple[str, Config] | None, origin: str, needs: str = "") -> str:
    """The text of a module whose recipe `name` makes `tree`.

    `base` is the recipe that it starts from, with its tree; without one, or from a tree of another class, the whole
    tree is written. `needs` is a module that registers the base. Raises ValueError for a class that has no name.
    """
    writer = PythonWriter()
    root = writer.name_of(type(tree))
    function = re.sub(r"\W", "_", name, flags=re.ASCII)
    function = function if function.isidentifier() and function not in _TAKEN else f"recipe_{function}"
    if base is not None and type(base[1]) is type(tree):
        lines = writer.changes(base[1], tree)
        decorator = f"@recipe({python_text(name)}, starts_from={python_text(base[0])})"
        head = f"def {function}(config: {root}) -> {root}:"
        doc = f"Changes of the recipe {base[0]}."
        body = [*lines, "return config"]
    else:
        decorator, head, doc = f"@recipe({python_text(name)})", f"def {function}() -> {root}:", "The whole tree."
        body = writer.statement("return ", tree)
    text = "\n".join([decorator, head, f'    """{_safe(doc)}"""', *(f"    {line}" for line in body)])
    imports = [*writer.imports(), *([f"import {needs}  # registers {base[0]}" if base else ""] if needs else [])]
    return "\n".join(
        [f'"""{_safe(origin)}"""', "", "from __future__ import annotations", "", *imports, "", "", text, ""]
    )


_TAKEN = {"config", "recipe", "datetime", "False", "None", "True"}


class PythonWriter:
    """Values as Python expressions; remembers what has to be imported for them."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {("worldsmith.config", "recipe"): "recipe"}
        self._uses_datetime = False

    def imports(self) -> list[str]:
        by_module: dict[str, list[str]] = {}
        for (module, name), known in self._names.items():
            by_module.setdefault(module, []).append(name if known == name else f"{name} as {known}")
        found = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(by_module.items())]
        return [*(["import datetime", ""] if self._uses_datetime else []), *found]

    def name_of(self, cls: type) -> str:
        """The expression for a Config class, such as ``Trainer.Config``. Raises ValueError for one without a name."""
        if "<locals>" in cls.__qualname__:
            raise ValueError(f"{cls.__qualname__} is defined inside a function and cannot be imported")
        outer, dot, rest = cls.__qualname__.partition(".")
        key = (cls.__module__, outer)
        if key not in self._names:
            taken = {*self._names.values(), "config", "datetime"}
            self._names[key] = next(
                name for number in range(1, 10**6) if (name := f"{outer}{number if number > 1 else ''}") not in taken
            )
        return f"{self._names[key]}{dot}{rest}"

    def changes(self, old: Config, new: Config) -> list[str]:
        """The statements that turn the tree ``config`` from `old` into `new`."""
        lines: list[str] = []
        for change in changes(old, new, custom=True):
            place = _place(change.path, old)
            if change.new is ABSENT:
                lines.append(f"del {place}")
            else:
                lines += self.statement(f"{place} = ", change.new)
        return lines

    def statement(self, start: str, value: Any) -> list[str]:
        lines = self.expression(value)
        return [start + lines[0], *lines[1:]]

    def expression(self, value: Any) -> list[str]:
        """The lines of an expression: one if it fits, else one per item."""
        parts: list[tuple[str, Any]]
        if isinstance(value, Config):
            defaults = class_defaults(type(value))
            fields = [(name, getattr(value, name)) for name in field_names(type(value))]
            parts = [(f"{n}=", v) for n, v in fields if n not in defaults or not same_value(v, defaults[n])]
            opening, closing = f"{self.name_of(type(value))}(", ")"
        elif isinstance(value, dict):
            parts, opening, closing = [(f"{python_text(key)}: ", item) for key, item in value.items()], "{", "}"
        elif isinstance(value, list):
            parts, opening, closing = [("", item) for item in value], "[", "]"
        else:
            self._uses_datetime |= isinstance(value, Time)
            return [write(value, PYTHON)]
        items = [self.statement(start, item) for start, item in parts]
        flat = opening + ", ".join(item[0] for item in items) + closing
        if all(len(item) == 1 for item in items) and len(flat) <= WIDTH and not isinstance(value, Config):
            return [flat]
        if isinstance(value, Config) and all(len(item) == 1 for item in items) and len(flat) <= WIDTH - 40:
            return [flat]
        inner = [f"    {line}" for item in items for line in [*item[:-1], f"{item[-1]},"]]
        return [opening, *inner, closing]


def _place(path: Path, tree: Config) -> str:
    """``config.trainer.callbacks["grad_clip"].clip_norm``: keys of tables in brackets."""
    text = "config"
    node: Any = tree
    for part in path:
        is_field = isinstance(node, Config)
        text += f".{part}" if is_field else f"[{python_text(part) if isinstance(part, str) else part}]"
        node = getattr(node, str(part)) if is_field else dict(children(node)).get(part)
    return text


def _safe(text: str) -> str:
    """Text for a docstring."""
    return python_text(text)[1:-1]
