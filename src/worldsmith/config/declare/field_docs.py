"""The documentation of config fields: the string literal that follows each field in the source."""

from __future__ import annotations

import ast
import functools
import inspect
import sys


def field_docs(cls: type) -> dict[str, str]:
    """Returns the docstring of each documented field of a Config class by name, including inherited fields.

    The source of each module is parsed once, on first use.
    """
    docs: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        if getattr(parent, "__is_worldsmith_config__", False):
            docs.update(_docs_of_module(parent.__module__).get(parent.__qualname__, {}))
    return docs


@functools.cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    """Returns the field docstrings of every class of the module `name`: qualified class name -> field -> docstring."""
    try:
        source = inspect.getsource(sys.modules[name])
    except (OSError, KeyError, TypeError):  # a module without source, such as an interactive session
        return {}
    found: dict[str, dict[str, str]] = {}
    _collect(ast.parse(source).body, "", found)
    return found


def _collect(body: list[ast.stmt], prefix: str, found: dict[str, dict[str, str]]) -> None:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            qualname = f"{prefix}{statement.name}"
            found[qualname] = _class_docs(statement)
            _collect(statement.body, f"{qualname}.", found)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _collect(statement.body, f"{prefix}{statement.name}.<locals>.", found)


def _class_docs(statement: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, after in zip(statement.body, statement.body[1:]):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[field.target.id] = inspect.cleandoc(after.value.value)
    return docs
