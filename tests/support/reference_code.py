"""Runs code of packages that are not installed here, from their wheels: Cosmos-RL and qwen-vl-utils.

Neither package is imported, since both need packages that are not here. A module, or single definitions of it, are
parsed, and imports that cannot be satisfied are removed before the code is run; a test gives what takes their place.
The environment variable of a package names its wheel or its unpacked folder; without it, and where the package is not
installed, the test is skipped.
"""

from __future__ import annotations

import ast
import importlib.util
import logging
import os
import types
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

LAZY = ast.parse("from __future__ import annotations").body[0]
"""Annotations of a single definition name classes that are not here."""


@dataclass(frozen=True, slots=True)
class ReferencePackage:
    """A package whose code is run without being imported.

    Attributes:
        name: The name of the package.
        variable: Environment variable that names its wheel or its unpacked folder.
    """

    name: str
    variable: str

    def read(self, module: str) -> str:
        """Text of a module, by its path in the package. Skips the test without the package."""
        given = os.environ.get(self.variable)
        if given and given.endswith(".whl"):
            with zipfile.ZipFile(given) as wheel:
                return wheel.read(f"{self.name}/{module}").decode()
        found = importlib.util.find_spec(self.name)
        folder = Path(given) if given else Path(found.origin).parent if found and found.origin else None
        if folder is None:
            pytest.skip(f"{self.name} is not installed; {self.variable}=FILE.whl names its wheel")
        return (folder / module).read_text(encoding="utf-8")

    def run_module(self, module: str, /, *, asserts: bool = True, **names: Any) -> dict[str, Any]:
        """Runs a whole module; returns its namespace. `names` replace what it imports; `asserts`: keep assertions."""
        return self._run(module, ast.parse(self.read(module)).body, names, asserts=asserts)

    def run_definitions(self, module: str, /, *paths: str, **names: Any) -> dict[str, Any]:
        """Runs only the functions and classes at these dotted paths, such as "Class.method"; returns the namespace."""
        body = ast.parse(self.read(module)).body
        return self._run(module, [LAZY, *(find_definition(body, path) for path in paths)], names)

    def run_statements(self, module: str, function: str, /, *starts: str, **names: Any) -> dict[str, Any]:
        """Runs the first statement of a function that begins with each of these texts; returns the namespace."""
        definition = find_definition(ast.parse(self.read(module)).body, function)
        return self._run(module, [find_statement(definition, start) for start in starts], names)

    def _run(
        self, module: str, body: list[ast.stmt], names: Mapping[str, Any], *, asserts: bool = True
    ) -> dict[str, Any]:
        tree = ast.Module(body, [])
        tree = ast.fix_missing_locations(ImportRemover(self.name, names, asserts=asserts).visit(tree))
        namespace: dict[str, Any] = {"logger": logging.getLogger(__name__), **names}
        exec(compile(tree, f"{self.name}/{module}", "exec", dont_inherit=True), namespace)
        return namespace


class ImportRemover(ast.NodeTransformer):
    """Removes imports of the package itself, of packages that are not installed, and of names that are given.

    An import in `try` is kept, since the code says what happens without it.
    """

    def __init__(self, package: str, names: Collection[str], *, asserts: bool) -> None:
        self.package, self.names, self.asserts = package, names, asserts

    def visit_Try(self, node: ast.Try) -> ast.AST:
        has_import = any(isinstance(part, ast.Import | ast.ImportFrom) for part in node.body)
        return node if has_import else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.stmt:
        bound = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        return self.replace(node, [alias.name for alias in node.names], bound)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        return self.replace(node, [node.module or ""], [alias.asname or alias.name for alias in node.names])

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return node if self.asserts else ast.Pass()

    def replace(self, node: ast.stmt, modules: list[str], bound: list[str]) -> ast.stmt:
        roots = {module.partition(".")[0] for module in modules}
        absent = any(root == self.package or not is_installed(root) for root in roots)
        return ast.Pass() if absent or set(bound) <= set(self.names) else node


@cache
def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def find_definition(body: list[ast.stmt], path: str) -> ast.stmt:
    """The function or class at a dotted path; the last part may be nested anywhere in the one before it."""
    first, _, rest = path.partition(".")
    found = next(node for node in statements(body) if getattr(node, "name", None) == first)
    assert isinstance(found, ast.FunctionDef | ast.ClassDef), path
    return find_definition(found.body, rest) if rest else found


def find_statement(definition: ast.stmt, start: str) -> ast.stmt:
    """The first statement in a function whose text, as `ast.unparse` writes it, begins so."""
    body = getattr(definition, "body", [])
    return next(node for node in statements(body) if ast.unparse(node).startswith(start))


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements and those nested in them, each before its own."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, inner, []))


COSMOS_RL = ReferencePackage("cosmos_rl", "COSMOS_RL")
QWEN_VL_UTILS = ReferencePackage("qwen_vl_utils", "QWEN_VL_UTILS")
CONFIG, OPTIMIZER = "policy/config/__init__.py", "policy/trainer/optm/__init__.py"
"""Modules of Cosmos-RL."""


@cache
def config_module() -> types.ModuleType:
    """Cosmos-RL's module of config classes, which needs pydantic only."""
    pytest.importorskip("pydantic")
    text = COSMOS_RL.read(CONFIG)
    module = types.ModuleType("cosmos_rl_config")
    exec(compile(text, CONFIG, "exec", dont_inherit=True), module.__dict__)
    vars(module).setdefault("logger", logging.getLogger(__name__))
    return module
