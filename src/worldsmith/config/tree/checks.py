"""Runs the `check()` of every section so that one run shows all that they have to say.

A check stops at its first complaint. The values that it complains about are then put back to their defaults, in a copy,
and it is asked again; the sections above it see that copy too. A complaint about a value that was put back, or that is
known to be wrong, says nothing new and is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from worldsmith.config.declare.configurable import ABSENT, Config, find, walk
from worldsmith.config.errors import Problem, WrongValueError, code_problem
from worldsmith.config.tree.paths import Path, format_path, parse_path, starts_with
from worldsmith.config.tree.plain import class_defaults

MOST = 20
"""Complaints per section, as a guard against a check that never falls silent."""


def check_sections(tree: Config, broken: Sequence[Path] = ()) -> list[Problem]:
    """What the sections of a resolved tree complain about, children first. `tree` is not changed."""
    return _Checks(tree, broken).run()


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
        for _ in range(MOST):
            section = find(self.tree, path)
            if not isinstance(section, Config):  # one above it was put back to its default, which has none here
                return
            safe = not any(starts_with(bad, path) for bad in self.suspect)
            try:
                section.check()
                return
            except ValueError as error:
                complaint = error if isinstance(error, WrongValueError) else WrongValueError({}, why=str(error))
            except Exception as error:
                if safe:  # else it was not made for values that are wrong
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
        """Puts a value, or the list or table that holds it, back to its class's default, in a copy.

        Returns whether that changed anything.
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
