"""Reads a training spec as the draft of a run config, based on the recipe `cosmos_rl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worldsmith.config.declare.configurable import field_names
from worldsmith.config.errors import ConfigError, Place, Problem, UserError
from worldsmith.config.recipes.registry import get_recipe, lineage, recipe_task
from worldsmith.config.tree.config_draft import Draft
from worldsmith.dialects.cosmos_rl import RECIPE, SUFFIXES
from worldsmith.dialects.cosmos_rl.spec_file import Spec, read_document, read_spec
from worldsmith.dialects.cosmos_rl.train.key_rules import FORM, RL_RULES
from worldsmith.dialects.cosmos_rl.train.model import NAME as SPEC_MODEL
from worldsmith.dialects.cosmos_rl.train.spec import Policy
from worldsmith.dialects.cosmos_rl.train.training import Training
from worldsmith.dialects.translation import PARENT_KEY, format_report, translate

GENERATORS = "`worldsmith recipes` lists the recipes for generators"
SFT = "train.train_policy."
OUR_KEYS = {"job", "model", "recipe", "type", "dialect", "trainer", "optimizer"}


def read_train_spec(files: Sequence[str], words: Sequence[str] = ()) -> Draft:
    """Translates a training spec of Cosmos-RL or TAO to a run config.

    Args:
        files: The path of the spec, as a sequence of one.
        words: Overrides of the spec, with dotted keys.

    Returns:
        The config before references are resolved, with source positions, warnings and the translation report. If
        the spec has mistakes, they are in `problems` and `tree` is None.

    Raises:
        ConfigError: If the file cannot be read.
    """
    file = files[0]
    if is_generator_rl(read_document(file).data):
        text = "reinforcement learning of a video generator is not supported: expected supervised fine-tuning"
        return Draft(file, problems=[Problem("", text, hint=GENERATORS, place=Place(file))])
    spec = read_spec(FORM, file, words)
    draft = Draft(file, recipes=lambda: lineage(RECIPE), place=Place(file))
    other = find_other_training(spec)
    if other is not None:
        draft.problems = [other]
        return draft
    translation = translate(spec)
    tree = translation.apply_to(get_recipe(RECIPE), draft.places)
    draft.problems = translation.problems
    if not draft.problems:  # otherwise more mistakes would follow from them
        draft.tree, draft.task = tree, recipe_task(tree)
    draft.warnings = translation.get_warnings()
    draft.report = format_report(translation)
    return draft


def parent_of_spec(file: str, words: Sequence[str], parent: str | None) -> tuple[str | None, list[str]]:
    """Determines the parent of a training spec: the earlier run whose model replaces the model of the spec.

    Args:
        file: Path of the spec.
        words: Overrides of the spec, with dotted keys.
        parent: Value of ``--parent``; None: the spec's `parent_job_id` is used.

    Returns:
        The parent (None if there is no parent), and the overrides without the parent.

    Raises:
        UserError: If an override names a model in addition to the parent, or if there are two different parents.
    """
    spec = read_spec(FORM, file, words)
    named = spec.outside.get(PARENT_KEY)
    if named and parent not in (None, named):
        raise UserError(f"{file}: {PARENT_KEY} is {named}, but --parent is {parent}; omit one of them")
    parent = parent or named
    if parent is not None and spec.is_override(SPEC_MODEL):
        raise UserError(f"{SPEC_MODEL} and --parent {parent} both name the model; omit one of them")
    rest = [word for word in words if word.partition("=")[0].lstrip("+~") != PARENT_KEY]
    in_file = parent is not None and PARENT_KEY in read_spec(FORM, file, rest).outside
    return parent, [*rest, *([f"~{PARENT_KEY}"] if in_file else [])]


def find_other_training(spec: Spec) -> Problem | None:
    """Returns a problem if a spec requests a diffusion model, or no supervised fine-tuning; None if it does neither."""
    kind, trainer = spec.get(f"{SFT}type"), spec.get(f"{SFT}trainer_type")
    keys = [key for rule in RL_RULES for key in rule.keys if key in spec.outside]
    fix = f"{SFT}type=sft {SFT}trainer_type=sft custom.train_dataset.annotation_path=FILE"
    if spec.get("policy.is_diffusers"):
        path, text = "policy.is_diffusers", "the model is a diffusion model: expected a reasoner"
        fix = GENERATORS
    elif kind == "grpo" or (kind != "sft" and keys):
        path = f"{SFT}type" if kind == "grpo" else keys[0]
        named = "distillation" if "distillation" in keys else "grpo" if trainer == "sft" else trainer
        text = f"reinforcement learning ({named}) is not supported: expected supervised fine-tuning on given answers"
        fix = f"fine-tune this model with {fix}, without the keys of reinforcement learning"
    elif trainer != "sft":
        path, text = f"{SFT}trainer_type", f"this trainer is not supported: expected sft, found {trainer}"
    else:
        return None
    return Problem(path, text, hint=fix, place=spec.place(path))


def is_train_spec(files: Sequence[str]) -> bool:
    """Returns whether `files` is a single training spec of Cosmos-RL or TAO; reads the file.

    Args:
        files: Paths. A training spec has tables of Cosmos-RL and none of Worldsmith's own; a file that cannot be
            read is not a training spec.
    """
    if len(files) != 1 or not files[0].lower().endswith(SUFFIXES):
        return False
    try:
        data = read_document(files[0]).data
    except ConfigError:  # it is reported when the file is read
        return False
    return has_spec_keys(data) or is_generator_rl(data)


def is_generator_rl(data: Mapping[str, Any]) -> bool:
    """Returns whether parsed config data requests reinforcement learning of Cosmos-Predict2.5 in Cosmos-RL."""
    model = data.get("model")
    return {"model_parallel", "trainer"} <= data.keys() and isinstance(model, dict) and "conditioner" in model


def has_spec_keys(data: Mapping[str, Any]) -> bool:
    """Returns whether parsed config data is a training spec, according to its keys.

    The table `train` or `policy` must have a key of a spec, because other systems have such tables too.
    """
    known = [
        (name, table) for name, table in (("train", Training), ("policy", Policy)) if isinstance(data.get(name), dict)
    ]
    return not data.keys() & OUR_KEYS and any(data[name].keys() & set(field_names(table)) for name, table in known)
