"""Batches of dummy data, for plans of runs whose data cannot be read."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.data.clips.resolution import RESOLUTIONS, exact_size
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.video_sample import FirstFrames, VideoSample
from worldsmith.data.latent_cache import TextCache

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.latent_grid import LatentGrid
    from worldsmith.data.clips.video_dataset import VideoDataset
    from worldsmith.data.conversations.chat_loader import ChatLoader
    from worldsmith.data.conversations.chat_processor import ChatSample
    from worldsmith.data.conversations.media.media_processor import MediaProcessor

CAPTION_TOKENS = 200
"""Tokens of a caption, and of the text of a conversation."""
ASPECT = "16,9"
"""Assumed aspect bucket of a resolution tier."""
RATE = 24.0
"""Assumed frame rate, if the dataset has none."""
Kind = Literal["image", "video"]
TYPES = {"image": 1, "video": 2}
WIDTH, HEIGHT = 1280, 720
"""Assumed size of an image in pixels, before it is resized for the model."""
ANSWER_TOKENS = 100
"""Supervised tokens of a conversation."""
BETWEEN = 9
"""Tokens between two timestamps of a video: the timestamp as text, and the vision tokens around a frame."""


@dataclass(frozen=True, slots=True)
class AssumedBatch:
    """Dummy samples of the type of a task's loader. Their large tensors are views of a single element."""

    samples: Sequence[Any]
    assumption: str
    """The assumption as text: "46 clips of 61 frames of 320x192 pixels, captions of 211 tokens"."""


