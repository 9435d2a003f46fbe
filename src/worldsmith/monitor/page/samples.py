"""Samples that were drawn while a run went on, prompt by prompt, and how a page gets at their videos."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from worldsmith.monitor.page.run_files import RunFiles

MEDIA = {
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""What a page shows, by the end of the file's name."""
EMBEDDED_FILE = 64_000
"""Bytes of the largest file that is put into the page."""
EMBEDDED_PAGE = 1_200_000
"""Bytes of all files that are put into one page."""
MOST_STEPS = 8
"""Of one prompt; the first and the last are among them."""
MOST_PROMPTS = 24


@dataclass(slots=True)
class Place:
    """Where a page will lie, and how much it may still hold."""

    folder: Path
    room: int = EMBEDDED_PAGE
    linked: int = 0
    """Files that the page needs beside it."""

    def source(self, run: RunFiles, name: str) -> str | None:
        """The `src` of a file in a run folder: its content when it is small, else its path as seen from the page.

        None where there is no such file in the folder.
        """
        file = run.find_media(name) if Path(name).suffix.lower() in MEDIA else None
        kind = None if file is None else MEDIA.get(file.suffix.lower())
        if file is None or kind is None:
            return None
        size = file.stat().st_size
        if size <= min(EMBEDDED_FILE, self.room):
            self.room -= size
            return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
        self.linked += 1
        return quote(os.path.relpath(file, self.folder.resolve()))


@dataclass(slots=True)
class Shown:
    """One sample: a video or an image, or an answer."""

    caption: str
    source: str | None = None
    is_video: bool = False
    answer: str | None = None
    right: bool | None = None
    missing: str | None = None
    """The file that is not shown, and why."""


@dataclass(slots=True)
class Row:
    """The samples of one prompt, oldest first."""

    prompt: str
    about: str = ""
    """The file that a question is about, as the run has it."""
    expected: str | None = None
    media: str | None = None
    """`src` of what a question is about."""
    media_is_video: bool = False
    shown: list[Shown] = field(default_factory=list)
    more: int = 0
    """Samples that are left out of the page."""

    @property
    def answers(self) -> bool:
        """Whether words were drawn here, which are read rather than looked at."""
        return any(shown.answer is not None for shown in self.shown)

    @property
    def key(self) -> tuple[str, str]:
        return self.prompt, self.about


def rows(run: RunFiles, place: Place, *, prefix: str = "") -> list[Row]:
    """The samples of a run by what they are asked, in the order of their first appearance.

    One question may be asked about several files. `prefix` stands before each caption.
    """
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for sample in run.samples:
        if isinstance(sample.get("step"), int):
            grouped.setdefault((str(sample.get("prompt", "")), about(sample)), []).append(sample)
    return [row(run, prompt, samples, place, prefix) for (prompt, _), samples in list(grouped.items())[:MOST_PROMPTS]]


def row(run: RunFiles, prompt: str, samples: Sequence[dict[str, Any]], place: Place, prefix: str) -> Row:
    steps = sorted({sample["step"] for sample in samples})
    kept = spread(steps, MOST_STEPS)
    found = Row(prompt, about=about(samples[-1]), expected=words(samples[-1].get("expected")))
    if found.about:
        found.media = place.source(run, found.about)
        found.media_is_video = is_video(found.about)
    several = len({(sample.get("weights"), sample.get("guidance")) for sample in samples}) > 1
    for sample in sorted(samples, key=lambda sample: sample["step"]):
        if sample["step"] in kept:
            found.shown.append(show(run, sample, place, prefix, several))
        else:
            found.more += 1
    return found


def scores(rows: Sequence[Row]) -> list[tuple[str, int, int]]:
    """(caption, answers as expected, answers) of what the rows show, oldest first."""
    judged = [shown for row in rows for shown in row.shown if shown.right is not None]
    right = Counter(shown.caption for shown in judged if shown.right)
    asked = Counter(shown.caption for shown in judged)
    return [(caption, right[caption], count) for caption, count in asked.items()]


def about(sample: dict[str, Any]) -> str:
    return str(sample.get("media") or "")


def show(run: RunFiles, sample: dict[str, Any], place: Place, prefix: str, several: bool) -> Shown:
    told = [prefix, f"step {sample['step']}"]
    if several:
        weights = {"ema": "averaged", "live": "live"}.get(str(sample.get("weights")), sample.get("weights"))
        guidance = sample.get("guidance")
        told += [str(weights or ""), "" if guidance is None else f"guidance {guidance:g}"]
    caption = " · ".join(text for text in told if text)
    if sample.get("kind") == "answer":
        answer, expected = words(sample.get("answer")) or "", words(sample.get("expected"))
        right = None if expected is None else answer.strip().casefold() == expected.strip().casefold()
        return Shown(caption, answer=answer, right=right)
    file = str(sample.get("file") or "")
    source = place.source(run, file)
    return Shown(caption, source=source, is_video=is_video(file), missing=None if source else missing(run, file))


def missing(run: RunFiles, file: str) -> str:
    """Why a file is not shown."""
    if file in run.outside:
        return f"{file} lies outside the run folder"
    return f"{file or 'no file'} is not there"


def spread(steps: Sequence[int], most: int) -> set[int]:
    """At most so many of the steps, evenly, with the first and the last."""
    if len(steps) <= most:
        return set(steps)
    return {steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)}


def is_video(file: str) -> bool:
    return MEDIA.get(Path(file).suffix.lower(), "").startswith("video/")


def words(value: Any) -> str | None:
    return None if value is None else str(value)
