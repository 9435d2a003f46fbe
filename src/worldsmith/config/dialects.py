"""Dialects: config files of other systems, converted to the typed config with the source position of every value.

There are two types. A `Dialect` is a function that moves the keys of merged YAML files (a YAML stack) to the config;
keys that it does not read are reported as unknown, so no key is dropped without a message. The first one is that of
this package, whose files already use the names of the typed config. A `RunDialect` reads files itself and starts from
one recipe: those of the package are subpackages of `worldsmith/dialects/` whose `__init__.py` has
`DIALECT = RunDialect(...)`.

Other packages provide the first type, through an entry point of the group ``worldsmith.dialects``: name = module.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import worldsmith
from worldsmith import ROOT
from worldsmith.config.declare.class_tags import class_of
from worldsmith.config.declare.configurable import ABSENT, field_names, find
from worldsmith.config.errors import ConfigError, Problem
from worldsmith.config.toml.toml_text import Span
from worldsmith.config.tree.config_draft import Draft
from worldsmith.config.tree.paths import Path, flatten, format_path, parse_path, starts_with
from worldsmith.config.tree.suggest import did_you_mean, did_you_mean_path
from worldsmith.config.yaml.yaml_text import Document

OURS = "worldsmith"
GROUP = "worldsmith.dialects"
"""Entry point group of dialects in other packages: name = module."""
CHOICE = "dialect"
"""Key at the top of a file that names the dialect, if the other keys are ambiguous."""

Claims = Callable[[dict[str, Any]], bool]
Reader = Callable[["StackTranslation"], None]
ATTRIBUTE = "DIALECT"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDialect:
    """Config format of another training system: the functions that recognize its files and read them as a run config.

    `claims` and `read` contain the name of a function as "package.module:function", so that it is imported only when
    it is needed. `claims` gets the list of file paths and returns a bool. `read` gets the file paths and the overrides,
    and returns a `Draft` with the config before references are resolved.
    """

    name: str
    recipe: str
    """Recipe from which the config starts; it provides the settings for which these files have no key."""
    suffixes: tuple[str, ...]
    """Suffixes of the dialect's files, in lower case. For files with other suffixes, `claims` is not called."""
    claims: str
    """Function (files) -> bool: returns whether the content of the files belongs to this dialect."""
    read: str
    """Function (files, overrides) -> Draft: reads the config of the run that the files describe.

    The overrides have names of the other system, such as ``train.epoch=2``. The function raises ConfigError for a file
    that cannot be read; other mistakes are in the draft.
    """
    is_spec: bool = False
    """Whether this dialect reads the files of ``--spec`` that no dialect claims, and then reports their mistakes."""

    def claims_files(self, files: Sequence[str]) -> bool:
        """Returns whether this dialect reads the files, which depends on their suffixes and content.

        Args:
            files: Paths of config files.
        """
        if not all(file.lower().endswith(self.suffixes) for file in files):
            return False
        return bool(pkgutil.resolve_name(self.claims)(files))

    def read_files(self, files: Sequence[str], words: Sequence[str]) -> Draft:
        """Reads the files as the config of a run, before references are resolved and checks have run.

        Args:
            files: Paths of config files that the dialect claims.
            words: Overrides in the names of the other system, such as ``train.epoch=2``.

        Raises:
            ConfigError: If a file cannot be read; other mistakes are in the draft.
        """
        draft: Draft = pkgutil.resolve_name(self.read)(files, words)
        return draft


@dataclass(frozen=True, slots=True)
class Dialect:
    """Format of YAML files that are merged in order, with the function that moves their keys to the typed config.

    Attributes:
        name: Name of the format, which a file can give in the key ``dialect``.
        doc: Description in one line.
        claims: Function that returns whether the merged data (nested dicts) is in this format.
        read: Function that moves the keys of the `StackTranslation` that it gets; None: the files already use the keys
            of this package.
        module: Module that registered the dialect.
    """

    name: str
    doc: str
    claims: Claims
    read: Reader | None
    module: str


