"""One call for every front door: a recipe TOML, a YAML dump of a tree, or the name of a registered recipe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from worldsmith.config.configurable import Config
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.overrides import apply_overrides, find_node, parse_overrides
from worldsmith.config.paths import Path
from worldsmith.config.recipe_toml import load_recipe_toml
from worldsmith.config.references import try_resolve
from worldsmith.config.registry import get_recipe, recipe_names
from worldsmith.config.suggest import did_you_mean
from worldsmith.config.text_file import read_config_text
from worldsmith.config.tree import from_dict


@dataclass(frozen=True, slots=True)
class Loaded:
    """A resolved tree, and what the user should know about how it came to be."""

    tree: Any
    warnings: list[str] = field(default_factory=list)


def load(source: str, words: Sequence[str] = ()) -> Loaded:
    """The resolved tree of a file (``.toml``, ``.yaml``) or a recipe name, changed by override words.

    Raises ConfigError with every mistake.
    """
    warnings: list[str] = []
    if source.lower().endswith(".toml"):
        return Loaded(load_recipe_toml(source, words, warnings=warnings), warnings)
    places: dict[Path, Place] = {}
    problems: list[Problem] = []
    if source.lower().endswith((".yaml", ".yml")):
        tree, places = _read_yaml(source)
    else:
        tree = _named(source)
    task = getattr(find_node(tree, ("job",)), "task", None)
    places.update(apply_overrides(tree, parse_overrides(words, problems), problems, warnings, task))
    resolved, late = try_resolve(tree)
    problems += locate(late, places)
    if problems:
        raise ConfigError(problem.at(Place(source)) for problem in problems)
    return Loaded(resolved, warnings)


def _read_yaml(file: str) -> tuple[Config, dict[Path, Place]]:
    from worldsmith.config.yaml_text import read_yaml

    document = read_yaml(read_config_text(file), file)
    try:
        tree: Config = from_dict(document.data)
    except ConfigError as error:
        raise ConfigError(problem.at(Place(file)) for problem in locate(error.problems, document.places)) from None
    return tree, document.places


def _named(source: str) -> Config:
    if source not in recipe_names() and (os.path.exists(source) or os.sep in source):
        message = "this is neither the name of a recipe nor a .toml or .yaml file"
        advice = did_you_mean(source, recipe_names())
        raise ConfigError([Problem("", message, hint=advice, place=Place(source))])
    return get_recipe(source)
