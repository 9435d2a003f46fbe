"""Selects the trained parameters of a backbone by module and by name, and describes the selection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worldsmith.config.tree.suggest import nearest
from worldsmith.families.vision_language.policy import FreezeConfig
from worldsmith.models.parameter_names import native_name, native_parameters

LANGUAGE = "language"
PARTS = ("vision", "projector", LANGUAGE)
VISUAL = "model.visual."
PROJECTOR = ("merger.", "deepstack_merger_list.")
FLAGS = {"vision": "freeze_vision_encoder", "projector": "freeze_mm_projector", LANGUAGE: "freeze_llm"}


def backbone_part(name: str) -> str:
    """Returns the component of the backbone that a parameter belongs to: "vision", "projector" or "language"."""
    if not name.startswith(VISUAL):
        return LANGUAGE
    return "projector" if name.removeprefix(VISUAL).startswith(PROJECTOR) else "vision"


def freeze(network: Any, config: FreezeConfig) -> None:
    """Freezes the parameters of `network` that `config` selects, in place; never unfreezes any.

    Raises:
        ValueError: If `config` names a module that the network lacks, a pattern matches no parameter, or all parameters
            are frozen.
    """
    parameters = native_parameters(network)
    for name in frozen_names(list(parameters), tied_names(network), config):
        parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError("model.config.policy.freeze: all parameters are frozen, there is nothing to train")


def frozen_names(names: Sequence[str], aliases: Mapping[str, Sequence[str]], config: FreezeConfig) -> set[str]:
    """Returns the names of the parameters that `config` freezes.

    Args:
        names: Names of all parameters of the network.
        aliases: Further names of tied parameters, by their name in `names`; patterns may match any of them.
        config: Modules and patterns to freeze.

    Raises:
        ValueError: If the network lacks a module, or a pattern matches no name.
    """
    parts = [part for part, flag in FLAGS.items() if getattr(config, flag)]
    for part in parts:
        if not any(backbone_part(name) == part for name in names):
            raise ValueError(f"model.config.policy.freeze.{FLAGS[part]}: this backbone has no such component")

    def fit(field: str) -> set[str]:
        found: set[str] = set()
        for pattern in getattr(config, field):
            fits = {name for name in names if any(re.search(pattern, n) for n in (name, *aliases.get(name, ())))}
            if not fits:
                close = ", ".join(nearest(pattern, names) or names[:3])
                raise ValueError(
                    f"model.config.policy.freeze.{field}: {pattern!r} matches no parameter; similar: {close}"
                )
            found |= fits
        return found

    trainable, frozen = fit("trainable_params"), fit("frozen_params")
    if config.trainable_params:
        frozen |= set(names) - trainable
    return frozen | {name for name in names if backbone_part(name) in parts}


def tied_names(network: Any) -> dict[str, list[str]]:
    """Returns the tied parameters of a network: internal name of each → the other names of the same tensor."""
    own = {id(parameter): native_name(name) for name, parameter in network.named_parameters()}
    every = [(native_name(name), p) for name, p in network.named_parameters(remove_duplicate=False)]
    tied: dict[str, list[str]] = {}
    for name, parameter in every:
        if own[id(parameter)] != name:
            tied.setdefault(own[id(parameter)], []).append(name)
    return tied


def describe_parts(network: Any, rates: Mapping[str, float]) -> Iterable[tuple[str, str]]:
    """Yields (component, description) for the components "vision", "projector" and "language" that the network has.

    The description counts the elements and tensors that are trained at each learning rate, and those that are frozen.

    Args:
        network: The transformers model.
        rates: Learning rates of the trained parameters by internal parameter name.
    """
    parameters = native_parameters(network)
    for part in PARTS:
        own = {name: parameter for name, parameter in parameters.items() if backbone_part(name) == part}
        if not own:
            continue
        groups: dict[float | None, list[int]] = {}
        for name, parameter in own.items():
            groups.setdefault(rates.get(name) if parameter.requires_grad else None, []).append(parameter.numel())
        words = [
            f"{sum(sizes):,} in {len(sizes)} tensors {'frozen' if rate is None else f'at learning rate {rate:g}'}"
            for rate, sizes in groups.items()
        ]
        yield part, "; ".join(words)