@dataclass(kw_only=True)
class Translation:
    """Result of converting settings of another system: the typed config as plain data, its positions and mistakes."""

    data: dict[str, Any] = field(default_factory=dict)
    """Translated settings, as nested dicts with the names of the config."""
    spans: dict[Path, Span] = field(default_factory=dict)
    """Source position of each value, by config path."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def set_value(self, target: Path, value: Any) -> None:
        """Sets a value in `data` by its path in the typed config."""
        node = self.data
        for part in target[:-1]:
            node = node.setdefault(str(part), {})
        node[str(target[-1])] = value

    def get_warnings(self) -> list[str]:
        """Returns the warnings about the conversion that users should see.

        A report on every key, which a subclass such as `SpecTranslation` also has, is not part of the result.
        """
        return self.warnings


@dataclass
class StackTranslation(Translation):
    """The merged YAML files of another system (`source`), while their values are converted to the typed config.

    Paths are strings, such as ``args.lr``. `get`, `move`, `ignore` and `refuse` add the path in the files that they get
    to `known`, even if the files omit it. `finish` reports the keys of the files that are not in `known`.
    """

    source: Document
    known: set[Path] = field(default_factory=set)

    def get(self, path: str, default: Any = None) -> Any:
        """Returns the value of the files at `path`, or `default` if the files omit it; adds `path` to `known`."""
        parts = parse_path(path)
        self.known.add(parts)
        found = find(self.source.data, parts, ABSENT)
        return default if found is ABSENT else found

    def put(self, path: str, value: Any, *, source: str | None = None) -> None:
        """Sets a value of the typed config.

        Args:
            path: Path in the typed config, or ``recipe``.
            value: Value to set.
            source: Path in the source, at whose position mistakes in the value are reported; None: no position.
        """
        target = parse_path(path)
        self.set_value(target, value)
        origin = parse_path(source) if source else None
        for known, span in self.source.spans.items() if origin else ():
            if starts_with(known, origin or ()):
                self.spans[(*target, *known[len(origin or ()) :])] = span

    def move(self, source: str, target: str, convert: Callable[[Any], Any] | None = None) -> None:
        """Sets a value of the typed config to the value that the files have at `source`, unless they omit it.

        `source` is added to the known keys; the data of the files is not modified.

        Args:
            source: Path in the files.
            target: Path in the typed config.
            convert: Function that converts the value. If it raises ValueError or TypeError, a problem is added and no
                value is set. None: the value is not converted.
        """
        value = self.get(source, ABSENT)
        if value is ABSENT:
            return
        try:
            self.put(target, convert(value) if convert else value, source=source)
        except (ValueError, TypeError) as error:
            self.refuse(source, str(error))

    def ignore(self, path: str, reason: str) -> None:
        """Adds `path` to the known keys; if the files set it, adds a warning that it has no effect, with the reason."""
        if self.get(path, ABSENT) is not ABSENT:
            span = self.source.spans.get(parse_path(path))
            where = f"{span.key.file}:{span.key.line}: " if span else ""
            self.warnings.append(f"{where}{path} has no effect: {reason}")

    def refuse(self, path: str, reason: str) -> None:
        """Adds `path`, an unsupported key, to the known keys; if the files set it, adds a problem with the reason."""
        if self.get(path, ABSENT) is not ABSENT:
            self.problem(path, reason)

    def problem(self, path: str, message: str, hint: str | None = None) -> None:
        """Adds a mistake at the source position of a path.

        Args:
            path: Path in the source.
            message: What is wrong.
            hint: What the user should do.
        """
        span = self.source.spans.get(parse_path(path))
        self.problems.append(Problem(path, message, hint=hint, place=span.value if span else None))

    def finish(self) -> None:
        """Adds a problem for each key of the files that is not in `known`.

        If `known` has no path in a section of the files, there is only one problem for the section.
        """
        sections = {path[:length] for path in self.known for length in range(len(path))}
        reported: set[Path] = set()
        for leaf, _ in flatten(self.source.data):
            if any(starts_with(leaf, path) for path in self.known):
                continue
            unknown = next((leaf[:n] for n in range(1, len(leaf) + 1) if leaf[:n] not in sections), None)
            if unknown is None or unknown in reported:
                continue
            reported.add(unknown)
            advice = did_you_mean_path(unknown, [*self.known, *(section for section in sections if section)])
            span = self.source.spans.get(unknown)
            message = "the dialect of these files does not have this key"
            self.problems.append(Problem(format_path(unknown), message, hint=advice, place=span.key if span else None))


_DIALECTS: dict[str, Dialect] = {}


def dialect(name: str, *, claims: Claims) -> Callable[[Reader], Reader]:
    """Decorator that registers a function that converts config files in the format of another program.

    The function gets a `StackTranslation` of the merged YAML files (later files override earlier ones) and sets the
    values of the typed config in it; it returns nothing.

    Args:
        name: Unique name, which a file can give in the key ``dialect``.
        claims: Returns, for the merged data, whether the files are in this format.

    Raises:
        ValueError: If another module has registered the name.
    """

    def register(read: Reader) -> Reader:
        taken = _DIALECTS.get(name)
        if taken and taken.module != read.__module__:
            raise ValueError(f"dialect '{name}' of {read.__module__} is already registered by {taken.module}")
        doc = (inspect.getdoc(read) or "").partition("\n")[0]
        _DIALECTS[name] = Dialect(name, doc, claims, read, read.__module__)
        return read

    return register


def dialect_names() -> list[str]:
    """Returns the names of all dialects of YAML files: the built-in one first, then those of other packages.

    Imports the installed packages that provide dialects.
    """
    _load_installed()
    return list(_DIALECTS)


@cache
def shipped_dialects() -> list[RunDialect]:
    """Returns the `RunDialect` of each subpackage of `worldsmith.dialects`, sorted by name of the subpackage."""
    package = importlib.import_module(worldsmith.DIALECTS)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)
    return [getattr(importlib.import_module(f"{worldsmith.DIALECTS}.{name}"), ATTRIBUTE) for name in names]


def find_run_dialect(files: Sequence[str], *, is_spec: bool = False) -> RunDialect | None:
    """Returns the first `RunDialect` that claims the files; None if no dialect claims them.

    Args:
        files: Paths of config files.
        is_spec: Whether the files were given with ``--spec``: if no dialect claims them, the dialect for specs is
            returned.
    """
    found = next((dialect for dialect in shipped_dialects() if dialect.claims_files(files)), None)
    return found or (next(dialect for dialect in shipped_dialects() if dialect.is_spec) if is_spec else None)


def detect_dialect(data: dict[str, Any], chosen: Any = None) -> Dialect:
    """Returns the dialect of merged files.

    Args:
        data: Merged content of the files.
        chosen: Name of the dialect in the files; None: the only dialect that claims the data.

    Raises:
        ConfigError: If `chosen` does not exist, or no dialect or several dialects claim the data.
    """
    names = dialect_names()
    if chosen is not None:
        if chosen in names:
            return _DIALECTS[chosen]
        advice = did_you_mean(str(chosen), names) or f"available: {', '.join(names)}"
        raise ConfigError([Problem(CHOICE, f"unknown dialect '{chosen}'", hint=advice), *_load_installed()])
    claiming = [found for found in _DIALECTS.values() if found.claims(data)]
    if len(claiming) == 1:
        return claiming[0]
    if claiming:
        message = f"these files match several dialects: {', '.join(found.name for found in claiming)}"
        raise ConfigError([Problem("", message, hint=f"write `{CHOICE}: {claiming[0].name}` at the top of one file")])
    listing = "; ".join(f"{found.name} ({found.doc})" if found.doc else found.name for found in _DIALECTS.values())
    near = [f"for '{key}': {found}" for key in data if (found := did_you_mean(key, _own_keys()))]
    message = f"no supported config format has the keys {', '.join(map(repr, data)) or '(none)'}"
    advice = "; ".join([*near[:3], f"dialects: {listing}"])
    raise ConfigError([Problem("", message, hint=advice), *_load_installed()])


def translate_stack(chosen: Dialect, source: Document) -> StackTranslation:
    """Converts merged files of another system to the typed config.

    Args:
        chosen: Dialect of the files.
        source: Merged content of the files.

    Returns:
        The conversion; its `problems` contain the mistakes.
    """
    translation = StackTranslation(source)
    if chosen.read is not None:
        chosen.read(translation)
        translation.finish()
    return translation


def _is_ours(data: dict[str, Any]) -> bool:
    """Returns whether merged files use the keys of this package: `recipe`, `type`, or the sections of the config.

    If `model` is the only such key, it must contain `name` or `config`, since other systems have a `model` section too.
    """
    own = [key for key in data if key in _own_keys()]
    if own == ["model"]:
        model = data["model"]
        return isinstance(model, dict) and ("name" in model or "config" in model)
    return bool(own)


def _own_keys() -> list[str]:
    return ["recipe", "type", *field_names(class_of(ROOT))]


def _load_installed() -> list[Problem]:
    from worldsmith.config.recipes.packages import load_installed

    return load_installed(GROUP, "dialect")


_DIALECTS[OURS] = Dialect(OURS, "`recipe: NAME` and sections of the config", _is_ours, None, __name__)
