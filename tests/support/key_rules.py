"""The keys that a spec format of another system knows, but does not translate."""

from __future__ import annotations

from collections.abc import Iterable

from worldsmith.dialects.translation import SpecForm


def keys_without_rule(form: SpecForm, keys: Iterable[str]) -> list[str]:
    """The dotted `keys` that have no rule in `form`: neither an own one nor that of a section above them."""
    known = {key for rule in form.rules for key in rule.keys}
    return [key for key in keys if not any(key == name or key.startswith(f"{name}.") for name in known)]
