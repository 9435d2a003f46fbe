"""The spec forms that there are, by the action whose specs they read."""

from __future__ import annotations

import importlib

from worldsmith.dialects.translation import SpecForm

MODULES = {
    "train": "worldsmith.dialects.cosmos_rl.train.form",
    "evaluate": "worldsmith.dialects.cosmos_rl.evaluate",
    "quantize": "worldsmith.dialects.cosmos_rl.quantize",
    "inference": "worldsmith.dialects.cosmos_rl.inference",
    "gaps": "worldsmith.dialects.cosmos_rl.gaps",
}
"""Action -> the module that defines its spec as `FORM`."""
COMMANDS = {"infer": "inference"}
"""Commands with another name than their specs."""


def form_of(action: str) -> SpecForm:
    """Returns the form of an action's specs, or of a command's. Raises KeyError for an action without one."""
    form: SpecForm = importlib.import_module(MODULES[COMMANDS.get(action, action)]).FORM
    return form
