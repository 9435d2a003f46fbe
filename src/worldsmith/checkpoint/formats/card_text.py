"""Words that the cards (README.md) of exported folders share, out of what a folder says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def parameters(about: Mapping[str, Any]) -> str:
    count = about.get("card", {}).get("parameters")
    return f" of {count / 1e6:.1f} million parameters" if count else ""


def origin(about: Mapping[str, Any], what: str) -> str:
    source = about["source"]
    run = f" of the run `{source['run']}`" if source["run"] else ""
    return (
        f"the {source['weights']} {what}{run} after {source['iteration']} steps, in {about['dtype']}, exported by "
        f"Worldsmith {about['worldsmith']}"
    )
