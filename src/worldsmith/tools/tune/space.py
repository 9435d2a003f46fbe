"""Search space: the marked fields of a run, or of its spec, and the fields that `--search` arguments add.

train.optm_lr, learning_rate                   keys of a spec, also by their aliases
optimizer.lr                                   as the field's own mark states
optimizer.lr=log:1e-6..1e-3                    log-uniform
optimizer.weight_decay=0..0.1                  uniform
model.config.lora_rank=pow2:4..64              powers of two
scheduler=LambdaLinear|LambdaCosine@3          choices, the second three times as likely as the first
model.config.lora_alpha=model.config.lora_rank*1|2|4    the other field's value times a choice
… if model.config.lora_enabled=true            a condition
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args, get_origin

from worldsmith.config.command_line.class_choice import named_class
from worldsmith.config.command_line.literals import decode, read_text
from worldsmith.config.command_line.overrides import find_parent, no_such_key
from worldsmith.config.declare.configurable import ABSENT, Config, find, owner_of
from worldsmith.config.declare.ranges import Mark, annotated_hints
from worldsmith.config.declare.search import Search, search_space
from worldsmith.config.declare.value_types import describe_hint, fits, nested_config_classes, union_members
from worldsmith.config.errors import Problem, UserError
from worldsmith.config.tree.paths import Path, format_path, parse_path
from worldsmith.config.write.values import WORD, write
from worldsmith.dialects.cosmos_rl.names import fields_of, in_keys
from worldsmith.tools.tune.dimension import Dimension
from worldsmith.tools.tune.source import SpecFields

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution

_WORD_FORM = re.compile(r"([^=]+?)(?:=(.+?))?(?:\s+if\s+(.+=.*))?", re.DOTALL)
_SPAN = re.compile(r"(?:(log|pow2):)?([^|]+?)\.\.([^|]+)")
_RATIO = re.compile(r"([A-Za-z_][\w.]*)\s*\*\s*(.+)")
FORMS = (
    "LOW..HIGH, log:LOW..HIGH, pow2:LOW..HIGH, A|B|C (B@3: three times as likely) or OTHER*A|B (multiples of the field "
    "OTHER)"
)


class Space:
    """Search space of a run: its dimensions, sorted so that each follows those in its condition and its ratio.

    Names are config paths of the run or, with `spec`, also keys of the training spec that describes the run.
    """

    def __init__(
        self,
        tree: Config,
        words: Sequence[str] = (),
        *,
        keep: Sequence[str] = (),
        marked: bool = True,
        spec: SpecFields | None = None,
    ):
        """Builds the dimensions of the search.

        Args:
            tree: Unresolved config of the run.
            words: `--search` arguments.
            keep: Fields with `Search` annotations that are not searched.
            marked: Whether fields with enabled `Search` annotations are searched in addition to those in `words`.
            spec: Keys of the training spec (Cosmos-RL or TAO) that describes the run; None if no spec does.

        Raises:
            UserError: For an invalid argument, or if there is no field to search.
        """
        self.tree, self.spec = tree, spec
        self.kept: list[str] = []
        """Lines "PATH: REASON" for searchable fields that are not searched, except those that the user excluded."""
        marks = {found.path: (found.marks, self.hint(found.path)) for found in search_space(tree)}
        own = {found.path: (found.marks, self.hint(found.path)) for found in spec.search_space()} if spec else marks
        marks |= own
        chosen = {path: found for path, found in own.items() if marked and any(mark.on for mark in found[0])}
        for word in keep:
            path = self.full(word)
            if path not in marks:
                raise UserError(f"--keep {word}: the field is not searchable; {listed(chosen, 'searched')}")
            chosen.pop(path, None)
        given: dict[str, str] = {}
        for word in words:
            path, mark = self.read(word)
            if path in given:
                raise UserError(f"--search {word}: {path} occurs twice")
            given[path] = word
            if mark is None and path not in marks:
                raise UserError(f"--search {word}: the field has no range of its own; write {path}=… with {FORMS}")
            if mark is not None:
                require_within_limits(word, mark, self.hint(path, declared=True))
            chosen[path] = marks[path] if mark is None else ((mark,), self.hint(path))
        self.leave_out(chosen, given)
        found = [
            Dimension(f"{path} if {mark.when}" if len(found) > 1 and mark.when else path, path, mark, hint)
            for path, (found, hint) in ordered(chosen).items()
            for mark in found
        ]
        found.sort(key=lambda dimension: not nested_config_classes(dimension.hint))  # a class before its fields
        self.dimensions: list[Dimension] = []
        settled: set[str] = set()  # fields with a mark that always holds, so that later marks have no effect
        for dimension in found:
            may_change, holds = dimension.mark.condition[0] in chosen, self.holds(dimension.mark, {})
            if dimension.path not in settled and (holds or may_change):
                self.dimensions.append(dimension)
            if holds and not may_change:
                settled.add(dimension.path)
        for idle in (d for d in found if d.path in given and d.path not in {d.path for d in self.dimensions}):
            raise UserError(
                f"--search {idle.path}: its condition {idle.mark.when} is never true, so it is not searched"
            )
        if not self.dimensions:
            raise UserError(
                "no setting to search: no searchable field of this run is left; add --search with a range, such as "
                f"--search optimizer.lr=log:1e-6..1e-3; {listed(marks, 'searchable')}"
            )

    @property
    def paths(self) -> list[str]:
        """Distinct paths of the searched fields."""
        return list(dict.fromkeys(dimension.path for dimension in self.dimensions))

    def leave_out(self, chosen: dict[str, Any], given: Mapping[str, str]) -> None:
        """Removes fields that cannot be searched from `chosen` (path → annotations and type), in place.

        These are fields whose value is a list or a section, unless `--search` names them, and keys of a training spec
        whose config field is also set by an override or searched. `given` has the `--search` arguments by path. Raises
        UserError if `--search` names such a key.
        """
        searched = [parse_path(path) for path in given if self.spec and self.spec.key(path) is None]
        for path in list(chosen):
            value = self.value(path, {})
            to = self.spec.replaced_by(path, [*self.spec.given, *searched]) if self.spec else None
            if to is not None and path in given:
                raise UserError(
                    f"--search {given[path]}: {format_path(to)} is also given and has precedence; omit one of them"
                )
            if to is not None:
                self.kept.append(f"{path}: {format_path(to)} is given and has precedence")
            elif isinstance(value, dict | list) and path not in given:
                self.kept.append(f"{path}: its value is a list or a table; give a range with --search {path}=…")
            else:
                continue
            del chosen[path]

    def read(self, word: str) -> tuple[str, Search | None]:
        """Parses a `--search` argument to (path, range); the range is None if the argument has only a path.

        The `Search` annotations of the field then apply. Raises UserError if the argument is invalid.
        """
        match = _WORD_FORM.fullmatch(word.strip())
        if match is None:
            raise UserError(f"--search {word}: expected PATH=RANGE, where RANGE is {FORMS}")
        path, text, when = self.full(match[1].strip()), match[2], match[3]
        hint = self.hint(path, word)
        if text is None:
            if when:
                raise UserError(f"--search {word}: a condition requires a range")
            return path, None
        if when:
            other, _, value = when.partition("=")
            self.hint(self.full(other.strip()), word)
            when = f"{self.full(other.strip())}={value.strip()}"
        try:
            mark = self.range(text.strip(), hint, word)
            return path, replace(mark, when=when or "")
        except ValueError as error:
            reason = str(error).removeprefix("Search(").partition("): ")[2] or str(error)
            raise UserError(f"--search {word}: {reason}") from None

    def range(self, text: str, hint: Any, word: str) -> Search:
        """Parses the range after the equals sign of a `--search` argument.

        Args:
            text: The range, such as "log:1e-6..1e-3" or "A|B".
            hint: Type of the field.
            word: The complete argument, for error messages.

        Raises:
            ValueError: If the range is invalid.
            UserError: If a ratio names an unknown field.
        """
        if span := _SPAN.fullmatch(text):
            low, high = (decode(end.strip()) for end in span.groups()[1:])
            if not all(type(end) in (int, float) for end in (low, high)):
                raise ValueError(f"the limits of a range must be numbers, found '{span[2]}' and '{span[3]}'")
            if not low < high:
                raise ValueError(f"the lower limit {low:g} is not below the upper limit {high:g}")
            if not any(fits(end, hint) for end in (1, 1.5)):
                raise ValueError("the field is not a number; write choices as A|B|C")
            if not fits(1.5, hint) and not all(float(end).is_integer() for end in (low, high)):
                raise ValueError("the field accepts only integers")
            return Search(low=low, high=high, log=span[1] == "log", power_of_two=span[1] == "pow2")
        ratio = _RATIO.fullmatch(text)
        if ratio:
            self.hint(self.full(ratio[1]), word)
        parts = (ratio[2] if ratio else text).split("|")
        pairs = [part.rpartition("@") if "@" in part else (part, "", "1") for part in parts]
        choices = [self.choice(value.strip(), float | int if ratio else hint) for value, _, _ in pairs]
        if len(choices) < 2 and not ratio:
            raise ValueError(f"a search needs more than one choice; expected {FORMS}")
        try:
            weights = [float(weight) for _, _, weight in pairs]
        except ValueError:
            raise ValueError("a weight after @ must be a number") from None
        alike = len(set(weights)) == 1
        return Search(choices=choices, weights=() if alike else weights, ratio_of=self.full(ratio[1]) if ratio else "")

    def choice(self, text: str, hint: Any) -> Any:
        """Parses a choice of a `--search` argument to a value of a field with the type `hint`.

        For a config section, the value is the name of a class. Raises ValueError if the field does not accept the
        value.
        """
        if nested_config_classes(hint):
            found = named_class(text, hint, ())
            if isinstance(found, Problem):
                raise ValueError(found.hint or found.message)
            return text
        value = read_text(text, hint)
        if not fits(value, hint):
            raise ValueError(f"the field accepts {describe_hint(hint)}, not {text}")
        return value

    def hint(self, path: str, word: str = "", *, declared: bool = False) -> Any:
        """Returns the type of a field.

        Args:
            path: Name of the field.
            word: `--search` argument, for the error message; "": the message contains `path` instead.
            declared: Whether the type includes the annotations of its declaration, such as limits.

        Raises:
            UserError: If the field does not exist.
        """
        problems: list[Problem] = []
        try:
            root, keys = self.locate(path)
        except ValueError as error:
            raise UserError(f"--search {word or path}: {error}") from None
        found = find_parent(root, keys, problems)
        if found is None or find(root, keys, ABSENT) is ABSENT:
            problem = in_keys(problems[0] if problems else no_such_key(root, keys))
            raise UserError(f"--search {word or path}: {problem.message}{f'; {problem.hint}' if problem.hint else ''}")
        parent, hint = found
        return annotated_hints(type(parent))[str(keys[-1])] if declared and isinstance(parent, Config) else hint

    def full(self, name: str) -> str:
        """Returns the full key of the training spec for a key or its alias; any other name is returned unchanged."""
        return (self.spec and self.spec.key(name)) or name

    def locate(self, path: str) -> tuple[Config, Path]:
        """Returns (config of the run or spec that has the field, path of the field in this config).

        Raises ValueError if `path` is not a valid path.
        """
        if self.spec is not None and self.spec.key(path) is not None:
            return self.spec.spec.root, fields_of(path)
        return self.tree, parse_path(path)

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Returns the settings that Optuna suggests for a trial, as values by config path.

        Whether they are valid in combination is not checked.
        """
        settings: dict[str, Any] = {}
        for dimension in self.active(settings):
            settings[dimension.path] = dimension.value(dimension.suggest(trial), self.base(dimension, settings))
        return settings

    def active(self, settings: Mapping[str, Any]) -> Iterator[Dimension]:
        """Yields the dimensions whose condition holds for `settings` (values by path), at most one for each field.

        Conditions are evaluated one after the other, so the caller may add values to `settings` between them.
        """
        taken: set[str] = set()
        for dimension in self.dimensions:
            if dimension.path not in taken and self.holds(dimension.mark, settings):
                taken.add(dimension.path)
                yield dimension

    def untouched(self) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        """Returns (suggestions that reproduce the baseline, their Optuna distributions), both by dimension name.

        Dimensions that cannot produce the baseline's value are omitted.
        """
        drawn: dict[str, Any] = {}
        distributions: dict[str, BaseDistribution] = {}
        for dimension in self.active({}):
            value = dimension.drawn(self.value(dimension.path, {}), self.base(dimension, {}))
            if value is not None:
                drawn[dimension.name], distributions[dimension.name] = value, dimension.distribution()
        return drawn, distributions

    def holds(self, mark: Search, settings: Mapping[str, Any]) -> bool:
        """Returns whether the condition of a `Search` annotation holds with these settings (values by path)."""
        path, wanted = mark.condition
        value = self.value(path, settings) if path else ""
        return (value if isinstance(value, str) else write(value, WORD)) == wanted

    def base(self, dimension: Dimension, settings: Mapping[str, Any]) -> Any:
        """Returns the field value that the choices of a ratio are multiplied by; None if the dimension is not a ratio.

        `settings` are values by path that differ from the run's config.
        """
        return self.value(dimension.mark.ratio_of, settings) if dimension.mark.ratio_of else None

    def value(self, path: str, settings: Mapping[str, Any]) -> Any:
        """Returns the value of a field in a run with these settings (values by path); for a section, its class name."""
        found = settings.get(path, find(*self.locate(path)))
        return (owner_of(type(found)) or type(found)).__name__ if isinstance(found, Config) else found


