"""Docstrings fit the signatures: what other subpackages import has one, and `Args` sections name the parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "worldsmith"
Function = ast.FunctionDef | ast.AsyncFunctionDef
SECTION = re.compile(r"^Args:\n((?:    .*\n|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^    \*{0,2}(\w+)(?: \(.*?\))?:", re.MULTILINE)
TYPED = re.compile(r"^    \*{0,2}\w+ \(.*?\):", re.MULTILINE)


def sources() -> dict[str, ast.Module]:
    """Returns the syntax tree of each module by its dotted name."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def imports_from(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("worldsmith."):
            yield from ((node.module, alias.name) for alias in node.names)


def parameters(node: Function, *, method: bool) -> list[str]:
    """Returns the names of all parameters, for a method without `self` and `cls`."""
    args = node.args
    every = [*args.posonlyargs, *args.args, *filter(None, [args.vararg]), *args.kwonlyargs, *filter(None, [args.kwarg])]
    names = [arg.arg for arg in every]
    return names[1:] if method and names[:1] in (["self"], ["cls"]) else names


def described(docstring: str) -> list[str] | None:
    """Returns the names in the `Args` section, None without one."""
    section = SECTION.search(docstring + "\n")
    return ENTRY.findall(section[1]) if section else None


def documented(tree: ast.Module) -> Iterator[tuple[str, str, list[str]]]:
    """Yields name, docstring and parameters of each function, and of each class whose `__init__` it describes."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    methods = {id(node) for owner in classes for node in owner.body}
    for node in ast.walk(tree):
        if isinstance(node, Function) and (text := ast.get_docstring(node)):
            yield node.name, text, parameters(node, method=id(node) in methods)
    for owner in classes:
        for node in owner.body:
            if isinstance(node, Function) and node.name == "__init__" and (text := ast.get_docstring(owner)):
                yield owner.name, text, parameters(node, method=True)


def mismatches(tree: ast.Module) -> list[str]:
    """Returns the functions and classes whose `Args` section does not name exactly their parameters, without types."""
    return [
        name
        for name, text, expected in documented(tree)
        if (found := described(text)) is not None and (found != expected or TYPED.search(text))
    ]


def test_what_other_subpackages_import_has_a_docstring() -> None:
    trees = sources()
    imported = {
        name
        for module, tree in trees.items()
        for name in imports_from(tree)
        if name[0].split(".")[1] != module.partition(".")[2].split(".")[0]
    }
    assert len(imported) > 500
    missing = [
        f"{module}.{node.name}"
        for module, tree in trees.items()
        for node in {node.name: node for node in tree.body if isinstance(node, Function | ast.ClassDef)}.values()
        if (module, node.name) in imported and not ast.get_docstring(node)
    ]
    assert not missing


def test_args_sections_name_the_parameters_in_order_and_leave_types_to_the_signature() -> None:
    found = {module: names for module, tree in sources().items() if (names := mismatches(tree))}
    assert not found


def test_other_arguments_missing_ones_and_types_are_found() -> None:
    text = 'def {}(a: int, *rest: str) -> None:\n    """Adds.\n\n    Args:\n        a{}: One.\n{}    """\n'
    functions = [("right", "", "        *rest: All."), ("typed", " (int)", "        *rest: All."), ("short", "", "")]
    functions.append(("other", "", "        b: All."))
    source = "\n".join(text.format(name, kind, f"{rest}\n" if rest else "") for name, kind, rest in functions)
    assert mismatches(ast.parse(source)) == ["typed", "short", "other"]
