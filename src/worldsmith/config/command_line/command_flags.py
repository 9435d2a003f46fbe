"""Arguments of a command whose settings are one config section: every field is a flag, in any order.

Text is used unchanged, and a list has one flag for each item. Positional arguments fill the fields that the command
defines. A settings file has lower priority than the flags, and overrides after ``--`` have higher priority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from worldsmith.config.command_line.overrides import Override, parse_overrides
from worldsmith.config.command_line.typed_flags import FlagKind, TypedFlag, flag_kind, read_flags
from worldsmith.config.declare.configurable import Config
from worldsmith.config.dialects import Translation
from worldsmith.config.errors import ConfigError, Place, Problem, UserError
from worldsmith.config.text_file import read_config_text
from worldsmith.config.toml.toml_text import find_positions, parse_toml
from worldsmith.config.tree.config_draft import Draft
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.read_config import Reader, unset_fields, unset_tree
from worldsmith.config.write.json_text import read_json
from worldsmith.config.yaml.yaml_text import Document, read_yaml


@dataclass(slots=True)
class Words:
    """The arguments of a command before ``--``, sorted by kind.

    Attributes:
        flags: Typed flags of the settings, with their values.
        loose: Positional arguments.
    """

    flags: list[TypedFlag] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    own: dict[str, str] = field(default_factory=dict)
    """General options of the command, such as ``--dryrun``, with their values; "" without a value."""
    spec: Translation | None = None
    """Translated spec of another system, which replaces a settings file; None without a spec."""


def sort_words(
    words: Sequence[str], trees: Sequence[Config], own: Mapping[str, bool], aliases: Mapping[str, str]
) -> Words:
    """Sorts command-line arguments into typed flags, positional arguments and options of the command itself.

    Args:
        words: Arguments before ``--``.
        trees: Configs whose fields are flags.
        own: Options of the command itself; the value is whether the option requires a value.
        aliases: Alternative spelling -> name of the flag, without dashes.

    Raises:
        UserError: If an option of the command has no value.
    """
    found, pending = Words(), list(words)
    while pending:
        word = pending.pop(0)
        name, equals, value = word.partition("=")
        name = f"--{aliases[name]}" if name in aliases else name
        if name[:1] != "-" or not name.lstrip("-")[:1].isalpha():
            found.loose.append(word)
            continue
        kind = next((kind for tree in trees if (kind := flag_kind(tree, name.lstrip("-")))), FlagKind.VALUE)
        follows = pending[0] if pending else "--"
        if name in own:
            takes = own[name]
        else:
            takes = follows in ("true", "false") if kind is FlagKind.SWITCH else True
        takes = takes and not equals and not follows.startswith("--") and follows.partition("=")[0] not in aliases
        values = (value,) if equals else (pending.pop(0),) if takes else ()
        if name not in own:
            _append_flag(found.flags, TypedFlag(name.lstrip("-"), values), joined=kind is FlagKind.LIST)
        elif own[name] and not values:
            raise UserError(f"{name} needs a value")
        else:
            found.own[name] = "".join(values)
    return found


def draft_settings(
    source: str, cls: type[Config], words: Words, places: Sequence[str], file: str | None, tail: Sequence[str]
) -> tuple[Draft, list[Override]]:
    """Reads the settings of a command from its arguments and its settings file, without applying flags and overrides.

    Args:
        source: Name of the settings for messages.
        cls: Class of the settings.
        words: Sorted arguments.
        places: Fields that positional arguments fill in order; the last one may be a list.
        file: Settings file; None: no file.
        tail: Overrides after ``--``.

    Returns:
        The unresolved settings with the mistakes so far, and the flags and overrides that remain to be applied.

    Raises:
        ConfigError: If the settings file cannot be parsed.
    """
    draft = Draft(source, tree=unset_tree(cls))
    tailed = parse_overrides(tail, draft.problems)
    if words.spec is not None:
        draft.warnings += words.spec.get_warnings()
    if words.spec is not None or file is not None:
        document = (
            Document(words.spec.data, words.spec.spans) if words.spec is not None else read_settings_file(str(file))
        )
        reader = Reader(draft.problems, draft.warnings, merge=True, spans=document.spans, places=draft.places)
        found = reader.section([cls], draft.tree, document.data)
        draft.tree = found if isinstance(found, Config) else draft.tree
    placed = _assign_positionals(
        words.loose, places, takes_rest=bool(places) and flag_kind(draft.tree, places[-1]) is FlagKind.LIST
    )
    flags = [*words.flags, *placed]
    for name, values in ((flag.name, flag.values) for flag in placed):
        if any(flag.name.replace("-", "_") == name for flag in words.flags):
            given_twice = f"set twice, as '{' '.join(values)}' and as --{name.replace('_', '-')}"
            draft.problems.append(Problem(name, given_twice))
    for word in words.loose[sum(len(flag.values) for flag in placed) :]:
        loose = " and ".join(name.upper().replace("_", "-") for name in places) or "nothing"
        advice = f"only {loose} can be positional (see --help); for a list, repeat its flag before each item"
        draft.problems.append(Problem("", f"unexpected argument '{word}'", hint=advice))
    overrides = [*read_flags(draft.tree, flags, draft.problems, own=words.own, verbatim=True), *tailed]
    given = {override.path[:1] for override in overrides} | {(flag.name.replace("-", "_"),) for flag in flags}
    for path, _ in list(unset_fields(draft.tree)):
        if path[:1] not in given:
            name = format_path(path)
            way = f"write {name.upper()}, or --{name} VALUE" if name in places else f"write --{name} VALUE"
            draft.problems.append(Problem(name, "the value is missing", hint=way.replace("_", "-")))
            draft.broken.append(path)
    return draft, overrides


def _assign_positionals(loose: Sequence[str], places: Sequence[str], *, takes_rest: bool) -> list[TypedFlag]:
    """Converts positional arguments to flags; arguments for which no field is left are omitted.

    Args:
        loose: Positional arguments.
        places: Names of the fields that they fill, in order.
        takes_rest: Whether the last field is a list, which gets all remaining arguments.
    """
    last = len(places) - 1
    if takes_rest and len(loose) > last:
        return [
            *(TypedFlag(name, (word,)) for name, word in zip(places[:last], loose)),
            TypedFlag(places[last], tuple(loose[last:])),
        ]
    return [TypedFlag(name, (word,)) for name, word in zip(places, loose)]


def read_settings_file(file: str) -> Document:
    """Reads a settings file in TOML, YAML or JSON; returns its content with source positions.

    Raises:
        ConfigError: If the file cannot be parsed or is not a table.
    """
    text, kind = read_config_text(file), file.lower().rpartition(".")[2]
    if kind == "toml":
        return Document(parse_toml(text, file), find_positions(text, file))
    document = read_json(text, file) if kind == "json" else read_yaml(text, file)
    if not isinstance(document.data, dict):
        raise ConfigError([Problem("", "a settings file must be a table of settings", place=Place(file))])
    return document


def _append_flag(flags: list[TypedFlag], flag: TypedFlag, *, joined: bool) -> None:
    """Appends a flag to a list in place.

    Args:
        flags: Flags so far.
        flag: Flag to append.
        joined: Whether to append the values of `flag` to an existing flag of the same name in `flags`, if there is one,
            instead of adding a second flag.
    """
    same = [n for n, known in enumerate(flags) if known.name.replace("-", "_") == flag.name.replace("-", "_")]
    if same and joined:
        flags[same[0]] = TypedFlag(flag.name, (*flags[same[0]].values, *flag.values))
    else:
        flags.append(flag)
