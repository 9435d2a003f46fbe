"""Types that a config field may have, and checks whether a value has one of them.

Values are plain data: int, float, str, bool, None, lists, dicts with string keys, and nested Configs. Values are not
converted, except that an int becomes a float in a float field.
"""

from __future__ import annotations

import math
import types
import typing
from dataclasses import replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from worldsmith.config.errors import Problem
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.suggest import did_you_mean
from worldsmith.config.write.values import SHOWN, write

INSTEAD = {tuple: "list[…]", set: "list[…]", frozenset: "list[…]", bytes: "str", complex: "float"}
NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "null"}


def is_reference(value: Any) -> bool:
    """Returns whether a value is a string with a reference to another value, such as ``${trainer.max_iter}``."""
    return isinstance(value, str) and "${" in value


def ref(path: str) -> Any:
    """Returns a reference to another value of the config, for Python recipes: ``ref("trainer.max_iter")``."""
    return f"${{{path}}}"


def is_config_class(hint: Any) -> bool:
    """Returns whether a type hint is a Config class."""
    return isinstance(hint, type) and getattr(hint, "__is_worldsmith_config__", False)


def union_members(hint: Any) -> tuple[Any, ...]:
    """Returns the alternatives of a union type; any other type is its only alternative.

    ``Annotated[C, …]`` of a Config class C becomes C.
    """
    if get_origin(hint) is Annotated and is_config_class(get_args(hint)[0]):
        return get_args(hint)[:1]
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def check_hint(hint: Any, where: str) -> None:
    """Raises TypeError, with a suggestion, if `hint` is a type that a config field cannot have.

    Args:
        hint: Type of the field.
        where: Qualified name of the field, for the message.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (int, float, str, bool, type(None), Any) or is_config_class(hint) or origin is Literal:
        return
    if origin in (Union, types.UnionType) or origin is list:
        for argument in arguments:
            check_hint(argument, where)
        return
    if origin is dict:
        if arguments[0] is not str:
            raise TypeError(f"{where}: the keys of a dict in a config must be strings; write dict[str, …]")
        return check_hint(arguments[1], where)
    if hint in (list, dict):
        example = "list[int]" if hint is list else "dict[str, int]"
        raise TypeError(f"{where}: the {hint.__name__} has no item type; write it, such as {example}")
    better = INSTEAD.get(origin or hint, "a component's Config, or the value's name as str")
    name = getattr(hint, "__qualname__", None) or str(hint)
    raise TypeError(f"{where}: {name} is not plain data and cannot be in a config; use {better}")


def fit(value: Any, hint: Any, path: Path, problems: list[Problem], *, references: bool = True) -> Any:
    """Checks a value against the type `hint` and returns it as that type.

    Containers are copied, and an int becomes a float for a float type.

    Args:
        value: Value to check.
        hint: Type of the field.
        path: Path of the value, for messages.
        problems: List to which mistakes are added.
        references: Whether a reference to another value is accepted for every type.

    Returns:
        The value as the type `hint`; a value that does not have the type is returned unchanged.
    """
    if references and is_reference(value):
        return value
    members = union_members(hint)
    if len(members) > 1:
        return _fit_union(value, hint, members, path, problems, references)
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        # `True == 1`: the type has to agree too.
        if any(type(value) is type(choice) and value == choice for choice in arguments):
            return value
    elif origin is list:
        if isinstance(value, list):
            return [fit(v, arguments[0], (*path, i), problems, references=references) for i, v in enumerate(value)]
    elif origin is dict:
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    problems.append(mismatch((*path, str(key)), "a key that is text", key))
            return {k: fit(v, arguments[1], (*path, str(k)), problems, references=references) for k, v in value.items()}
    elif is_config_class(hint):
        if isinstance(value, hint):
            return value
    elif hint is float:
        if type(value) in (int, float):
            return _fit_float(value, path, problems)
    elif type(value) is hint or (hint is str and isinstance(value, str)):
        return str(value) if hint is str else value
    problems.append(wrong_type_problem(path, hint, value))
    return value


def fits(value: Any, hint: Any) -> bool:
    """Returns whether a value has the type `hint`; a reference to another value counts as a string."""
    problems: list[Problem] = []
    fit(value, hint, (), problems, references=False)
    return not problems


def wrong_type_problem(path: Path, hint: Any, value: Any) -> Problem:
    """Builds the problem for a config value of a wrong type, with a suggestion if its meaning is clear.

    Args:
        path: Path of the value.
        hint: Type that the field has.
        value: Value that was found.
    """
    return replace(mismatch(path, describe_hint(hint), value), hint=_suggest(value, union_members(hint)))


def mismatch(path: Path, expected: str, value: Any) -> Problem:
    """Builds the problem "expected …, found …" for a config value.

    Args:
        path: Path of the value.
        expected: Description of what is expected, such as "a table".
        value: Value that was found; the message describes it with its type.
    """
    return Problem(format_path(path), "", expected=expected, found=describe_value(value))


def describe_hint(hint: Any, *, null: bool = True) -> str:
    """Describes a field type for messages, such as ``an integer, at least 1``.

    Args:
        hint: Type of the field with its annotations.
        null: Whether the description of an optional type mentions null.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return "any value"
    if origin is Annotated:
        return ", ".join(
            [describe_hint(arguments[0]), *(str(limit) for limit in arguments[1:] if hasattr(limit, "allows"))]
        )
    if origin is Literal:
        choices = [f"'{choice}'" if isinstance(choice, str) else str(choice) for choice in arguments]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if origin in (Union, types.UnionType):
        return " or ".join(describe_hint(member) for member in arguments if null or member is not type(None))
    if origin is list:
        return f"a list, each item {describe_hint(arguments[0])}"
    if origin is dict:
        return f"a table, each value {describe_hint(arguments[1])}"
    if is_config_class(hint):
        return f"a {hint.__qualname__} section"
    return NAMES.get(hint, str(hint))


