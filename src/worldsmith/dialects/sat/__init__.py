"""SAT: the YAML stacks of CogVideo's own trainer."""

from __future__ import annotations

from collections.abc import Sequence

from worldsmith.config.dialects import RunDialect
from worldsmith.config.tree.draft import Draft
from worldsmith.dialects.sat.recognise import is_sat_stack

RECIPE = "cogvideox_2b"
"""It holds what a stack has no key for."""


def read(files: Sequence[str], words: Sequence[str]) -> Draft:
    """The draft of a run; imports the reader on first use."""
    from worldsmith.dialects.sat.draft import read_sat_draft

    return read_sat_draft(files, words)


DIALECT = RunDialect(name="sat", recipe=RECIPE, claims=is_sat_stack, read=read)
