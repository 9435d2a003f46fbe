"""Loads a config from any format: recipe TOML, YAML config, run folder, recipe name, or nested spec."""

from __future__ import annotations

import os
from collections.abc import Sequence

from worldsmith.config.command_line.overrides import (
    Override,
    chosen_recipe,
    fixed_recipe_problem,
    parse_overrides,
    recipe_name,
    take_recipe,
)
from worldsmith.config.declare.configurable import find
from worldsmith.config.dialects import RunDialect, find_run_dialect
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.recipes.registry import get_recipe, is_recipe, lineage, recipe_names, recipe_task
from worldsmith.config.text_file import read_config_text
from worldsmith.config.toml.recipe_toml import read_recipe_toml
from worldsmith.config.tree.config_draft import Draft, Loaded, Recipes, finish
from worldsmith.config.tree.read_config import read_tree
from worldsmith.config.tree.references import Kept
from worldsmith.config.tree.suggest import did_you_mean

__all__ = ["Loaded", "load", "read_draft"]

RUN_CONFIG = "config.yaml"
"""Name of the file in a run folder that contains the resolved config."""


def load(
    source: str | Sequence[str],
    words: Sequence[str] = (),
    *,
    keep_unset: Kept = False,
    spec_words: Sequence[str] | None = None,
) -> Loaded:
    """Loads, overrides, resolves and checks a config of any format.

    Args:
        source: Path of a TOML, YAML or JSON file, of a run folder, or of a nested training spec of Cosmos-RL or TAO; or
            the name of a recipe. Several YAML files are merged in order.
        words: Overrides of the command line, such as ``trainer.max_iter=100``.
        keep_unset: Treatment of references to unset environment variables. False: errors; True: they stay references;
            "names": replaced by $NAME in string fields, errors elsewhere.
        spec_words: Overrides in the key names of a nested spec or of SAT config files, applied before the files are
            converted. Not None: a file is read as a spec.

    Returns:
        The resolved config with the source position of each value.

    Raises:
        ConfigError: With all mistakes.
    """
    problems: list[Problem] = []
    draft, overrides = read_draft(source, parse_overrides(words, problems), spec_words)
    draft.problems = [*problems, *draft.problems]
    return finish(draft, overrides, keep_unset=keep_unset)


def read_draft(
    source: str | Sequence[str], overrides: Sequence[Override] = (), spec_words: Sequence[str] | None = None
) -> tuple[Draft, list[Override]]:
    """Reads a config of any format, without resolving references or applying overrides; `finish` does both.

    The override ``job.experiment=NAME`` selects the recipe for every type of source.

    Args:
        source: Path of a config file, run folder or nested spec, or the name of a recipe; several YAML files are merged
            in order.
        overrides: Parsed overrides; those that select a recipe are used here.
        spec_words: Overrides in the key names of a nested spec or of SAT config files. Not None: a file is read as a
            spec.

    Returns:
        The unresolved config with the mistakes in its content, and the overrides that remain to be applied.

    Raises:
        ConfigError: If a source is not readable or a recipe does not exist.
    """
    if not isinstance(source, str):
        return _read_stack(source, overrides, spec_words)
    if os.path.isdir(source) and os.path.exists(os.path.join(source, RUN_CONFIG)):
        return _read_yaml(os.path.join(source, RUN_CONFIG), overrides)
    if (dialect := find_run_dialect([source], is_spec=spec_words is not None)) is not None:
        return _read_with_dialect(dialect, [source], spec_words or (), overrides)
    if source.lower().endswith(".toml"):
        return read_recipe_toml(source, overrides)
    if source.lower().endswith((".yaml", ".yml", ".json")):
        return _read_yaml(source, overrides)
    chosen, rest = take_recipe(overrides)
    return _read_recipe(source, chosen), rest


def is_spec(source: str) -> bool:
    """Returns whether the file `source` is a nested training spec of Cosmos-RL or TAO, as ``--spec`` accepts."""
    dialect = find_run_dialect([source])
    return dialect is not None and dialect.is_spec


def _read_with_dialect(
    dialect: RunDialect, files: Sequence[str], words: Sequence[str], overrides: Sequence[Override]
) -> tuple[Draft, list[Override]]:
    """Reads files of another system, whose config always starts from the recipe of the dialect.

    Args:
        dialect: Dialect of the files.
        files: Paths of the files.
        words: Overrides in the names of the other system.
        overrides: Parsed overrides; one that selects a recipe becomes a problem.

    Returns:
        The unresolved config, and the overrides that remain to be applied.
    """
    draft = dialect.read_files(files, words)
    chosen, rest = take_recipe(overrides)
    if chosen:
        draft.problems.append(fixed_recipe_problem(chosen, dialect.recipe))
    return draft, rest


def _read_stack(
    files: Sequence[str], overrides: Sequence[Override], spec_words: Sequence[str] | None = None
) -> tuple[Draft, list[Override]]:
    from worldsmith.config.yaml.yaml_stack import read_stack

    if (dialect := find_run_dialect(files)) is not None:
        return _read_with_dialect(dialect, files, spec_words or (), overrides)
    return read_stack(files, overrides)


def _read_yaml(file: str, overrides: Sequence[Override]) -> tuple[Draft, list[Override]]:
    from worldsmith.config.write.json_text import read_json
    from worldsmith.config.yaml.yaml_text import read_yaml

    document = (read_json if file.lower().endswith(".json") else read_yaml)(read_config_text(file), file)
    if isinstance(document.data, dict) and "type" not in document.data:  # not a complete config: a stack of one file
        return _read_stack([file], overrides)
    problems: list[Problem] = []
    tree = read_tree(document.data, None, problems)
    problems = [problem.at(Place(file)) for problem in locate(problems, document.places)]
    broken = [problem.keys for problem in problems if problem.path]
    name = getattr(find(tree, ("job",)), "experiment", "")
    chosen, rest = take_recipe(overrides)
    if chosen and recipe_name(chosen) != name:
        problems.append(fixed_recipe_problem(chosen, name))
    draft = Draft(
        source=file,
        tree=tree,
        recipes=lambda: [(known, made) for known, made in _lineage(name) if type(made) is type(tree)],
        task=recipe_task(tree),
        places=dict(document.places),
        problems=problems,
        broken=broken,
        place=Place(file),
    )
    return draft, rest


def _lineage(name: str) -> Recipes:
    """Returns (name, config) of a recipe and of the recipes from which it starts, oldest first.

    The result is empty if `name` is not the name of a registered recipe.
    """
    return list(lineage(name)) if isinstance(name, str) and name and is_recipe(name) else []


def _read_recipe(source: str, chosen: Override | None) -> Draft:
    if not is_recipe(source) and (os.path.exists(source) or os.sep in source):
        message = "expected the name of a recipe, a .toml, .yaml or .json file, or a run folder; found none of these"
        advice = did_you_mean(source, recipe_names())
        raise ConfigError([Problem("", message, hint=advice, place=Place(source))])
    tree = get_recipe(source)
    if chosen:
        source, tree = recipe_name(chosen), chosen_recipe(chosen)
    place = Place(f"recipe '{source}'")
    return Draft(source=source, tree=tree, recipes=lambda: lineage(source), task=recipe_task(tree), place=place)
