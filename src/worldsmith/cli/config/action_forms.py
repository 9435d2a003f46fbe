"""The forms whose schemas and templates can be had: those of specs, and the settings of a search."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from worldsmith.dialects.cosmos_rl.forms import COMMANDS, MODULES, form_of
from worldsmith.dialects.translation import SpecForm

TUNE = "tune"
NAMES = (*MODULES, *COMMANDS, TUNE)
"""What may be asked for."""


def find_form(name: str) -> SpecForm:
    """The form of an action. Raises KeyError for one without."""
    if name != TUNE:
        return form_of(name)
    from worldsmith.actions.registry import kinds_of

    (action,) = kinds_of(TUNE).values()
    return SpecForm(TUNE, action.Config, ())


def all_forms() -> Mapping[str, Callable[[], SpecForm]]:
    return {name: functools.partial(find_form, name) for name in NAMES if name not in COMMANDS}
