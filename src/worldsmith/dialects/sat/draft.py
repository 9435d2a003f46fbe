"""A SAT stack as the draft of a run: on top of the recipe that these stacks start from."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from worldsmith.config.declare.value_types import mismatch
from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.recipes.registry import get_recipe, lineage, recipe_task
from worldsmith.config.text_file import read_config_text
from worldsmith.config.tree.draft import Draft
from worldsmith.config.yaml.stack import merge_documents
from worldsmith.config.yaml.text import read_yaml
from worldsmith.dialects.form import Row
from worldsmith.dialects.sat import RECIPE, model_rows, run_rows
from worldsmith.dialects.sat.stack import SECTIONS, SatStack, read_sat, same_kind
from worldsmith.dialects.translation import SpecTranslation, report, shown, translate

SAMPLES = "the stack makes videos: expected finetune or pretrain, found inference"
ROWS = (*model_rows.ROWS, *run_rows.ROWS)


def read_sat_draft(files: Sequence[str], words: Sequence[str] = ()) -> Draft:
    """The draft of a stack that words change; no tree where it has mistakes. ConfigError: a file cannot be read."""
    translation = translate_sat(files, words)
    spec = translation.spec
    draft = Draft(spec.source, recipes=lambda: lineage(RECIPE), place=Place(spec.source))
    tree = translation.onto(_with_held_out(get_recipe(RECIPE), translation.data), draft.places)
    draft.report = report(translation)
    draft.problems = translation.problems
    if not draft.problems:
        draft.tree, draft.task = tree, recipe_task(tree)
    told = [*translation.get_warnings(), _memory(tree)]
    draft.warnings = [*_winners(spec), *told] if isinstance(spec, SatStack) else told
    return draft


def translate_sat(files: Sequence[str], words: Sequence[str] = ()) -> SpecTranslation:
    """What a stack means here. Raises ConfigError for a file that cannot be read, and for a stack that only samples."""
    spec = read_stack(files, words, ROWS)
    if spec.get("args.mode") == "inference":
        way_out = f"worldsmith generate --spec {' '.join(files)}"
        raise ConfigError([Problem("args.mode", SAMPLES, hint=way_out, place=spec.place("args.mode"))])
    return translate(spec)


def read_stack(
    files: Sequence[str], words: Sequence[str], rows: tuple[Row, ...], sections: Sequence[str] = SECTIONS
) -> SatStack:
    """The merged files with the words over them. Raises ConfigError for a file that cannot be read."""
    documents = [read_yaml(read_config_text(file), file) for file in files]
    for file, document in zip(files, documents):
        if not isinstance(document.data, dict):
            raise ConfigError([mismatch((), "sections with their keys", document.data).at(Place(file))])
    spec = read_sat(", ".join(files), merge_documents(documents), words, rows, sections)
    spec.problems += same_kind(documents)
    return spec


def _with_held_out(below: Any, data: dict[str, Any]) -> Any:
    """The recipe; where the stack has data to validate with, these are read as those of the training."""
    if "dataloader_val" in data:
        below.dataloader_val = copy.deepcopy(below.dataloader_train)
        below.dataloader_val.shuffle = False
        training = data.get("dataloader_train", {})
        own = data["dataloader_val"]["dataset"]
        dataset = {**training.get("dataset", {}), "cfg_dropout_rate": 0.0, **own}
        data["dataloader_val"] = {**training, "dataset": dataset}
    return below


def _memory(tree: Any) -> str:
    """What the weights of a run and all that belongs to them take, float32 between steps."""
    model = tree.model.config
    count = model.count_parameters()
    each = 4 if model.lora_enabled else 20 if model.ema.enabled else 16
    what = (
        "frozen weights"
        if each == 4
        else f"weights, gradients{', moments and average' if each == 20 else ' and moments'}"
    )
    return (
        f"the transformer has {count} parameters: {what} take {count * each / 2**30:.1f} GiB, shared by all processes"
    )


def _winners(spec: SatStack) -> list[str]:
    """What a SAT user would not expect: there, a file wins over the command line."""
    told = "the command line wins here; SAT would have kept the file's"
    return [f"{key} = {shown(spec.values.get(key))}, not {shown(old)}: {told}" for key, old in spec.won.items()]
