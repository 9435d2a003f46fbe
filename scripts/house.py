"""Measures the structure of the package: size, files, imports, names, import circles.

    python scripts/house.py [FOLDER]

Code lines are neither blank nor comment nor docstring. `tests/unit/test_rooms.py` holds the limits.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "worldsmith"
WINGS = ("families", "dialects", "tools", "demo", "cli")
"""Folders around the core."""
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True, slots=True)
class House:
    """Counts of a package. Medians and single importers leave out `__init__.py` and `__main__.py`."""

    lines: int
    code_lines: int
    core_code_lines: int
    files: int
    median_lines: float
    longest_file: int
    import_percent: float
    single_importer_files: int
    names_defined_three_times: int
    import_circles: int

    def __str__(self) -> str:
        return "\n".join(f"{field.name.replace('_', ' '):<26}{getattr(self, field.name):>9,}" for field in fields(self))


def measure(package: Path) -> House:
    """Reads every Python file of a package."""
    files = sorted(package.rglob("*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    modules = {name_of(file, package): file for file in files}
    imports = {name: set(imported_modules(trees[file], modules)) - {name} for name, file in modules.items()}
    importers = Counter(other for others in imports.values() for other in others)
    lines = {file: text.count("\n") for file, text in texts.items()}
    code = {file: len(code_lines(texts[file], trees[file])) for file in files}
    own = [file for file in files if file.name not in ("__init__.py", "__main__.py")]
    defined = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    )
    import_lines = sum(
        (node.end_lineno or 0) - node.lineno + 1 for tree in trees.values() for node in all_imports(tree)
    )
    return House(
        lines=sum(lines.values()),
        code_lines=sum(code.values()),
        core_code_lines=sum(count for file, count in code.items() if file.relative_to(package).parts[0] not in WINGS),
        files=len(files),
        median_lines=statistics.median(lines[file] for file in own),
        longest_file=max(code.values()),  # Google sections of docstrings do not make a file harder to read
        import_percent=round(100 * import_lines / sum(lines.values()), 1),
        single_importer_files=sum(importers[name_of(file, package)] == 1 for file in own),
        names_defined_three_times=sum(count >= 3 for count in defined.values()),
        import_circles=len(find_circles({name: others - {package.name} for name, others in imports.items()})),
    )


def name_of(file: Path, package: Path) -> str:
    """The dotted name of the module in a file."""
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def all_imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Those inside functions and for type checkers, too."""
    return (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))


def imported_modules(tree: ast.Module, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the package that a module imports."""
    for node in all_imports(tree):
        for alias in node.names:
            if isinstance(node, ast.Import):
                candidates = [alias.name]
            else:
                candidates = [f"{node.module}.{alias.name}", str(node.module)]
            yield from [name for name in candidates if name in modules][:1]


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """The numbers of lines that hold code."""
    docstrings = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    tokens = (token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in LAYOUT)
    return {number for token in tokens for number in range(token.start[0], token.end[0] + 1)} - docstrings


def find_circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of modules of which each imports every other, directly or through others of the group, largest first."""
    backwards: dict[str, set[str]] = defaultdict(set)
    for name, others in imports.items():
        for other in others:
            backwards[other].add(name)
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(imports):
        stack = [(start, iter(sorted(imports[start])))] if start not in seen else []
        seen.add(start)
        while stack:
            name, rest = stack[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                order.append(stack.pop()[0])
            else:
                seen.add(following)
                stack.append((following, iter(sorted(imports.get(following, ())))))
    circles: list[set[str]] = []
    assigned: set[str] = set()
    for start in reversed(order):
        group, waiting = set(), [start]
        while waiting:
            name = waiting.pop()
            if name not in assigned:
                assigned.add(name)
                group.add(name)
                waiting += backwards[name]
        if len(group) > 1:
            circles.append(group)
    return sorted(circles, key=lambda group: (-len(group), min(group)))


if __name__ == "__main__":
    print(measure(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE))
