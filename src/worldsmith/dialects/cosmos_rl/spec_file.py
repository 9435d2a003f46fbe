"""Reads a spec: a nested TOML, YAML or JSON file and dotted overrides, as typed classes with source positions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from worldsmith.config.command_line.overrides import Override, parse_overrides
from worldsmith.config.declare.configurable import ABSENT, Config, field_hints, find
from worldsmith.config.declare.value_types import fits, is_reference, mismatch, nested_config_classes
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.text_file import read_config_text
from worldsmith.config.toml.toml_text import Span, find_positions, parse_toml
from worldsmith.config.tree.checks import check_sections
from worldsmith.config.tree.paths import Path, forget_places, format_path, parse_path, starts_with
from worldsmith.config.tree.plain import required_fields
from worldsmith.config.tree.read_config import Reader, unset_fields, unset_tree
from worldsmith.config.tree.suggest import did_you_mean_path, nearest_path
from worldsmith.config.yaml.yaml_stack import set_override
from worldsmith.config.yaml.yaml_text import Document, read_yaml
from worldsmith.dialects.cosmos_rl import SUFFIXES
from worldsmith.dialects.cosmos_rl.names import (
    default_at,
    field_of,
    fields_of,
    in_keys,
    key_of,
    leaf_keys,
    spec_key,
    spec_type_hint,
)
from worldsmith.dialects.cosmos_rl.policy import KEY as POLICY
from worldsmith.dialects.translation import ForeignSpec, SpecForm, is_one_of


@dataclass(slots=True)
class Spec(ForeignSpec):
    """Spec file of Cosmos-RL or TAO after reading: its values, their source positions, and its mistakes.

    Paths consist of Config field names, such as ("train", "policy", "type_"). An omitted key has the default of the
    spec class.
    """

    form: SpecForm
    root: Any = None
    places: dict[Path, Place] = field(default_factory=dict)
    """Source positions of the stated values, including keys that no class declares."""
    broken: list[Path] = field(default_factory=list)

    @property
    def keys(self) -> tuple[str, ...]:
        return leaf_keys(self.form.spec)

    def is_broken(self, key: str) -> bool:
        """Returns whether the value of a key, of a section above it or of a key below it is known to be invalid."""
        path = fields_of(key)
        return any(starts_with(bad, path) or starts_with(path, bad) for bad in self.broken)

    def get(self, key: str) -> Any:
        """Returns the value of a dotted key; None below a section that does not exist."""
        return find(self.root, fields_of(key))

    def default(self, key: str) -> Any:
        """Returns the default of a dotted key in the spec class; None for a required key."""
        return default_at(self.form.spec, fields_of(key))

    def is_stated(self, key: str) -> bool:
        """Returns whether the file or an override sets the key, or a key below it."""
        path = fields_of(key)
        return any(starts_with(known, path) for known in self.places)

    def place(self, key: str) -> Place:
        """Returns the file and line that set the key; for an omitted key, a `Place` that only names the key."""
        path = fields_of(key)
        found = self.places.get(path) or next((p for known, p in self.places.items() if starts_with(known, path)), None)
        return found or Place(f"{self.source} (omitted: {key})")


def read_spec(form: SpecForm, file: str, words: Sequence[str] = ()) -> Spec:
    """Reads a spec file and applies overrides to it.

    Args:
        form: Format of the spec.
        file: Path of a TOML, YAML or JSON file.
        words: Overrides with dotted keys, such as ``train.epoch=2`` or ``~vision.fps``.

    Returns:
        The spec. All mistakes in it are in `problems`, with keys and source positions.

    Raises:
        ConfigError: If the file cannot be read or parsed.
    """
    problems: list[Problem] = []
    document = read_document(file)
    if form.wrapper:
        document = _unwrap(document, form.wrapper)
    for alias, key in form.aliases.items():
        _move(document, parse_path(alias), parse_path(key), problems)
    for override in parse_overrides(words, problems):
        _apply(document, form, override, problems)
    spec = Spec(file, form.rules, form, problems=problems, open=_take_open(document, form))
    _take_outside(spec, document)
    for key, sections in form.instead.items():
        for name, values in sections.items() if document.data.get(key) else ():
            section = document.data.setdefault(name, {})
            if isinstance(section, dict):
                document.data[name] = {**values, **section}
    inner = Document({}, {})
    _rename(spec, form.spec, document, inner, document.data, inner.data, (), ())
    default = unset_tree(form.spec)
    reader = Reader(problems, merge=True, spans=inner.spans, places=spec.places)
    root = reader.section([form.spec], default, inner.data)
    spec.root = root if isinstance(root, Config) else default
    _refuse_references(spec)
    problems += _missing(spec.root, problems)
    unset = [path for path, _ in unset_fields(spec.root)]
    spec.broken = [*unset, *(problem.keys for problem in problems if problem.path)]
    complaints = check_sections(spec.root, spec.broken)
    spec.broken += [parse_path(concern) for problem in complaints for concern in problem.concerns]
    problems += complaints
    spec.problems = [
        in_keys(_with_keys(problem, form.spec)).at(Place(file)) for problem in locate(problems, spec.places)
    ]
    return spec


def _missing(root: Config, problems: Sequence[Problem]) -> list[Problem]:
    """Returns a problem for each required value that the spec lacks; for a missing section, one per required key in it.

    Paths below which `problems` already has a problem are skipped.
    """
    broken = [problem.keys for problem in problems if problem.path]
    found = []
    for path, _ in unset_fields(root):
        sections = nested_config_classes(spec_type_hint(type(root), path))
        below = [(*path, name) for name in required_fields(sections[0])] if sections else [path]
        for where in below if not any(starts_with(bad, path) for bad in broken) else []:
            hint = f"set it, or add {spec_key(where)}=VALUE"
            found.append(Problem(format_path(where), "the value is missing", hint=hint))
    return found


def _with_keys(problem: Problem, cls: type[Config]) -> Problem:
    """Returns a problem; if a value was given instead of a section of `cls`, its hint lists the section's keys."""
    sections = nested_config_classes(spec_type_hint(cls, problem.keys)) if problem.path and problem.expected else []
    if not sections or problem.hint:
        return problem
    keys = ", ".join(f"{problem.path}.{key_of(name)}" for name in field_hints(sections[0]))
    return replace(problem, expected="a section (a table of its keys)", hint=f"its keys are {keys}")


