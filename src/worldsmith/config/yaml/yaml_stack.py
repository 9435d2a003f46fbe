"""YAML stacks: the files of ``--base a.yaml b.yaml``, merged in order; later files override earlier ones.

A file may start from a recipe with ``recipe: NAME``; else the merged config has to be complete. Mappings are merged,
lists and single values are replaced, and ``???`` counts as omitted. A section that changes its class (``type``, or
``target`` with ``params``) keeps the fields that both classes inherit; a warning lists the dropped values.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from worldsmith import ROOT
from worldsmith.config.command_line.literals import read_text
from worldsmith.config.command_line.overrides import (
    Override,
    chosen_recipe,
    fixed_recipe_problem,
    recipe_name,
    take_recipe,
)
from worldsmith.config.declare.class_tags import class_of
from worldsmith.config.declare.configurable import Config, all_paths, field_names, find, walk
from worldsmith.config.declare.value_types import mismatch
from worldsmith.config.dialects import CHOICE, detect_dialect, translate_stack
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.recipes.registry import get_recipe, lineage, recipe_task
from worldsmith.config.text_file import read_config_text
from worldsmith.config.toml.toml_text import Span
from worldsmith.config.tree.config_draft import Draft
from worldsmith.config.tree.paths import Path, forget_places, format_path
from worldsmith.config.tree.plain import MISSING, TAG
from worldsmith.config.tree.read_config import Reader, require_set
from worldsmith.config.yaml.yaml_text import Document, read_yaml

RECIPE = "recipe"


def read_stack(paths: Sequence[str], overrides: Sequence[Override] = ()) -> tuple[Draft, list[Override]]:
    """Reads and merges the YAML files of a stack.

    Args:
        paths: YAML files; later ones override earlier ones.
        overrides: Parsed overrides; one of them may select the recipe.

    Returns:
        The unresolved config, with the mistakes in its `problems`, and the overrides that remain to be applied.
    """
    chosen, rest = take_recipe(overrides)
    return _read_stack(paths, chosen), rest


def _read_stack(paths: Sequence[str], chosen_by_word: Override | None) -> Draft:
    files = [str(path) for path in paths]
    draft = Draft(", ".join(files), place=Place(", ".join(files)))
    if not files:
        draft.problems.append(Problem("", "no file was given", hint="write --base a.yaml b.yaml"))
    documents = [document for file in files if (document := _read(file, draft)) is not None]
    complete = len(documents) == len(files)
    if not documents:
        return draft
    merged = merge_documents(documents)
    try:
        chosen = detect_dialect(_without(merged, CHOICE).data, merged.data.get(CHOICE))
        layers = documents
        if chosen.read is not None:
            translation = translate_stack(chosen, _without(merged, CHOICE))
            draft.problems += translation.problems
            draft.warnings += translation.warnings
            layers = [Document(translation.data, translation.spans)]
        start = _choose_base(draft, layers, chosen_by_word)
    except ConfigError as error:
        if complete:  # otherwise the file that could not be read may contain what is missing
            places = {path: span.value for path, span in merged.spans.items()}
            draft.problems += [problem.at(draft.place) for problem in locate(error.problems, places)]
        return draft
    _apply_layers(draft, [_without(layer, RECIPE, CHOICE) for layer in layers], start, complete)
    if chosen_by_word and draft.tree is not None:  # also if a file names another recipe
        draft.tree.job.experiment = recipe_name(chosen_by_word)
    draft.task = recipe_task(draft.tree)
    draft.broken = [problem.keys for problem in draft.problems if problem.path]
    return draft


def merge_documents(documents: Sequence[Document]) -> Document:
    """Merges parsed files: mappings are merged key by key, other values are replaced by those of later files."""
    data: dict[str, Any] = {}
    spans: dict[Path, Span] = {}
    for document in documents:
        _merge_plain(data, document.data, (), spans, document.spans)
    return Document(data, spans)


def _read(file: str, draft: Draft) -> Document | None:
    """Reads one file of a YAML stack.

    Args:
        file: Path of the file.
        draft: Receives a problem if the file is not readable or not a mapping, and a warning if it is empty.

    Returns:
        The content; None for a file with a problem.
    """
    try:
        if file.lower().endswith(".toml"):
            raise ConfigError([Problem("", "only YAML files can be stacked", hint=f"use {file} without --base")])
        document = read_yaml(read_config_text(file), file)
        if not isinstance(document.data, dict):
            raise ConfigError([mismatch((), "sections with their fields", document.data)])
    except ConfigError as error:
        draft.problems += [problem.at(Place(file)) for problem in error.problems]
        return None
    if not document.data:
        draft.warnings.append(f"{file}: the file is empty")
    return document


def _choose_base(draft: Draft, layers: list[Document], selection: Override | None) -> Config | type[Config]:
    """Returns the config to which the files of a stack are applied: that of the selected recipe.

    Args:
        draft: Draft of the stack; its recipes, place and warnings are set in place.
        layers: Content of the files.
        selection: Override that selects the recipe; None: the files select it.

    Returns:
        The config of the recipe; without a recipe, the class of the root.

    Raises:
        ConfigError: If the recipe does not exist, or the selection is contradictory.
    """
    names = [(layer.data[RECIPE], layer.spans.get((RECIPE,))) for layer in layers if RECIPE in layer.data]
    is_complete = any(TAG in layer.data for layer in layers)
    experiments = [] if is_complete else [found for layer in layers if (found := _experiment(layer))]
    if selection and is_complete and not names:
        raise ConfigError([fixed_recipe_problem(selection, "")])
    if selection:
        tree, name = chosen_recipe(selection), recipe_name(selection)
        draft.recipes = lambda: lineage(name)
        draft.place = Place(f"recipe '{name}'")
        return tree
    for name, span in experiments:
        if names and name != names[-1][0]:
            message = f"job.experiment names another recipe than `{RECIPE}: {names[-1][0]}`"
            place = span.value if span else None
            raise ConfigError([Problem("job.experiment", message, hint="write one of the two", place=place)])
    names = names or experiments
    if names:
        name, span = names[-1]
        if not isinstance(name, str):
            raise ConfigError([mismatch((RECIPE,), "the name of a recipe", name)])
        if any(other != name for other, _ in names):
            others = ", ".join(f"'{other}'" for other, _ in names[:-1] if other != name)
            draft.warnings.append(f"the files name several recipes; the last one, '{name}', replaces {others}")
        try:
            tree = get_recipe(name)
        except ConfigError as error:
            place = span.value if span else None
            raise ConfigError(
                Problem(RECIPE, problem.message, hint=problem.hint, place=place) for problem in error.problems
            ) from None
        draft.recipes = lambda: lineage(name)
        draft.place = Place(f"recipe '{name}'")
        return tree
    tag = next((layer.data[TAG] for layer in reversed(layers) if TAG in layer.data), ROOT)
    try:
        return class_of(tag)
    except ValueError as error:
        raise ConfigError([Problem(TAG, str(error), hint=f"the complete config is a {ROOT}")]) from None


def _experiment(layer: Document) -> tuple[Any, Span | None] | None:
    """Returns the recipe name in the `job` section of a file and its source position; None without a name."""
    name = find(layer.data, ("job", "experiment"))
    return (name, layer.spans.get(("job", "experiment"))) if name not in (None, "", MISSING) else None


def _apply_layers(draft: Draft, layers: list[Document], start: Config | type[Config], complete: bool) -> None:
    """Applies the files of a stack in order to a config, and stores the result in the draft.

    Args:
        draft: Draft of the stack; it receives the config, mistakes and source positions.
        layers: Content of the files.
        start: Config of the recipe, or the class of the root if there is no recipe.
        complete: Whether all files could be read; else the draft gets no config.
    """
    root, tree = (type(start), start) if isinstance(start, Config) else (start, None)
    known = [(name,) for name in field_names(root)] if tree is None else all_paths(tree)
    places, without_recipe = draft.places, not isinstance(start, Config)
    for layer in layers:
        reader = Reader(
            draft.problems,
            draft.warnings,
            merge=True,
            spans=layer.spans,
            places=places,
            known=known,
            without_recipe=without_recipe,
        )
        found = reader.section([root], tree, layer.data)
        tree = found if isinstance(found, Config) else tree
    if not complete or tree is None:
        return
    advice = f"set it, or start from a recipe: `{RECIPE}: NAME` in one of the files"
    draft.tree = require_set(tree, draft.problems, None if isinstance(start, Config) else advice)
    draft.problems = [problem.at(draft.place) for problem in locate(draft.problems, draft.places)]


def _merge_plain(
    below: dict[str, Any], above: dict[str, Any], path: Path, spans: dict[Path, Span], layer: dict[Path, Span]
) -> None:
    for key, value in above.items():
        here = (*path, key)
        if here in layer:
            spans[here] = layer[here]
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _merge_plain(below[key], value, here, spans, layer)
            continue
        if key in below:
            forget_places(spans, here)
        spans.update((known, layer[known]) for known, _ in walk(value, here) if known in layer)
        below[key] = copy.deepcopy(value)


def _without(document: Document, *keys: str) -> Document:
    return Document({key: value for key, value in document.data.items() if key not in keys}, document.spans)


def set_override(
    document: Document, parent: Any, path: Path, override: Override, hint: Any, problems: list[Problem]
) -> bool:
    """Sets the value of an override in parsed files.

    Args:
        document: Content of the files; the source positions of its values are changed too.
        parent: Table or list in the content that contains the value.
        path: Path of the value in the content.
        override: Override that sets a value.
        hint: Type of the value.
        problems: Receives a problem if the text of the value cannot be parsed.

    Returns:
        Whether the value is set.
    """
    try:
        value = read_text(override.given, hint) if isinstance(override.given, str) else override.given
    except ValueError as error:
        problems.append(Problem(format_path(path), f"the value cannot be parsed: {error}", place=override.place))
        return False
    parent[path[-1]] = value
    forget_places(document.spans, path)
    span = Span(override.place, override.place)
    document.spans.update({(*path, *below): span for below, _ in walk(value)})
    return True