def ordered(fields: Mapping[str, tuple[Sequence[Search], Any]]) -> dict[str, tuple[Sequence[Search], Any]]:
    """Returns `fields` sorted so that each field follows those in its conditions and ratios.

    `fields` maps config paths to (`Search` annotations, type). Raises UserError for a circular dependency.
    """
    found: dict[str, tuple[Sequence[Search], Any]] = {}

    def visit(path: str, above: tuple[str, ...]) -> None:
        if path in above:
            raise UserError(
                f"--search: circular dependency: {' depends on '.join([*above[above.index(path) :], path])}"
            )
        if path in fields and path not in found:
            for mark in fields[path][0]:
                for needed in mark.depends_on:
                    visit(needed, (*above, path))
            found[path] = fields[path]

    for path in fields:
        visit(path, ())
    return found


def require_within_limits(word: str, mark: Search, hint: Any) -> None:
    """Raises UserError if a value of the search range `mark` violates the limits that a field's type declares.

    `word` is the `--search` argument, `hint` the declared type.
    """
    ends = [] if mark.ratio_of else [*mark.choices, *(end for end in (mark.low, mark.high) if end is not None)]
    for limit in limits_of(hint):
        for end in ends:
            if not limit.allows(end):
                raise UserError(f"--search {word}: the field must be {limit}, found {end!r}")


def limits_of(hint: Any) -> Iterator[Any]:
    """Yields the limits that a field's type declares, such as a range of numbers."""
    if hasattr(hint, "__metadata__"):
        yield from (limit for limit in hint.__metadata__ if not isinstance(limit, Mark))
        yield from limits_of(get_args(hint)[0])
        return
    for member in union_members(hint) if get_origin(hint) is not None else ():
        if member is not hint:
            yield from limits_of(member)


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings (values by path) as overrides, PATH=VALUE."""
    return [f"{path}={write(value, WORD)}" for path, value in settings.items()]


def listed(paths: Mapping[str, Any], what: str) -> str:
    """Returns text that lists fields by path after the adjective `what`, such as "searchable: optimizer.lr"."""
    return f"{what}: {', '.join(paths)}" if paths else f"this run has no field {what}"
