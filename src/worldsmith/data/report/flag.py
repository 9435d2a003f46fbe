"""`Flag`: something about samples that are kept, which a run does not stop for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

EXAMPLES = 5
"""Samples that are named of each kind."""


@dataclass(frozen=True, slots=True)
class Flag:
    """`count` of `of` records or samples, and what is to be said of them."""

    name: str
    count: int
    of: int
    said: str
    """What goes on after "3 of 20 "."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Number of the record in its file (`index`), `key`, and perhaps `detail`, of the first ones."""

    def __str__(self) -> str:
        return f"{self.count} of {self.of} {self.said}"

    @property
    def named(self) -> str:
        """The examples in a line."""
        more = ", …" if self.count > len(self.examples) else ""
        return ", ".join(f"record {one['index']} ({one['key']})" for one in self.examples) + more


def flag(name: str, found: Iterable[dict[str, Any]], of: int, said: str) -> Iterable[Flag]:
    """A flag of what was found, with its first examples; none where nothing was."""
    found = list(found)
    if found:
        yield Flag(name, len(found), of, said, list(islice(found, EXAMPLES)))
