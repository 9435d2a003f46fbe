"""Registry of the spec formats, by the action whose specs they describe."""

from __future__ import annotations

import importlib

from worldsmith.dialects.translation import SpecForm

MODULES = {
    "train": "worldsmith.dialects.cosmos_rl.train.key_rules",
    "evaluate": "worldsmith.dialects.cosmos_rl.evaluate",
    "quantize": "worldsmith.dialects.cosmos_rl.quantize",
    "inference": "worldsmith.dialects.cosmos_rl.inference",
    "gaps": "worldsmith.dialects.cosmos_rl.gaps",
}
"""Action -> module that defines the spec format of the action as `FORM`."""
COMMANDS = {"infer": "inference"}
"""Commands with another name than their specs."""


def form_of(action: str) -> SpecForm:
    """Imports and returns the spec format of an action or command.

    Args:
        action: Name of an action, such as "train", or of a command, such as "infer".

    Raises:
        KeyError: If the action has no specs.
    """
    return importlib.import_module(MODULES[COMMANDS.get(action, action)]).FORM
