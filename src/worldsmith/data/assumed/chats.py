"""Assumed batches of conversations: pictures of one size, then a question and an answer."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.data.assumed.batch import CAPTION_TOKENS, AssumedBatch, count_of
from worldsmith.data.assumed.clips import constant, room_of
from worldsmith.data.conversations.chat_sample import IGNORED, ChatSample

if TYPE_CHECKING:
    from worldsmith.data.conversations.chat_loader import ChatLoader
    from worldsmith.data.conversations.media.media_processor import MediaProcessor

Kind = Literal["image", "video"]
TYPES = {"image": 1, "video": 2}
WIDTH, HEIGHT = 1280, 720
"""Of an assumed picture, before it is brought to a size that the model takes."""
ANSWER_TOKENS = 100
"""Supervised tokens of a conversation."""
BETWEEN = 9
"""Tokens between two times of a video: the time in words, and what encloses a picture."""


def assumed_chats(
    data: ChatLoader.Config, media: MediaProcessor | None, placeholders: dict[str, int], *, fill: float = 1.0
) -> AssumedBatch:
    """Conversations of one picture each, of the kind of the data set, that fill a share of a pack.

    Where the number of samples of a pack is limited, each has as many pictures as fill it. `media` is None for a model
    of texts. `placeholders`: the ids of tokens in whose place an image or a video stands.
    """
    kind: Kind = data.dataset.usual_media
    grid = (0, 0, 0) if media is None else grid_of(media, kind)
    text = CAPTION_TOKENS + ANSWER_TOKENS
    shown = tokens_of(grid, media)
    room = room_of(data.max_sequence_length, fill)
    longest = data.max_sample_tokens or sys.maxsize
    limit = data.max_samples_per_batch
    while grid[0] > 1 and text + shown > min(room, longest):
        grid = (grid[0] // 2, *grid[1:])
        shown = tokens_of(grid, media)
    if data.max_sequence_length is None:
        count, pictures = max(1, round(fill * (limit or 1))), 1
        text = max(2, min(text, longest - shown))
    else:
        most = max(1, int(room) // (text + shown))
        count = min(most, limit or most)
        each = min(int(room) // count, longest)
        pictures = max(1, (each - text) // shown) if shown else 0
        text = max(2, each - pictures * shown)
    pictures = pictures if media is not None else 0
    samples = [sample_of(place, text, [grid] * pictures, kind, media, placeholders) for place in range(count)]
    what = "no pictures" if not pictures else f"{count_of(pictures, kind)} of {size_of(grid, kind, media)}"
    words = f"{count_of(count, 'conversation')} of {samples[0].num_tokens:,} tokens, each with {what}"
    return AssumedBatch(samples, f"{words} and {samples[0].num_supervised} tokens to learn")


def grid_of(media: MediaProcessor, kind: Kind) -> tuple[int, int, int]:
    """Patches in time, rows and columns of a picture of the assumed size; a video has all frames that may be taken."""
    if kind == "image":
        limits: Any = media.images
        size = media.image_size(HEIGHT, WIDTH)
        return 1, size[0] // limits.patch, size[1] // limits.patch
    limits, config = media.videos, media.config
    frames = config.nframes or config.max_frames or limits.max_frames
    size = media.video_size(frames, HEIGHT, WIDTH)
    return -(-frames // limits.temporal), size[0] // limits.patch, size[1] // limits.patch


def tokens_of(grid: tuple[int, int, int], media: MediaProcessor | None) -> int:
    """Of a picture with what encloses it."""
    return 0 if media is None else sum(spans_of(grid, media)) + BETWEEN * len(spans_of(grid, media))


def spans_of(grid: tuple[int, int, int], media: MediaProcessor) -> list[int]:
    """Tokens of each of the spans in which a picture is shown: one for each time, or one for all of a video."""
    tokens = grid[1] * grid[2] // media.images.merge**2
    return [tokens] * grid[0] if media.videos.style.times_as_text else [tokens * grid[0]]


def size_of(grid: tuple[int, int, int], kind: Kind, media: Any) -> str:
    limits = media.images if kind == "image" else media.videos
    pixels = f"{grid[2] * limits.patch}x{grid[1] * limits.patch} pixels"
    return pixels if kind == "image" else f"{grid[0] * limits.temporal} frames of {pixels}"


def sample_of(
    place: int,
    text: int,
    grids: list[tuple[int, int, int]],
    kind: Kind,
    media: MediaProcessor | None,
    placeholders: dict[str, int],
) -> ChatSample:
    """Pictures first, then the text, of which the end is the answer."""
    import torch

    types: list[int] = []
    for grid in grids:
        assert media is not None
        for tokens in spans_of(grid, media):
            types += [0] * BETWEEN + [TYPES[kind]] * tokens
    types += [0] * text
    token_types = torch.tensor(types)
    ids = torch.ones_like(token_types).masked_fill(token_types == TYPES[kind], placeholders.get(kind, 0))
    labels = torch.full_like(ids, IGNORED)
    answer = min(ANSWER_TOKENS, text - 1)
    labels[-answer:] = ids[-answer:]
    shown: dict[str, Any] = {f"{kind}_grids": torch.tensor(grids)} if grids else {}
    if grids and media is not None and kind == "video":
        rate = media.config.fps or media.videos.fps
        shown["video_seconds"] = torch.full((len(grids),), media.videos.temporal / rate)
    sample = ChatSample(f"assumed_{place}", place, len(ids), ids, labels, token_types, **shown)
    return sample if media is None else with_patches(sample, media)


def with_patches(sample: ChatSample, media: MediaProcessor) -> ChatSample:
    """A conversation of whose pictures none was decoded, with patches of one value."""
    values = 3 * media.images.temporal * media.images.patch**2
    found: dict[str, Any] = {}
    for kind in TYPES:
        grids = getattr(sample, f"{kind}_grids")
        if grids is not None:
            found[f"{kind}_patches"] = constant("uint8", int(grids.prod(-1).sum()), values)
    return replace(sample, **found)