def read_document(file: str) -> Document:
    """Reads a TOML, YAML or JSON file as nested plain data with source positions.

    Raises ConfigError if the file cannot be parsed, has another suffix, or does not hold a table.
    """
    suffix = next((suffix for suffix in SUFFIXES if file.lower().endswith(suffix)), "")
    if not suffix:
        raise ConfigError([Problem("", "a spec must be a .toml, .yaml or .json file", place=Place(file))])
    text = read_config_text(file)
    if suffix == ".toml":
        document = Document(parse_toml(text, file), find_positions(text, file))
    elif suffix == ".json":
        from worldsmith.config.write.json_text import read_json

        document = read_json(text, file)
    else:
        document = read_yaml(text, file)
    if not isinstance(document.data, dict):
        raise ConfigError([mismatch((), "sections with their keys", document.data).at(Place(file))])
    return Document(copy.deepcopy(document.data), dict(document.spans))


def _unwrap(document: Document, wrapper: str) -> Document:
    """Returns the document with the keys below the top-level key `wrapper` moved to the top level."""
    inner = document.data.get(wrapper)
    if not isinstance(inner, dict):
        return document
    spans = {path: span for path, span in document.spans.items() if path[:1] != (wrapper,)}
    spans |= {path[1:]: span for path, span in document.spans.items() if path[:1] == (wrapper,) and path[1:]}
    return Document({**{key: value for key, value in document.data.items() if key != wrapper}, **inner}, spans)


def _apply(document: Document, form: SpecForm, override: Override, problems: list[Problem]) -> None:
    """Sets or removes the value of one override in the document, in place; mistakes are added to `problems`.

    The dotted key of an override is always a path, never a single key that contains dots.
    """
    wrapped = len(override.path) > 1 and override.path[0] == form.wrapper and form.wrapper not in document.data
    shown = format_path(override.path[1:] if wrapped else override.path)
    shown = form.aliases.get(shown, shown)
    path = parse_path(shown)
    parent: Any = document.data
    for part in path[:-1]:
        if override.action != "~" and isinstance(parent, dict) and parent.get(part) is None:
            parent[part] = {}
        parent = parent.get(part) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or not isinstance(path[-1], str):
        text = "the key is below a value that is not a table; set the complete value instead"
        if override.action == "~":
            text = "the spec does not have this key"
        problems.append(Problem(shown, text, place=override.place))
        return
    if override.action == "~":
        if path[-1] not in parent:
            problems.append(Problem(shown, "the spec does not have this key", place=override.place))
        parent.pop(path[-1], None)
        forget_places(document.spans, path)
        return
    hint = spec_type_hint(form.spec, tuple(field_of(part) if isinstance(part, str) else part for part in path))
    if set_override(document, parent, path, override, hint, problems):
        for length in range(1, len(path)):
            document.spans.setdefault(path[:length], Span(override.place, override.place))


def _move(document: Document, source: Path, target: Path, problems: list[Problem]) -> None:
    """Moves the value at the alias path `source` to the path `target`, in place; if both are set, adds a problem.

    The section of the alias is removed if it becomes empty.
    """
    above: Any = find(document.data, source[:-1])
    if not isinstance(above, dict) or source[-1] not in above:
        return
    span, value = document.spans.get(source), above.pop(source[-1])
    if source[:-1] and not above:
        document.data.pop(str(source[0]))
    parent: Any = document.data
    for part in target[:-1]:
        parent = parent.setdefault(part, {}) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or target[-1] in parent:
        text = f"the key is an alias of {format_path(target)}, which is also set"
        problems.append(
            Problem(format_path(source), text, hint="keep one of the two", place=span.key if span else None)
        )
        return
    parent[target[-1]] = value
    for path in [path for path in document.spans if starts_with(path, source)]:
        document.spans[(*target, *path[len(source) :])] = document.spans.pop(path)


