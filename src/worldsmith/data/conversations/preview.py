"""A look at samples as the model gets them: the tokens with their labels, and the pictures as they were scaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from worldsmith.config.write.values import escape_controls
from worldsmith.data.conversations.chat_processor import IGNORED, ChatSample
from worldsmith.data.conversations.media.pixels import unpatchify

if TYPE_CHECKING:
    from worldsmith.data.conversations.media.media_processor import MediaProcessor

KINDS: tuple[Literal["text", "image", "video"], ...] = ("text", "image", "video")
SUPERVISED, PLACEHOLDER, PLAIN = "\x1b[1;32m", "\x1b[2;36m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens that follow each other and are alike."""

    text: str
    tokens: int
    supervised: bool
    kind: Literal["text", "image", "video"]
    """Text, or placeholders of an image or a video, of which `text` shows one."""


def stretches(sample: ChatSample, tokenizer: Any) -> list[Stretch]:
    """The sample's tokens, in order."""
    columns = zip(sample.input_ids.tolist(), sample.labels.tolist(), sample.token_types.tolist())
    found = []
    for (supervised, kind), group in groupby(columns, key=lambda column: (column[1] != IGNORED, column[2])):
        ids = [token for token, _, _ in group]
        text = tokenizer.decode(ids[:1] if kind else ids, clean_up_tokenization_spaces=False)
        found.append(Stretch(text, len(ids), supervised, KINDS[kind]))
    return found


def written(found: list[Stretch], *, colour: bool) -> str:
    """For people: what is supervised is green, or stands in [[ ]] without colour."""
    before, after = (SUPERVISED, PLAIN) if colour else ("[[", "]]")
    dim, plain = (PLACEHOLDER, PLAIN) if colour else ("", "")
    texts = []
    for stretch in found:
        text = escape_controls(stretch.text)
        if stretch.kind != "text":
            texts.append(f"{dim}{text}×{stretch.tokens}{plain}")
        else:
            texts.append(f"{before}{text}{after}" if stretch.supervised else text)
    return "".join(texts)


def pictures(sample: ChatSample, media: MediaProcessor) -> Iterator[tuple[str, np.ndarray]]:
    """("image" or "video", uint8 [T, H, W, 3]) of all that the sample shows."""
    sides = media.images
    for kind, patches, grids in (
        ("image", sample.image_patches, sample.image_grids),
        ("video", sample.video_patches, sample.video_grids),
    ):
        if patches is None or grids is None:
            continue
        start = 0
        for grid in grids.tolist():
            rows = patches[start : start + int(np.prod(grid))].numpy()
            start += len(rows)
            frames = unpatchify(rows, grid, patch=sides.patch, merge=sides.merge, temporal=sides.temporal)
            yield kind, frames[:1] if kind == "image" else frames


def contact_sheet(frames: np.ndarray, most: int) -> Image.Image:
    """At most `most` of the frames [T, 3, H, W], evenly chosen, beside each other."""
    chosen = np.linspace(0, len(frames) - 1, min(most, len(frames))).round().astype(int)
    return Image.fromarray(np.concatenate(list(frames[chosen].transpose(0, 2, 3, 1)), axis=1))


def in_terminal(picture: Image.Image, columns: int) -> Iterator[str]:
    """Lines for a terminal with 24-bit colours: each character shows two pixels, one above the other."""
    width = min(columns, picture.width)
    height = max(2, round(picture.height * width / picture.width / 2) * 2)
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BOX))
    for upper, lower in zip(pixels[::2], pixels[1::2]):
        cells = (f"\x1b[38;2;{a};{b};{c}m\x1b[48;2;{d};{e};{f}m▀" for (a, b, c), (d, e, f) in zip(upper, lower))
        yield "".join(cells) + PLAIN
