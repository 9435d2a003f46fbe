"""Recognizes YAML files of a SAT stack, and overrides of SAT on a command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from worldsmith.config.command_line.typed_flags import TypedFlag
from worldsmith.config.errors import ConfigError
from worldsmith.config.text_file import read_config_text
from worldsmith.config.yaml.yaml_text import read_yaml


def is_sat_stack(files: Sequence[str]) -> bool:
    """Returns whether files are the merged YAML config ("stack") of a run of SAT; reads the files.

    All of them must be YAML, and at least one must have a network config, or the sections args and deepspeed. A
    file that cannot be parsed does not count.
    """
    return all(file.lower().endswith((".yaml", ".yml")) for file in files) and any(map(_is_sat_file, files))


def _is_sat_file(file: str) -> bool:
    try:
        data = read_yaml(read_config_text(file), file).data
    except ConfigError:  # the code that reads it reports it
        return False
    return isinstance(data, dict) and has_sat_keys(data)


def has_sat_keys(data: Mapping[str, Any]) -> bool:
    """Returns whether parsed config data has SAT's network config, or its sections args and deepspeed."""
    model = data.get("model")
    return (isinstance(model, dict) and "network_config" in model) or {"args", "deepspeed"} <= data.keys()


def split_arguments(words: Sequence[str], flags: Sequence[TypedFlag]) -> tuple[list[str], list[str], list[TypedFlag]]:
    """Splits the arguments after ``--base`` into files, SAT overrides, and flags that are not SAT's.

    A flag without a dot is a SAT flag: ``--train-iters 500`` means args.train_iters=500. If the files are not a SAT
    config, the arguments and flags are returned unchanged, without overrides.

    Args:
        words: Arguments after ``--base``.
        flags: Parsed flags of the command with their values.

    Returns:
        The files, the SAT overrides, and the remaining flags.
    """
    files = [word for word in words if not is_change(word)]
    if not is_sat_stack(files):
        return list(words), [], list(flags)
    overrides = [word for word in words if is_change(word)]
    rest = []
    for flag in flags:
        changes = [word for word in flag.values if is_change(word)]
        values = tuple(word for word in flag.values if not is_change(word))
        overrides += changes
        if "." in flag.name:
            rest.append(TypedFlag(flag.name, values))
            continue
        value = values[0] if len(values) == 1 else f"[{','.join(values)}]" if values else "true"
        overrides.append(f"args.{flag.name.replace('-', '_')}={value}")
    return files, overrides, rest


def is_change(word: str) -> bool:
    """Returns whether a command-line argument is an override (`key=value` or `~key`) and not an existing file."""
    return (word.startswith("~") or "=" in word) and not os.path.exists(word)
