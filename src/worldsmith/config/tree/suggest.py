"""Finds the nearest valid name for a wrong one: dropped, doubled or swapped letters, wrong case, wrong section."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from difflib import SequenceMatcher

from worldsmith.config.tree.paths import Path, format_path

ANOTHER_SECTION = 1.2
"""Distance added for a key in the wrong section, in edits: more than one typo, less than two."""


def distance(a: str, b: str) -> int:
    """Returns the optimal string alignment distance: edits from `a` to `b`; a swap of two neighbors is one edit."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        previous, row = row, [i] + [0] * len(b)
        for j, right in enumerate(b, start=1):
            row[j] = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                row[j] = min(row[j], before[j - 2] + 1)
        before = previous
    return row[-1]


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Returns the candidates that are similar to `name`, best first.

    Args:
        name: Wrong name.
        candidates: Valid names.
        limit: Maximum number of results.

    Returns:
        Candidates that differ by at most a third of their letters or contain the name; empty if there are none.
    """
    scored = []
    for candidate in dict.fromkeys(candidates):
        edits = distance(_plain(name), _plain(candidate))
        if edits <= tolerance(candidate) or _contains(name, candidate):
            scored.append((edits, -SequenceMatcher(None, name, candidate).ratio(), candidate))
    return [candidate for _, _, candidate in sorted(scored)[:limit]]


def nearest_path(path: Path, candidates: Iterable[Path]) -> Path | None:
    """Returns the path in `candidates` that is most similar to the wrong path `path`; None if none is similar.

    It considers typos in the key or the section, and the same key in another section.
    """
    name, section = str(path[-1]), format_path(path[:-1])
    best: tuple[float, float, Path] | None = None
    for candidate in candidates:
        if not candidate:
            continue
        leaf, parent = str(candidate[-1]), format_path(candidate[:-1])
        if abs(len(name) - len(leaf)) > tolerance(leaf):
            continue
        edits = distance(_plain(name), _plain(leaf))
        if edits > tolerance(leaf) or edits >= len(leaf):
            continue
        if parent == section:
            misplaced = 0.0
        else:
            near = distance(_plain(section), _plain(parent))
            misplaced = min(near, ANOTHER_SECTION) if near <= 2 else ANOTHER_SECTION + min(near, 50) / 1000
        if best is not None and edits + misplaced > best[0]:
            continue
        likeness = SequenceMatcher(None, format_path(path), format_path(candidate)).ratio()
        score = (edits + misplaced, -likeness, candidate)
        if best is None or score[:2] < best[:2]:
            best = score
    return best[2] if best else None


def did_you_mean(name: str, candidates: Iterable[str], *, shown: str = "'{}'") -> str | None:
    """Returns the question "did you mean 'x'?" with the candidate that is most similar to a wrong name.

    Args:
        name: Wrong name.
        candidates: Valid names.
        shown: Format of the candidate in the question.

    Returns:
        The question; None if no candidate is similar.
    """
    found = nearest(name, candidates, limit=1)
    return f"did you mean {shown.format(found[0])}?" if found else None


def did_you_mean_path(path: Path, candidates: Iterable[Path], *, shown: str = "'{}'") -> str | None:
    """Returns the question "did you mean 'a.b'?" with the config path that is most similar to a wrong one.

    Args:
        path: Wrong path.
        candidates: Valid paths.
        shown: Format of the candidate in the question.

    Returns:
        The question; None if no candidate is similar.
    """
    near = nearest_path(path, candidates)
    return f"did you mean {shown.format(format_path(near))}?" if near else None


def did_you_mean_folder(path: str | pathlib.Path) -> str:
    """Returns the text "; did you mean 'outputs/train/…'?" for a folder that does not exist.

    Each part of the path that does not exist is compared with the folders at the same level.

    Args:
        path: Path of the missing folder.

    Returns:
        The text, to be appended to a message; "" if no existing path is similar.
    """
    given = pathlib.Path(path)
    found = pathlib.Path(given.anchor)
    for part in given.relative_to(given.anchor).parts:
        if not (found / part).is_dir():
            try:
                part = next(iter(nearest(part, (one.name for one in found.iterdir() if one.is_dir()), limit=1)), "")
            except OSError:
                return ""
            if not part:
                return ""
        found /= part
    return "" if found == given else f"; did you mean '{found}'?"


def tolerance(name: str) -> int:
    """Returns the max number of edits by which a typo of `name` may differ: a third of its letters, at least 1."""
    return max(1, len(name) // 3)


def _plain(text: str) -> str:
    return text.lower().replace("-", "_")


def _contains(name: str, candidate: str) -> bool:
    return len(name) >= 4 and (
        _plain(name) in _plain(candidate) or (_plain(candidate) in _plain(name) and len(candidate) >= 4)
    )
