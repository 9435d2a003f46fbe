"""Checks of a resolved config: `check()` of every section, settings that contradict each other, and warnings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from worldsmith.config.declare.configurable import ABSENT, Config, find, walk
from worldsmith.config.errors import Problem, WrongValueError, code_problem
from worldsmith.config.tree.paths import Path, format_path, parse_path, starts_with
from worldsmith.config.tree.plain import class_defaults

MAX_PROBLEMS = 20
"""Max number of problems that are reported for one section.

After each problem, the invalid values are reset to their defaults, and the check of the section runs again.
"""


def check_sections(tree: Config, broken: Sequence[Path] = ()) -> list[Problem]:
    """Runs the `check()` of every section, so that all mistakes are reported at once.

    A check stops at its first problem. The values that the problem names are then reset to their defaults, in a copy,
    and the check runs again; the parent sections use that copy too. A problem is omitted if it is about a value that
    was reset or that is known to be wrong.

    Args:
        tree: Resolved config; it is not modified.
        broken: Paths of values that are known to be wrong.

    Returns:
        The problems, those of children first.
    """
    return _Checks(tree, broken).run()


def alternatives(tree: Any) -> list[tuple[Path, Any, list[str]]]:
    """Finds groups of alternative config fields, of which only one may be set, in which several are set (not None).

    The groups are `_alternatives` of each section class.

    Returns:
        (path of the section, section, names of the fields that are set) for each group.
    """
    groups = [
        (path, section, [name for name in group if getattr(section, name) is not None])
        for path, section in walk(tree)
        for group in getattr(type(section), "_alternatives", ())
    ]
    return [(path, section, given) for path, section, given in groups if len(given) > 1]


def list_warnings(tree: Any) -> list[str]:
    """Returns the warnings of all sections about valid settings with a surprising effect."""
    sections = [section for _, section in walk(tree) if isinstance(section, Config)]
    return [warning for section in sections for warning in section.list_warnings()]


def contradictions(tree: Any) -> list[Problem]:
    """Returns a problem for each group of alternative config fields in which more than one field is set (not None).

    `concerns` of a problem contains the paths of the fields that are set.
    """
    problems = []
    for path, section, given in alternatives(tree):
        values = " and ".join(f"{name} = {getattr(section, name)}" for name in given)
        names = tuple(format_path((*path, name)) for name in given)
        null = f"{names[0]}=null"
        advice = f"keep one: omit the other in the file, or write it as {null} after -- (TOML has no null)"
        problems.append(Problem(format_path(path), f"{values} cannot both be set", hint=advice, concerns=names))
    return problems


class _Checks:
    def __init__(self, tree: Config, broken: Sequence[Path]) -> None:
        self.original = tree
        self.tree = tree
        self.suspect: list[Path] = [path for path in broken if path]
        self.problems: list[Problem] = []

    def run(self) -> list[Problem]:
        for path in list(self.suspect):
            self.repair(path)
        for path in reversed([path for path, node in walk(self.original) if isinstance(node, Config)]):
            self.check(path)
        return self.problems[::-1]

    def check(self, path: Path) -> None:
        for _ in range(MAX_PROBLEMS):
            section = find(self.tree, path)
            if not isinstance(section, Config):  # a parent section was reset to its default, which has no section here
                return
            safe = not any(starts_with(bad, path) for bad in self.suspect)
            try:
                section.check()
                return
            except ValueError as error:
                complaint = error if isinstance(error, WrongValueError) else WrongValueError({}, why=str(error))
            except Exception as error:
                if safe:  # otherwise the check may fail because of values that are wrong
                    what = f"{type(section).__qualname__}.check() cannot be run"
                    self.problems.append(code_problem(what, error, format_path(path)))
                return
            named = [(*path, *parse_path(name)) for name in complaint.names]
            fields = [field for field in named if find(self.original, field, ABSENT) is not ABSENT]
            known = any(starts_with(a, b) or starts_with(b, a) for a in fields for b in self.suspect)
            if not known and (fields or safe):
                concerns = tuple(format_path(field) for field in named)
                hint = complaint.remedy or None
                self.problems.append(Problem(format_path(path), complaint.message, hint=hint, concerns=concerns))
            fresh = [field for field in fields if field not in self.suspect]
            self.suspect += fresh or [path]
            if not any([self.repair(field) for field in fresh]):
                return

    def repair(self, path: Path) -> bool:
        """Resets an invalid value, or the list or dict that contains it, to its default in a copy of the config.

        Args:
            path: Path of the value.

        Returns:
            Whether the copy changed.
        """
        while path and not isinstance(find(self.tree, path[:-1]), Config):
            path = path[:-1]
        parent_path, name = path[:-1], path[-1]
        parent = find(self.tree, parent_path)
        default = class_defaults(type(parent)).get(str(name), ABSENT)
        if default is ABSENT or default == getattr(parent, str(name), ABSENT):
            return False
        if self.tree is self.original:
            self.tree = copy.deepcopy(self.original)
            parent = find(self.tree, parent_path)
        setattr(parent, str(name), default)
        return True
