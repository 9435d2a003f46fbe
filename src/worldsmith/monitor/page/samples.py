"""Samples of a run by prompt, and how the report embeds or links their media files."""

from __future__ import annotations

import base64
import io
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from worldsmith.monitor.page.run_files import RunFiles
from worldsmith.monitor.short_text import WEIGHTS_NAMES

MEDIA = {
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
"""Media types that the report shows, by file extension."""
EMBEDDED_FILE = 64_000
"""Max bytes of a file that is embedded in the page."""
EMBEDDED_PAGE = 1_200_000
"""Max bytes of all files that are embedded in one page."""
EMBEDDED_PICTURE = 500_000
"""Max bytes of an image of an evaluation that is embedded; larger ones are scaled down to it."""
EMBEDDED_PICTURES = 1_500_000
"""Max bytes of all images of evaluations that are embedded in one page."""
PICTURE_WIDTH = 1600
"""Width in pixels of the widest downscaled image of an evaluation, and of the narrowest one."""
LEAST_PICTURE_WIDTH = 400
MOST_STEPS = 8
"""Max number of steps shown per prompt, including the first and the last."""
MOST_PROMPTS = 24
OPEN_PROMPTS = 4
"""Number of prompts whose samples are visible at once; a click shows the others."""
LONG_ANSWER = 40
"""Characters above which an answer gets a wide box."""
REAL = "real clip"
HELD_OUT = "held-out caption"
"""Label in samples.jsonl of samples whose caption is from the validation data."""


@dataclass(slots=True)
class PageBudget:
    """Limits of the media that a report embeds: small files are embedded up to a total size, all others are linked."""

    folder: Path
    room: int = EMBEDDED_PAGE
    """Bytes left for embedded media files, other than images of evaluations."""
    picture_room: int | None = None
    """Bytes of evaluation images that may still be embedded in the report; `None`: `EMBEDDED_PICTURES`, or 0 if `room`
    is 0."""
    linked: int = 0
    """Number of linked files, which the report needs in addition to its own file."""

    def __post_init__(self) -> None:
        if self.picture_room is None:
            self.picture_room = EMBEDDED_PICTURES if self.room else 0

    def source(self, run: RunFiles, name: str) -> str | None:
        """Returns the `src` of a media file in a run folder: its content if it is small, else its relative path.

        Returns None if the folder has no such media file.
        """
        file = run.find_media(name) if Path(name).suffix.lower() in MEDIA else None
        kind = None if file is None else MEDIA.get(file.suffix.lower())
        if file is None or kind is None:
            return None
        size = file.stat().st_size
        if size <= min(EMBEDDED_FILE, self.room):
            self.room -= size
            return data_uri(kind, file.read_bytes())
        return self._link(file)

    def picture(self, run: RunFiles, name: str) -> str | None:
        """Returns the `src` of an evaluation image: its content (scaled down if it is large), or its relative path.

        Returns None if the image does not exist.
        """
        file, room = run.find_media(name), self.picture_room or 0
        if file is None or not room:
            return self.source(run, name)
        found = read_picture(file)
        if found is None or len(found[1]) > room:
            return self._link(file)
        self.picture_room = room - len(found[1])
        return data_uri(*found)

    def _link(self, file: Path) -> str:
        self.linked += 1
        return quote(os.path.relpath(file, self.folder.resolve()))


def data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def read_picture(file: Path) -> tuple[str, bytes] | None:
    """Returns media type and content of an image file, as a smaller JPEG if it exceeds `EMBEDDED_PICTURE` bytes.

    Returns None if the file cannot be decoded or stays too large.
    """
    if file.stat().st_size <= EMBEDDED_PICTURE:
        return MEDIA[file.suffix.lower()], file.read_bytes()
    try:
        with Image.open(file) as image:
            picture = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    width = min(PICTURE_WIDTH, picture.width)
    while width >= LEAST_PICTURE_WIDTH:
        picture = picture.resize((width, max(1, round(picture.height * width / picture.width))))
        content = io.BytesIO()
        picture.save(content, "JPEG", quality=80)
        if content.tell() <= EMBEDDED_PICTURE:
            return "image/jpeg", content.getvalue()
        width = width * 3 // 4
    return None


@dataclass(slots=True)
class Shown:
    """A generated sample as the report shows it: a video, an image or an answer."""

    caption: str
    """Text below the sample, such as "step 200"."""
    source: str | None = None
    """`src` attribute of the video or image: a data URI or a relative path; None for an answer or a missing file."""
    is_video: bool = False
    answer: str | None = None
    """Generated answer; None for a video or image."""
    right: bool | None = None
    """Whether the answer equals the ground truth; None without ground truth."""
    missing: str | None = None
    """Message with the file that is not shown and the reason; None if it is shown."""
    run: int | None = None
    """Index of the run of this sample in a comparison of runs, which selects the color."""


@dataclass(slots=True)
class PromptSamples:
    """Samples of one prompt as the report shows them, oldest first."""

    prompt: str
    about: str = ""
    """The file that a question is about, as stored by the run."""
    source: str = ""
    """Label in samples.jsonl: whether the prompt is from the training or the held-out data; "": unknown."""
    expected: str | None = None
    """Ground-truth answer; None: not known."""
    media: str | None = None
    """`src` of the media of a question."""
    media_is_video: bool = False
    real: Shown | None = None
    """Real clip of the dataset, whose caption was used as the prompt."""
    shown: list[Shown] = field(default_factory=list)
    more: int = 0
    """Samples that the page omits."""

    @property
    def answers(self) -> bool:
        """Whether the samples are answers (strings) and not videos or images."""
        return any(shown.answer is not None for shown in self.shown)

    @property
    def is_long(self) -> bool:
        """Whether an answer has more than `LONG_ANSWER` characters, so that it is shown in a wide box."""
        return any(len(shown.answer or "") > LONG_ANSWER for shown in self.shown)

    @property
    def key(self) -> tuple[str, str]:
        """(prompt, image or video file that the question is about), which identifies the group; "": no file."""
        return self.prompt, self.about


def rows(run: RunFiles, budget: PageBudget, *, prefix: str = "", index: int | None = None) -> list[PromptSamples]:
    """Groups the samples of a run by prompt and by the image or video that a question is about.

    Args:
        run: Files of the run.
        budget: Embeds or links media files.
        prefix: Text before the caption below each sample, such as the name of the run.
        index: Index of the run in a comparison; None: a single run.

    Returns:
        At most `MOST_PROMPTS` groups, in the order in which prompts first appear; groups of one prompt are adjacent.
    """
    grouped: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for sample in run.samples:
        if isinstance(sample.get("step"), int):
            prompt = str(sample.get("prompt", ""))
            grouped.setdefault(prompt, {}).setdefault(about(sample), []).append(sample)
    found = [(prompt, samples) for prompt, files in grouped.items() for samples in files.values()]
    return [row(run, prompt, samples, budget, prefix, index) for prompt, samples in found[:MOST_PROMPTS]]


def count_rows(run: RunFiles) -> int:
    """Returns the number of groups that `rows` would return without its limit."""
    return len({(str(s.get("prompt", "")), about(s)) for s in run.samples if isinstance(s.get("step"), int)})


def group_by_prompt(rows: Sequence[PromptSamples]) -> list[tuple[str, list[PromptSamples]]]:
    """Groups rows by prompt: returns (prompt, its rows) in the order in which prompts first appear."""
    found: dict[str, list[PromptSamples]] = {}
    for row in rows:
        found.setdefault(row.prompt, []).append(row)
    return list(found.items())


def row(
    run: RunFiles, prompt: str, samples: Sequence[dict[str, Any]], budget: PageBudget, prefix: str, index: int | None
) -> PromptSamples:
    steps = sorted({sample["step"] for sample in samples})
    kept = pick_evenly(steps, MOST_STEPS)
    last = samples[-1]
    found = PromptSamples(prompt, about(last), words(last.get("source")) or "", words(last.get("expected")))
    if found.about:
        found.media = budget.source(run, found.about)
        found.media_is_video = is_video(found.about)
    if real := next((sample["real"] for sample in reversed(samples) if sample.get("real")), None):
        found.real = media(run, str(real), budget, REAL)
    varied = [name for name in ("weights", "guidance") if len({sample.get(name) for sample in samples}) > 1]
    for sample in sorted(samples, key=lambda sample: sample["step"]):
        if sample["step"] in kept:
            shown = show(run, sample, budget, caption(sample, prefix, varied))
            shown.run = index
            found.shown.append(shown)
        else:
            found.more += 1
    return found


def scores(rows: Sequence[PromptSamples]) -> list[tuple[str, int, int]]:
    """Returns (caption, number of correct answers, number of answers) for each step with answers, oldest first."""
    answers = [shown for row in rows for shown in row.shown if shown.right is not None]
    right = Counter(shown.caption for shown in answers if shown.right)
    counts = Counter(shown.caption for shown in answers)
    return [(caption, right[caption], count) for caption, count in counts.items()]


def about(sample: dict[str, Any]) -> str:
    return str(sample.get("media") or "")


def caption(sample: dict[str, Any], prefix: str, varied: Sequence[str]) -> str:
    """Formats `prefix` and the step of a sample, and its weights and guidance scale if they are named in `varied`."""
    parts = [prefix, f"step {sample['step']}"]
    if "weights" in varied:
        weights = str(sample.get("weights") or "")
        parts.append(WEIGHTS_NAMES.get(weights, weights))
    if "guidance" in varied and sample.get("guidance") is not None:
        parts.append(f"guidance {sample['guidance']:g}")
    return " · ".join(text for text in parts if text)


def show(run: RunFiles, sample: dict[str, Any], budget: PageBudget, caption: str) -> Shown:
    if sample.get("kind") == "answer":
        answer, expected = words(sample.get("answer")) or "", words(sample.get("expected"))
        right = None if expected is None else answer.strip().casefold() == expected.strip().casefold()
        return Shown(caption, answer=answer, right=right)
    return media(run, str(sample.get("file") or ""), budget, caption)


def media(run: RunFiles, file: str, budget: PageBudget, caption: str) -> Shown:
    """Returns the report entry of a video or image in the run folder.

    Args:
        run: Files of the run.
        file: Path of the video or image, relative to the run folder. If the file does not exist, the entry contains the
            reason instead.
        budget: Embeds or links the file.
        caption: Caption of the entry.
    """
    source = budget.source(run, file)
    return Shown(caption, source=source, is_video=is_video(file), missing=None if source else missing(run, file))


def missing(run: RunFiles, file: str) -> str:
    """Returns the reason why the media file `file` of the run is not shown."""
    if file in run.outside:
        return f"{file} is outside the run folder"
    return f"{file or 'no file'} does not exist"


def pick_evenly(steps: Sequence[int], count: int) -> set[int]:
    """Selects at most `count` evenly spaced steps, including the first and the last."""
    if len(steps) <= count:
        return set(steps)
    return {steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)}


def is_video(file: str) -> bool:
    return MEDIA.get(Path(file).suffix.lower(), "").startswith("video/")


def words(value: Any) -> str | None:
    return None if value is None else str(value)
