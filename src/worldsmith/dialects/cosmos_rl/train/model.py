"""Rules of a training spec: model, adapters, learning rates, trainable weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from worldsmith.config.recipes.registry import get_recipe
from worldsmith.dialects.cosmos_rl import RECIPE
from worldsmith.dialects.translation import SpecTranslation, computed, format_value, read_key_rules

NAME, REVISION = "policy.model_name_or_path", "policy.model_revision"
SCHEME = "hf_model://"
BACKBONE, FREEZE = "model.config.policy.backbone", "model.config.policy.freeze"
LR = "train.optm_lr"
LORA_RULES = read_key_rules("cosmos_rl", "lora")
"""Rules of the table `policy.lora`, applied if a spec has this table."""


@computed(NAME, REVISION)
def trained_model(t: SpecTranslation) -> None:
    """Sets the model name with its revision in `t`; adds a problem for a name or model that is not supported."""
    name, revision = t.get(NAME), t.get(REVISION)
    if not name:
        t.refuse(NAME, "it is empty", f"{NAME}=hf_model://nvidia/Cosmos-Reason2-8B, or a folder")
        return
    bare = name.removeprefix(SCHEME)
    if "://" in bare or (name.startswith(SCHEME) and not re.fullmatch(r"[\w.-]+/[\w.-]+(@[^/]+)?", bare)):
        t.refuse(NAME, f"'{name}' is not a model name", f"write {SCHEME}org/name, org/name or a folder")
        return
    if revision:
        bare += f"@{revision}"
        t.report(REVISION, "renamed", f"part of {BACKBONE}.model_name")
    try:
        network = describe_network(bare)
    except ValueError as error:
        t.refuse(NAME, str(error), f"{NAME}=hf_model://nvidia/Cosmos-Reason2-8B, or the folder of such a model")
        return
    t.assign(NAME, f"{BACKBONE}.model_name", bare, f": {network}")


def describe_network(name: str) -> str:
    """Returns a description of a model's network for messages.

    Args:
        name: Folder, or hub repository with an optional revision.

    Raises:
        ValueError: If the model cannot be trained.
    """
    tree: Any = get_recipe(RECIPE)
    config = tree.model.config
    config.policy.backbone.model_name = name
    return config.describe_network()


@computed(LR)
def learning_rates(t: SpecTranslation) -> None:
    """Sets the learning rate in `t` from one number, or per-module multipliers from a table of rates by module."""
    rates = t.get(LR)
    if isinstance(rates, list):
        if not rates or len(set(rates)) > 1:
            parts = ("model.visual.merger", "model.visual")
            table = ", ".join(f'"{part}" = {rate}' for part, rate in zip(parts, (rates[1:2] or [0]) + rates[:1]))
            why = "a list has one learning rate per component of the model, and the components depend on the model"
            fix = f"write a table: {LR} = {{global = {rates[-1]}, {table}}}" if rates else "write one number"
            t.refuse(LR, why, fix)
            return
        rates = rates[0]
    if isinstance(rates, dict):
        if not rates.get("global"):
            t.refuse(
                LR,
                "the table has no learning rate `global` above 0, which applies to all other parameters",
                f"{LR}.global=1e-6",
            )
            return
        prefixes = parameter_prefixes(name for name in rates if name != "global")
        rest = {prefix: rates[name] / rates["global"] for name, prefix in prefixes.items()}
        t.put("optimizer.lr_multipliers", rest, source=LR)
        t.put("optimizer.lr", rates["global"], source=LR)
        text = f"optimizer.lr = {rates['global']}, optimizer.lr_multipliers = {format_value(rest)}"
        t.report(
            LR,
            "approximated",
            f"{text}; the deepest matching module sets the rate of a parameter; each module must have parameters",
        )
        return
    t.assign(LR, "optimizer.lr", rates)


def parameter_prefixes(modules: Iterable[str]) -> dict[str, str]:
    """Maps the module paths of a spec to prefixes of internal parameter names, the deepest modules first.

    Cosmos-RL's own Qwen2.5-VL has the vision encoder next to `model`; in the network here it is `model.visual`.
    """
    prefixes = {path: f"model.{path}." if path.partition(".")[0] == "visual" else f"{path}." for path in modules}
    return dict(sorted(prefixes.items(), key=lambda item: -item[1].count(".")))


@computed("policy.freeze_pattern", "policy.trainable_pattern", "policy.trainable_map")
def trained_weights(t: SpecTranslation) -> None:
    """Sets the name patterns of frozen and trainable parameters in `t`.

    Adds a problem if the spec sets both kinds of patterns, has LoRA and a trainable pattern without "lora_", or sets
    `trainable_map`.
    """
    frozen, kept, table = (t.get(f"policy.{name}") for name in ("freeze_pattern", "trainable_pattern", "trainable_map"))
    if frozen and kept:
        why = "freeze_pattern and trainable_pattern cannot be combined"
        t.refuse("policy.trainable_pattern", why, "~policy.freeze_pattern or ~policy.trainable_pattern")
    elif kept and t.get("policy.lora") is not None and not all("lora_" in pattern for pattern in kept):
        why = "with LoRA, all other weights are frozen: expected only patterns that contain lora_"
        t.refuse("policy.trainable_pattern", why, "~policy.trainable_pattern, or ~policy.lora")
    else:
        t.move("policy.freeze_pattern", f"{FREEZE}.frozen_params", "renamed")
        t.move("policy.trainable_pattern", f"{FREEZE}.trainable_params", "renamed")
    if table:
        names = [re.escape(name) for name, on in table.items() if on] or ["…"]
        fix = f"policy.trainable_pattern={format_value(names)}"
        t.refuse("policy.trainable_map", "modules cannot be selected by name here", fix)


@computed("policy.lora")
def adapters(t: SpecTranslation) -> None:
    """Sets up LoRA in `t` from the spec's table `policy.lora`; without the table all weights are trained."""
    if t.get("policy.lora") is None:
        t.assign("policy.lora", "model.config.lora_enabled", False, ": all weights are trained")
        return
    for rule in LORA_RULES:
        rule.apply(t)
    rank, alpha = t.get("policy.lora.r"), t.get("policy.lora.lora_alpha")
    scale = "lora_alpha"
    if t.get("policy.lora.use_rslora"):
        alpha, scale = alpha * math.sqrt(rank), "lora_alpha x sqrt(r), as use_rslora defines"
    if alpha <= 0:
        t.refuse("policy.lora.lora_alpha", f"expected a number above 0, found {alpha:g}", "policy.lora.lora_alpha=8")
    else:
        alpha = round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-9) else alpha
        t.put("model.config.lora_alpha", alpha, source="policy.lora.lora_alpha")
        t.report("policy.lora.lora_alpha", "renamed", f"model.config.lora_alpha = {alpha:.6g}: {scale}")
        t.report_stated("kept", "in model.config.lora_alpha", "policy.lora.use_rslora")
    t.put("model.config.lora_enabled", True, source="policy.lora")
    t.move("policy.lora.r", "model.config.lora_rank", "renamed")
    t.move("policy.lora.lora_dropout", "model.config.lora_dropout", "renamed")
    put_targets(t)


def put_targets(t: SpecTranslation) -> None:
    """Sets the LoRA target modules in `t` from the spec's list of names; adds a problem for an empty list."""
    key, to = "policy.lora.target_modules", "model.config.lora_target_modules"
    targets = t.get(key)
    if not targets or (isinstance(targets, str) and targets != "all-linear"):
        t.refuse(key, "it names the layers with adapters", f"{key}=[q_proj,v_proj], or {key}=all-linear")
    elif targets == "all-linear" or targets == ["all-linear"]:
        t.assign(key, to, "all-linear", ": all linear layers except the language head")
    else:
        t.assign(
            key,
            to,
            ",".join(dict.fromkeys(targets)),
            "; complete module names are compared, whereas Cosmos-RL also matches parts of names",
        )
