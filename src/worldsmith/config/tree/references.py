"""References in a config, which are resolved once at the root, before any component is built.

``${trainer.max_iter}`` is another value of the config and keeps its type, ``${oc.env:NAME}`` and
``${oc.env:NAME,default}`` an environment variable, ``${now:%Y-%m-%d}`` the local time, ``${asset:tiny_vae}`` the folder
of an asset of the package. A reference inside longer text becomes text.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeVar

from worldsmith.config.command_line.literals import decode, read_text
from worldsmith.config.declare.configurable import (
    ABSENT,
    OPAQUE,
    Config,
    all_paths,
    child_hint,
    children,
    field_hints,
    field_names,
    find,
)
from worldsmith.config.declare.value_types import fit, fits, is_reference, item_hint
from worldsmith.config.errors import ConfigError, Problem
from worldsmith.config.text_file import MAX_DEPTH
from worldsmith.config.tree.checks import check_sections, contradictions
from worldsmith.config.tree.paths import Path, format_path, parse_path
from worldsmith.config.tree.plain import MISSING
from worldsmith.config.tree.suggest import did_you_mean_path, nearest
from worldsmith.config.write.values import WORD, write

_Tree = TypeVar("_Tree", bound=Config)
_FAILED: Any = object()
RESOLVERS = ("oc.env", "now", "asset")
VARIABLE = "environment variable "
"""Prefix of a part of a reference that names an environment variable; the name of the variable follows."""
Kept = bool | Literal["names"]
"""Treatment of references to unset environment variables. False: a mistake. True: the reference is kept. "names": it is
replaced by $NAME in a string field, and is a mistake in any other field."""


def resolve(tree: _Tree, *, now: datetime | None = None, keep_unset: Kept = False) -> _Tree:
    """Returns a copy of a config without references; all types are checked and the `check()` of every section has run.

    Args:
        tree: Config with references; it is not modified.
        now: Time for ``${now:…}``; None: the current time.
        keep_unset: Treatment of references to unset environment variables. False: errors; True: they stay references;
            "names": replaced by $NAME in string fields, errors elsewhere.

    Raises:
        ConfigError: With all mistakes: cycles, missing values or environment variables, contradictions, failed checks.
    """
    resolved, problems = try_resolve(tree, now=now, keep_unset=keep_unset)
    if problems:
        raise ConfigError(problems)
    return resolved


def try_resolve(
    tree: _Tree,
    *,
    now: datetime | None = None,
    broken: Iterable[Path] = (),
    sources: dict[Path, list[str | Path]] | None = None,
    keep_unset: Kept = False,
    variables: Callable[[], Mapping[str, str]] = dict,
) -> tuple[_Tree, list[Problem]]:
    """Resolves a config as `resolve` does, and returns the mistakes instead of raising.

    Args:
        tree: Config with references; it is not modified.
        now: Time for ``${now:…}``; None: the current time.
        broken: Paths of values that are known to be wrong; no further problem about them is reported.
        sources: Receives the steps by which each reference was resolved, by its path: its text, then the paths or
            descriptions of the values to which it leads.
        keep_unset: Treatment of references to unset environment variables. False: errors; True: they stay references;
            "names": replaced by $NAME in string fields, errors elsewhere.
        variables: Returns environment variable -> how to get its value, for messages.

    Returns:
        The resolved config, in which wrong values are unchanged, and the problems.
    """
    resolver = _Resolver(tree, now or datetime.now(), keep_unset, broken)
    try:
        resolved = resolver.value((), tree, type(tree))
    except RecursionError:
        return tree, [Problem("", "references are chained too deeply")]
    if sources is not None:
        sources.update(resolver.sources)
    resolver.problems += unset_problems(resolver.unset, variables)
    bad = [*broken, *(problem.keys for problem in resolver.problems), *resolver.kept]
    bad += [
        path for path, value in resolver.done.items() if value is _FAILED
    ]  # including values that refer to a mistake
    if resolved is _FAILED:
        return tree, resolver.problems
    clashes = contradictions(resolved)
    bad += [path for clash in clashes for path in map(parse_path, clash.concerns)]
    return resolved, drop_repeated([*resolver.problems, *clashes, *check_sections(resolved, bad)], resolver.sources)


def unset_problems(unset: Mapping[str, list[Path]], variables: Callable[[], Mapping[str, str]]) -> list[Problem]:
    """Returns one problem per unset environment variable, with the path of the first value that refers to it.

    Args:
        unset: Paths of the values that refer to each variable, by name of the variable.
        variables: Returns environment variable -> how to get its value, which becomes the suggestion.
    """
    advice = variables() if unset else {}
    problems = []
    for name, paths in unset.items():
        others = [format_path(path) for path in paths[1:]]
        also = f"; also for {', '.join(others)}" if others else ""
        usual = f"run `export {name or 'NAME'}=…`, or write ${{oc.env:{name or 'NAME'},default}}"
        message = f"the environment variable '{name}' is not set{also}"
        problems.append(Problem(format_path(paths[0]), message, hint=advice.get(name, usual)))
    return problems


def drop_repeated(problems: list[Problem], sources: Iterable[Path]) -> list[Problem]:
    """Returns the problems of a config without those that only repeat another problem because of a reference.

    A problem is omitted if an earlier problem of another section has the same message, and a value directly in its own
    section was a reference.

    Args:
        problems: All problems of a config.
        sources: Paths of the values that were references.
    """
    first = {problem.message: problem.keys for problem in reversed(problems)}
    repeating = {path[:-1] for path in sources}
    return [p for p in problems if first[p.message] == p.keys or p.keys not in repeating]


class _Resolver:
    """Resolves the references of a config and collects the mistakes. Each value is resolved once, when first needed."""

    def __init__(self, tree: Config, now: datetime, keep_unset: Kept, broken: Iterable[Path]) -> None:
        self.broken = set(broken)
        self.tree = tree
        self.now = now
        self.keep_unset = keep_unset
        self.kept: list[Path] = []
        self.sources: dict[Path, list[str | Path]] = {}
        self.problems: list[Problem] = []
        self.unset: dict[str, list[Path]] = {}
        self.done: dict[Path, Any] = {}
        self.active: list[Path] = []

    def value(self, path: Path, raw: Any, hint: Any) -> Any:
        if path in self.done:
            return self.done[path]
        if path in self.active:
            chain = [*self.active[self.active.index(path) :], path]
            text = " -> ".join(format_path(step) or "the root" for step in chain)
            return self.fail(f"circular reference: {text}")
        self.active.append(path)
        try:
            found = self.compute(path, raw, hint)
        finally:
            self.active.pop()
        self.done[path] = found
        return found

    def compute(self, path: Path, raw: Any, hint: Any) -> Any:
        if is_reference(raw):
            self.sources[path] = [raw]
            found = self.text(raw, hint)
            if found is _FAILED:
                return found
            if is_reference(found):
                self.kept.append(path)
                return found
            count = len(self.problems)
            fitted = fit(copy.deepcopy(found), hint, path, self.problems, references=False)
            wrong = [replace(problem, found=f"{problem.found} from {raw}") for problem in self.problems[count:]]
            self.problems[count:] = wrong
            return fitted if len(self.problems) == count else _FAILED
        if isinstance(raw, Config):
            return self.section(path, raw)
        if isinstance(raw, (list, dict)):
            inner = item_hint(hint, type(raw))
            items = [(key, self.value((*path, key), item, inner)) for key, item in children(raw)]
            if any(item is _FAILED for _, item in items):
                return _FAILED
            return [item for _, item in items] if isinstance(raw, list) else dict(items)
        count = len(self.problems)
        fitted = fit(raw, hint, path, self.problems, references=False)
        return fitted if len(self.problems) == count else _FAILED

    def section(self, path: Path, raw: Config) -> Config:
        copied = copy.copy(raw)
        hints = field_hints(type(raw))
        for name in field_names(type(raw)):
            old = getattr(raw, name)
            if name == OPAQUE:
                found = copy.deepcopy(old)
            else:
                found = self.value((*path, name), old, hints[name])
            # A value that failed stays unresolved: the error is reported, and the other values can still be inspected.
            object.__setattr__(copied, name, old if found is _FAILED else found)
        return copied

    def text(self, raw: str, hint: Any) -> Any:
        """Resolves a string that contains references.

        Args:
            raw: String with at least one reference.
            hint: Type of the field.

        Returns:
            The value of the reference, of any type, if the string is one reference; else the string with references
            replaced by their values; _FAILED for a mistake.
        """
        if raw.count("${") > MAX_DEPTH:
            return self.fail(f"more than {MAX_DEPTH} references in one string")
        pieces: list[Any] = []
        position = 0
        while (start := raw.find("${", position)) >= 0:
            end = _closing(raw, start)
            if end is None:
                return self.fail(f"{raw!r} has no closing brace")
            if start > position:
                pieces.append(raw[position:start])
            is_single = start == 0 and end == len(raw) - 1
            found = self.reference(raw[start + 2 : end], hint if is_single else str)
            if found is _FAILED or is_single:
                return found
            if isinstance(found, (Config, list, dict)):
                return self.fail(
                    f"{raw[start : end + 1]} is a section, table or list and cannot be part of a longer string"
                )
            pieces.append(found if isinstance(found, str) else write(found, WORD))
            position = end + 1
        return "".join([*pieces, raw[position:]])

    def reference(self, inner: str, hint: Any) -> Any:
        name, colon, argument = inner.partition(":")
        if inner == MISSING:
            path = self.active[-1]
            owner = type(find(self.tree, path[:-1])).__qualname__
            return _FAILED if path in self.broken else self.fail(f"{owner} needs '{path[-1]}'", hint="write it")
        if not colon:
            return self.tree_value(inner.strip())
        name = name.strip()
        if is_reference(argument):
            argument = self.text(argument, str)
            if argument is _FAILED:
                return argument
        if name == "oc.env":
            return self.environment(argument, hint)
        if name == "now":
            return self.time(argument)
        if name == "asset":
            return self.asset(argument.strip())
        advice = nearest(name, RESOLVERS, limit=1) or list(RESOLVERS)
        return self.fail(
            f"unknown resolver '{name}'", hint=f"write ${{{advice[0]}:…}}; available: {', '.join(RESOLVERS)}"
        )

    def environment(self, argument: str, hint: Any) -> Any:
        name, comma, default = argument.partition(",")
        name = name.strip()
        found = os.environ.get(name) if name and "\0" not in name and "=" not in name else None
        if found is not None:
            if "${" in found:
                return self.fail(f"the environment variable '{name}' itself contains a reference ({found!r})")
            self.record_step(f"{VARIABLE}{name}")
            value = decode(found)
            problems: list[Problem] = []
            fit(found, hint, (), problems, references=False)
            return found if not problems else value  # a string field gets the string, even if it looks like a number
        if not comma and (fits("", hint) if self.keep_unset == "names" else self.keep_unset):
            self.record_step(f"{name} is not set")
            return f"${name}" if self.keep_unset == "names" else f"${{oc.env:{argument}}}"
        if not comma:
            self.unset.setdefault(name, []).append(self.active[-1])
            return _FAILED
        self.record_step(f"its default, {name} is not set")
        try:
            return read_text(default.strip(), hint)
        except ValueError as error:
            return self.fail(f"the default of ${{oc.env:{name},…}} cannot be parsed: {error}")

    def time(self, argument: str) -> Any:
        self.record_step("the time of loading")
        try:
            return self.now.strftime(argument)
        except ValueError as error:
            return self.fail(
                f"${{now:{argument}}} is not a time format: {error}", hint="write ${now:%Y-%m-%d_%H-%M-%S}"
            )

    def asset(self, name: str) -> Any:
        from worldsmith.assets import asset_path

        if not name or "/" in name or "\\" in name or ".." in name or "\0" in name:
            return self.fail(f"'{name}' is not an asset name", hint="write a plain name, such as ${asset:tiny_vae}")
        try:
            return str(asset_path(name))
        except FileNotFoundError as error:
            return self.fail(str(error))

    def tree_value(self, text: str) -> Any:
        """Returns the resolved value at the config path `text`; _FAILED, with an added problem, for an invalid path."""
        try:
            path = parse_path(text)
        except ValueError as error:
            return self.fail(f"${{{text}}}: {error}")
        if path[0] == OPAQUE:
            return self.fail(f"${{{text}}}: a reference cannot lead into '{OPAQUE}', which is not interpreted")
        raw, hint = self.tree, type(self.tree)
        for depth, part in enumerate(path):
            if is_reference(raw):
                raw = self.value(path[:depth], raw, hint)
                if raw is _FAILED:
                    return raw
            if (found := find(raw, (part,), ABSENT)) is ABSENT:
                advice = did_you_mean_path(path, all_paths(self.tree), shown="${{{}}}")
                if len(path) == 1 and (text in os.environ or text.isupper()):
                    advice = f"write ${{oc.env:{text}}} for the environment variable"
                return self.fail(
                    f"${{{text}}} refers to '{format_path(path[: depth + 1])}', which does not exist", hint=advice
                )
            hint = child_hint(raw, part, hint)
            raw = found
        self.record_step(path)
        return self.value(path, raw, hint)

    def record_step(self, source: str | Path) -> None:
        self.sources[self.active[-1]].append(source)

    def fail(self, message: str, *, hint: str | None = None) -> Any:
        self.problems.append(Problem(format_path(self.active[-1]), message, hint=hint))
        return _FAILED


def _closing(text: str, start: int) -> int | None:
    """Returns the index of the brace that closes the ``${`` at index `start`; None if no brace closes it."""
    depth = 0
    for index in range(start, len(text)):
        if text.startswith("${", index):
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    return None