def describe_value(value: Any) -> str:
    """Formats a value with its type for messages: ``'3' (text)``."""
    if is_config_class(type(value)):
        return f"a {type(value).__qualname__} section"
    if isinstance(value, bool):
        return f"{write(value, SHOWN)} (true or false)"
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"{_short(repr(value))} (text)"
    if isinstance(value, int):
        return f"{_short_number(value)} (an integer)"
    if isinstance(value, float):
        return f"{value} (a number)"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a table of {len(value)}"
    return f"{_short(repr(value))} ({type(value).__name__})"


def item_hint(hint: Any, container: type) -> Any:
    """Returns the item type of the `container` (list or dict) in a type hint; Any if it has no such container."""
    return next((get_args(m)[-1] for m in union_members(hint) if get_origin(m) is container), Any)


def nested_config_classes(hint: Any) -> list[type]:
    """Returns the Config classes among the alternatives of a union type, or the type itself if it is a Config class."""
    return [member for member in union_members(hint) if is_config_class(member)]


def holds_sections(hint: Any) -> bool:
    """Returns whether a type hint allows a list of config sections."""
    return bool(nested_config_classes(item_hint(hint, list)))


def _fit_union(
    value: Any, hint: Any, members: tuple[Any, ...], path: Path, problems: list[Problem], references: bool
) -> Any:
    # The member of exactly this type goes first, so that 1 stays an int in `float | int`.
    for member in sorted(members, key=lambda member: member is not type(value)):
        attempt: list[Problem] = []
        fitted = fit(value, member, path, attempt, references=references)
        if not attempt:
            return fitted
    real = [member for member in members if member is not type(None)]
    if len(real) == 1 and get_origin(real[0]) is type(value):
        return fit(value, real[0], path, problems, references=references)  # names the wrong item
    problems.append(wrong_type_problem(path, hint, value))
    return value


def _fit_float(value: int | float, path: Path, problems: list[Problem]) -> float:
    try:
        number = float(value)
    except OverflowError:
        problems.append(mismatch(path, "a number", value))
        return 0.0
    if math.isnan(number):
        problems.append(mismatch(path, "a number", value))
    return number


def _suggest(value: Any, members: tuple[Any, ...]) -> str | None:
    for member in members:
        if get_origin(member) is Literal and isinstance(value, str):
            advice = did_you_mean(value, [choice for choice in get_args(member) if isinstance(choice, str)])
            if advice:
                return advice
        if get_origin(member) is list and fits(value, get_args(member)[0]) and not isinstance(value, dict):
            return f"write a list: [{_written(value)}]"
        if member is int and isinstance(value, float) and value.is_integer() and abs(value) < 10**15:
            return f"write {int(value)}"
        if member is bool and isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return f"write {value.strip().lower()}, without quotes"
        if member in (int, float) and isinstance(value, str) and _is_number(value, member):
            return f"write {value.strip()}, without quotes"
    if str in members and type(value) in (int, float, bool):
        return f'write "{_written(value)}", with quotes'
    return None


def _is_number(text: str, kind: type) -> bool:
    if len(text) > 40 or not text.isascii():
        return False
    try:
        return math.isfinite(kind(text))
    except ValueError:
        return False


def _written(value: Any) -> str:
    return _short_number(value) if type(value) is int else _short(write(value, SHOWN))


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _short_number(value: int) -> str:
    # Python refuses to print integers of more than 4300 digits.
    return str(value) if abs(value) < 10**40 else f"a number of about {int(value.bit_length() * 0.30103) + 1} digits"


def resolved_hints(cls: type) -> dict[str, Any]:
    """Returns `typing.get_type_hints(cls)`; the error for an undefined name explains how to fix it."""
    try:
        return typing.get_type_hints(cls)
    except NameError as error:
        raise TypeError(
            f"{cls.__module__}.{cls.__qualname__}: the type of a field refers to '{error.name}', which the module does "
            "not define; import it at module level (not under TYPE_CHECKING) and define config classes at module level"
        ) from None