def _take_open(document: Document, form: SpecForm) -> dict[str, Any]:
    """Removes placeholder values of templates, which mean "not set", from the document; returns them by dotted key."""
    found = {}
    for key, value in form.left_open.items():
        path = parse_path(key)
        parent = find(document.data, path[:-1])
        if isinstance(parent, dict) and path[-1] in parent and is_one_of(parent[path[-1]], (value,)):
            found[key] = parent.pop(path[-1])
            forget_places(document.spans, path)
    return found


def _take_outside(spec: Spec, document: Document) -> None:
    """Moves the keys that the document sets and that have a rule but no Config field to `spec.outside`, with values."""
    for rule in spec.form.rules:
        for key in rule.keys if rule.outside else ():
            path = parse_path(key)
            parent = find(document.data, path[:-1])
            if isinstance(parent, dict) and path[-1] in parent:
                spec.outside[key] = parent.pop(path[-1])
                if span := document.spans.get(path):
                    spec.places[fields_of(key)] = span.key


def _rename(
    spec: Spec,
    cls: type[Config],
    document: Document,
    inner: Document,
    data: dict[str, Any],
    into: dict[str, Any],
    path: Path,
    fields: Path,
) -> None:
    """Copies a section recursively with field names instead of keys; unknown keys become problems of `spec`.

    Args:
        spec: The spec, to which problems and accepted unknown keys are added.
        cls: Config class of the section.
        document: Document to read from, for source positions.
        inner: Document that receives source positions by field path.
        data: Content of the section, by key.
        into: Receives the content of the section, by field name.
        path: Key path of the section.
        fields: Field path of the section.
    """
    free = spec_key(fields) in spec.form.free
    siblings = [(*path, key_of(name)) for name in field_hints(cls)]
    for key, value in data.items():
        name = field_of(str(key))
        here, there = (*path, key), (*fields, name)
        span = document.spans.get(here)
        known = name in field_hints(cls)
        if not known and "." in str(key):
            text = "the key contains dots, but a key in a file is not a path"
            hint = f"write nested tables, {' -> '.join(key.split('.'))}, or {key}=… on the command line"
            spec.problems.append(Problem(format_path(here), text, hint=hint, place=span.key if span else None))
            continue
        if not known and not (free and nearest_path(here, siblings) is None):
            below = list(value) if isinstance(value, dict) and _is_table_of_aliases(spec.form, here) else []
            for unknown in [(*here, name) for name in below] or [here]:
                place = document.spans.get(unknown, span)
                spec.problems.append(_unknown(spec, unknown, siblings, place).at(place.key if place else None))
            continue
        if not known:
            spec.outside[format_path(here)] = value
            if span:
                spec.places[there] = span.key
            continue
        sections = nested_config_classes(field_hints(cls)[name]) if known else []
        if sections and isinstance(value, dict):
            into[name] = {}
            if span:
                inner.spans[there] = span
            _rename(spec, sections[0], document, inner, value, into[name], here, there)
            continue
        into[name] = value
        for known_path, known_span in document.spans.items():
            if starts_with(known_path, here):
                inner.spans[(*there, *known_path[len(here) :])] = known_span


def _is_table_of_aliases(form: SpecForm, path: Path) -> bool:
    """Returns whether an alias of the format (alternative spelling of a key) lies below the key path `path`."""
    return any(starts_with(parse_path(alias), path) and parse_path(alias) != path for alias in form.aliases)


def _unknown(spec: Spec, path: Path, siblings: list[Path], span: Span | None) -> Problem:
    """Returns the problem for an unknown key, with the most similar known key as a hint.

    Args:
        spec: The spec.
        path: Key path of the unknown key.
        siblings: Key paths of the known keys of the same section.
        span: Source position of the key; None: not known.
    """
    form, is_override = spec.form, span is not None and span.key.file == "override"
    others = [key for rule in form.rules if rule.outside and rule.outcome != "dead" for key in rule.keys]
    names = [*leaf_keys(form.spec), *form.aliases, *others, *([POLICY] if is_override else [])]
    near = did_you_mean_path(path, [*siblings, *map(parse_path, names)])
    if siblings and siblings[0][:-1] != path[:-1]:
        siblings = [known for name in form.aliases if (known := parse_path(name))[:-1] == path[:-1]]
    listing = ", ".join(str(sibling[-1]) for sibling in siblings)
    where = f"[{format_path(path[:-1])}]" if path[:-1] else "the spec"
    return Problem(format_path(path), f"{where} has no key '{path[-1]}'", hint=near or f"{where} accepts: {listing}")


def _refuse_references(spec: Spec) -> None:
    """Adds a problem to `spec` for each ``${…}`` reference in a field that is not a string.

    Rules compute with values before references are resolved.
    """
    for path in list(spec.places):
        value = find(spec.root, path, ABSENT)
        if is_reference(value) and not fits(value, spec_type_hint(spec.form.spec, path)):
            text = "in a spec, a reference is only allowed as the value of a string; write the value"
            spec.problems.append(Problem(format_path(path), text, place=spec.places[path]))
