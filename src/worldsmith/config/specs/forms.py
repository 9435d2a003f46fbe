"""The spec forms that there are, by the action whose specs they read."""

from __future__ import annotations

import importlib

from worldsmith.config.specs.form import SpecForm

MODULES: dict[str, str] = {}
"""Action -> the module that has its form as `FORM`."""


def form_of(action: str) -> SpecForm:
    """The form of an action's specs. Raises KeyError for an action without one."""
    form: SpecForm = importlib.import_module(MODULES[action]).FORM
    return form
