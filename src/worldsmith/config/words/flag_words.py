"""The words of a command line, before their types are known: which belong to typed flags, and which to the command."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from worldsmith.config.errors import Place


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as it was typed: its name without dashes, and the words that follow it."""

    name: str
    values: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        shown = " ".join((f"--{self.name}", *self.values)).encode("utf-8", "replace").decode()
        return Place("flag", None, 1, len(shown), shown)


def split_flags(words: Sequence[str], own: Collection[str]) -> tuple[list[str], list[Flag]]:
    """The words of the command itself (`own`: its option strings), and the typed flags with the words after them."""
    rest: list[str] = []
    flags: list[Flag] = []
    inside = False
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--") and len(word) > 2:
            inside = name not in own
            if inside:
                flags.append(Flag(name[2:], (value,) if equals else ()))
                continue
        elif word in own:  # -h
            inside = False
        if inside:
            flags[-1] = Flag(flags[-1].name, (*flags[-1].values, word))
        else:
            rest.append(word)
    return rest, flags


def take_source(flags: list[Flag], is_source: Callable[[str], bool]) -> str | None:
    """Takes the word that names a recipe or a file out of the words that follow flags; None if there is none.

    The word right after a flag is its value rather than the source, unless no other word can be the source.
    """
    for first in (1, 0):
        for index, flag in enumerate(flags):
            for position in range(first, len(flag.values)):
                if is_source(flag.values[position]):
                    left = flag.values[:position] + flag.values[position + 1 :]
                    flags[index] = Flag(flag.name, left)
                    return flag.values[position]
    return None