class AssumedTexts(TextCache):
    """A text cache for plans that contains every caption and has no folder."""

    def __init__(self, shape: tuple[int, int], precision: str) -> None:
        """Sets the shape (tokens, channels) and precision of the hidden states of a caption."""
        self.shape, self.precision = shape, precision
        self.fingerprint, self.unwritten = "", 0

    def get(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor | None:
        import torch

        return torch.zeros(self.shape, dtype=getattr(torch, self.precision))

    def put(self, key: str, encoded: Tensor) -> None:
        """No effect: every caption counts as cached."""


def assumed_clips(
    data: VideoLoader.Config,
    grid: LatentGrid,
    *,
    channels: int,
    first_frames: FirstFrames = "none",
    fill: float = 1.0,
    encoded: bool = True,
) -> AssumedBatch:
    """Returns dummy clips that fill the fraction `fill` of a pack; captions fill the rest, up to their limit.

    A clip that does not fit into that fraction is assumed to be shorter.

    Args:
        data: Config of the loader.
        grid: Latent grid of the video VAE.
        channels: Channels of the latents.
        first_frames: What samples contain of their first frame; a frame that is encoded in every step has pixels.
        fill: Fraction of the token cap of a pack, 0 to 1.
        encoded: Clips have latents (as from a cache); False: pixels.
    """
    dataset, room = data.dataset, room_of(data.max_sequence_length, fill)
    width, height = exact_size(dataset.resolution) or RESOLUTIONS[dataset.resolution][ASPECT]
    caption = min(CAPTION_TOKENS, data.max_caption_tokens)
    frames = grid.usable_frames(frames_of(dataset))
    while (tokens := grid.sample_tokens(caption, shape := grid.latent_shape(frames, height, width))) > room:
        if frames == 1:
            break
        frames = grid.usable_frames(max(1, frames // 2))
    count = max(1, int(room // tokens)) if data.max_sequence_length else max(1, round(fill * most(data)))
    if data.max_sequence_length:
        caption = min(data.max_caption_tokens, caption + max(0, int(room) // count - tokens))
        tokens = grid.sample_tokens(caption, shape)
    fps = dataset.conditioning_fps if dataset.conditioning_fps > 0 else RATE
    bare = [
        VideoSample(
            key=f"assumed_{place}",
            position=place,
            text_ids=[1] * caption,
            caption="assumed",
            video=None,
            latents=None,
            latent_shape=shape,
            size=(height, width),
            num_frames=frames,
            fps=fps,
            condition_frames=0,
            num_tokens=tokens,
            cache_key=None,
            resolution=dataset.resolution,
        )
        for place in range(count)
    ]
    clips = [with_contents(clip, kind=first_frames, channels=channels, encoded=encoded) for clip in bare]
    what = count_of(count, "image" if frames == 1 else "clip")
    of = "" if frames == 1 else f" of {frames} frames"
    return AssumedBatch(clips, f"{what}{of} of {width}x{height} pixels, captions of {caption} tokens")


def assumed_chats(
    data: ChatLoader.Config, media: MediaProcessor | None, placeholders: dict[str, int], *, fill: float = 1.0
) -> AssumedBatch:
    """Returns dummy conversations with one image or video each that fill a fraction of a pack.

    If the number of samples of a pack is limited, each conversation has enough images or videos to fill the pack.

    Args:
        data: Config of the loader.
        media: Processor of the model; None for a text model.
        placeholders: IDs of the placeholder tokens of "image" and "video".
        fill: Fraction of the token cap of a pack, 0 to 1.
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
    samples = [assumed_chat(place, text, [grid] * pictures, kind, media, placeholders) for place in range(count)]
    what = "no images" if not pictures else f"{count_of(pictures, kind)} of {size_of(grid, kind, media)}"
    words = f"{count_of(count, 'conversation')} of {samples[0].num_tokens:,} tokens, each with {what}"
    return AssumedBatch(samples, f"{words} and {samples[0].num_supervised} supervised tokens")


def count_of(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def with_contents(clip: VideoSample, *, kind: FirstFrames, channels: int, encoded: bool) -> VideoSample:
    """Adds dummy pixels or latents to a clip, and its first frame."""
    clip = replace(
        clip,
        video=None if encoded else constant("uint8", 3, clip.num_frames, *clip.size),
        latents=constant("float32", channels, *clip.latent_shape) if encoded else None,
    )
    clip.image = None if kind == "none" else assumed_first_frame(clip, kind, channels=channels, encoded=encoded)
    return clip


def assumed_first_frame(clip: VideoSample, kind: FirstFrames, *, channels: int, encoded: bool) -> VideoSample:
    """Returns the dummy sample of the first frame of a clip, as a loader builds it."""
    opening = kind.startswith("opening")
    shape = clip.latent_shape if opening else (1, *clip.latent_shape[1:])
    pixels = not encoded or kind in ("encoded in every epoch", "opening and pixels")
    return replace(
        clip,
        video=constant("uint8", 3, 1, *clip.size) if pixels else None,
        latents=constant("float32", channels, *shape) if encoded and kind != "encoded in every epoch" else None,
        latent_shape=shape,
        num_frames=clip.num_frames if opening else 1,
    )


def frames_of(dataset: VideoDataset.Config) -> int:
    """Returns the frames of a clip: the number that the dataset sets, or its minimum if it uses whole windows."""
    if dataset.num_video_frames > 0:
        return dataset.num_video_frames
    return max(dataset.frame_buckets) if dataset.frame_buckets else dataset.min_frames


def room_of(cap: int | None, fill: float) -> float:
    """Returns the max tokens of a batch, strictly below the cap as in a loader; infinite without a cap."""
    return math.inf if cap is None else max(1, min(int(fill * cap), cap - 1))


def most(data: Any) -> int:
    """Returns the max number of samples of a batch; 1 if it is not limited."""
    return int(data.max_samples_per_batch or 1)


def constant(dtype: str, *shape: int) -> Tensor:
    """Returns zeros that share the memory of one element."""
    import torch

    return torch.zeros((), dtype=getattr(torch, dtype)).expand(shape)


def grid_of(media: MediaProcessor, kind: Kind) -> tuple[int, int, int]:
    """Returns the patches (time, rows, columns) of an image of the assumed size, or of a video with max frames."""
    if kind == "image":
        limits: Any = media.images
        size = media.image_size(HEIGHT, WIDTH)
        return 1, size[0] // limits.patch, size[1] // limits.patch
    limits, config = media.videos, media.config
    frames = config.nframes or config.max_frames or limits.max_frames
    size = media.video_size(frames, HEIGHT, WIDTH)
    return -(-frames // limits.temporal), size[0] // limits.patch, size[1] // limits.patch


def tokens_of(grid: tuple[int, int, int], media: MediaProcessor | None) -> int:
    """Returns the tokens of an image or video, including the tokens around it."""
    return 0 if media is None else sum(spans_of(grid, media)) + BETWEEN * len(spans_of(grid, media))


def spans_of(grid: tuple[int, int, int], media: MediaProcessor) -> list[int]:
    """Returns the tokens of each span of an image or video: a span per time, or one for the whole video."""
    tokens = grid[1] * grid[2] // media.images.merge**2
    return [tokens] * grid[0] if media.videos.style.times_as_text else [tokens * grid[0]]


def size_of(grid: tuple[int, int, int], kind: Kind, media: Any) -> str:
    limits = media.images if kind == "image" else media.videos
    pixels = f"{grid[2] * limits.patch}x{grid[1] * limits.patch} pixels"
    return pixels if kind == "image" else f"{grid[0] * limits.temporal} frames of {pixels}"


def assumed_chat(
    place: int,
    text: int,
    grids: list[tuple[int, int, int]],
    kind: Kind,
    media: MediaProcessor | None,
    placeholders: dict[str, int],
) -> ChatSample:
    """Returns a conversation of images or videos, followed by a text that ends with the answer."""
    import torch

    from worldsmith.data.conversations.chat_processor import IGNORED, ChatSample

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
    """Adds dummy patches to a conversation whose images and videos are not decoded."""
    values = 3 * media.images.temporal * media.images.patch**2
    found: dict[str, Any] = {}
    for kind in TYPES:
        grids = getattr(sample, f"{kind}_grids")
        if grids is not None:
            found[f"{kind}_patches"] = constant("uint8", int(grids.prod(-1).sum()), values)
    return replace(sample, **found)
