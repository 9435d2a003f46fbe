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
    from worldsmith.data.conversations.chat_loader import ChatLoader
    from worldsmith.data.conversations.chat_processor import ChatSample
    from worldsmith.data.conversations.media.media_processor import MediaProcessor

CAPTION_TOKENS = 200
"""Assumed number of tokens of a caption, and of the unsupervised text of a conversation."""
ASPECT = "16,9"
"""Assumed aspect ratio "width,height" of the clips if the config has a resolution bucket."""
Kind = Literal["image", "video"]
TYPES = {"image": 1, "video": 2}
"""Token type of the placeholder tokens of each media type; text is 0."""
WIDTH, HEIGHT = 1280, 720
"""Assumed size of an image in pixels, before it is resized for the model."""
ANSWER_TOKENS = 100
"""Supervised tokens of a conversation."""
BETWEEN = 9
"""Assumed number of tokens around a frame of a video: the timestamp as text, and a start and an end token."""


@dataclass(frozen=True, slots=True)
class DummyBatch:
    """Dummy samples of one pack (loader batch), with which `worldsmith plan` estimates the memory and time of a step.

    Large tensors are views of a single element, so they need no memory.
    """

    samples: Sequence[Any]
    """Samples of the type that the data loader of the task yields, such as `VideoSample`."""
    assumption: str
    """Description of the samples: "46 clips of 61 frames of 320x192 pixels, captions of 211 tokens"."""


class AssumedTexts(TextCache):
    """Dummy cache of caption embeddings for `worldsmith plan`: `get` returns zeros for every caption, without files."""

    def __init__(self, shape: tuple[int, int], precision: str) -> None:
        """Sets the tensor that `get` returns for every caption.

        Args:
            shape: (tokens, channels) of the hidden states of a caption.
            precision: Name of a torch dtype, such as "bfloat16".
        """
        self.shape, self.precision = shape, precision
        self.fingerprint, self.unwritten = "", 0

    def get(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor | None:
        import torch

        return torch.zeros(self.shape, dtype=getattr(torch, self.precision))

    def put(self, key: str, encoded: Tensor) -> None:
        """Does nothing, since every caption counts as cached."""


def assumed_clips(
    data: VideoLoader.Config,
    grid: LatentGrid,
    *,
    channels: int,
    first_frames: FirstFrames = "none",
    fill: float = 1.0,
    encoded: bool = True,
) -> DummyBatch:
    """Returns a pack of dummy clips that has the fraction `fill` of the max number of tokens (or samples) of a pack.

    Clips that are too long for that number of tokens get fewer frames. Captions are lengthened, up to their limit, to
    use the tokens that the clips leave free.

    Args:
        data: Config of the data loader.
        grid: Latent grid of the video VAE.
        channels: Number of channels of the latents.
        first_frames: Form of the first frame (pixels or latents) that each sample contains in addition to its clip.
        fill: Fraction of the token limit of a pack, or of its number of samples if it has no token limit; 0 to 1.
        encoded: Whether the clips have latents, as from a cache; False: pixels.
    """
    room = max_pack_tokens(data.max_sequence_length, fill)
    resolution, length, fps, actions = data.dataset.assumed_clip()
    rows = 0 if actions is None else len(actions.rows)
    width, height = exact_size(resolution) or RESOLUTIONS[resolution][ASPECT]
    caption = min(CAPTION_TOKENS, data.max_caption_tokens)
    frames = grid.usable_frames(length)
    while (tokens := grid.sample_tokens(caption, shape := grid.latent_shape(frames, height, width)) + rows) > room:
        if frames == 1 or rows:
            break
        frames = grid.usable_frames(max(1, frames // 2))
    count = int(room // tokens) if data.max_sequence_length else round(fill * (data.max_samples_per_batch or 1))
    count = max(1, count)
    if data.max_sequence_length:
        caption = min(data.max_caption_tokens, caption + max(0, int(room) // count - tokens))
        tokens = grid.sample_tokens(caption, shape) + rows
    bare = [
        VideoSample(
            key=f"assumed_{index}",
            position=index,
            text_ids=[1] * caption,
            caption="assumed",
            video=None,
            latents=None,
            latent_shape=shape,
            size=(height, width),
            num_frames=frames,
            fps=fps,
            condition_frames=0 if actions is None else 1,
            num_tokens=tokens,
            cache_key=None,
            resolution=resolution,
            actions=actions,
        )
        for index in range(count)
    ]
    clips = [with_contents(clip, kind=first_frames, channels=channels, encoded=encoded) for clip in bare]
    what = count_of(count, "image" if frames == 1 else "clip")
    of = "" if frames == 1 else f" of {frames} frames"
    return DummyBatch(clips, f"{what}{of} of {width}x{height} pixels, captions of {caption} tokens")


def assumed_chats(
    data: ChatLoader.Config, media: MediaProcessor | None, placeholders: dict[str, int], *, fill: float = 1.0
) -> DummyBatch:
    """Returns a pack of dummy conversations that has the fraction `fill` of the max number of tokens of a pack.

    Each conversation has one image or video (none for a text model). If the number of samples of a pack is limited,
    each conversation has as many images or videos as are required to reach that number of tokens.

    Args:
        data: Config of the data loader.
        media: Media processor of the model; None for a text model.
        placeholders: Token ID of the placeholder of "image" and of "video".
        fill: Fraction of the token limit of a pack, or of its number of samples if it has no token limit; 0 to 1.
    """
    kind: Kind = data.dataset.usual_media
    grid = (0, 0, 0) if media is None else assumed_grid(media, kind)
    text = CAPTION_TOKENS + ANSWER_TOKENS
    shown = count_tokens(grid, media)
    room = max_pack_tokens(data.max_sequence_length, fill)
    longest = data.max_sample_tokens or sys.maxsize
    limit = data.max_samples_per_batch
    while grid[0] > 1 and text + shown > min(room, longest):
        grid = (grid[0] // 2, *grid[1:])
        shown = count_tokens(grid, media)
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
    samples = [assumed_chat(index, text, [grid] * pictures, kind, media, placeholders) for index in range(count)]
    what = "no images" if not pictures else f"{count_of(pictures, kind)} of {size_of(grid, kind, media)}"
    words = f"{count_of(count, 'conversation')} of {samples[0].num_tokens:,} tokens, each with {what}"
    return DummyBatch(samples, f"{words} and {samples[0].num_supervised} supervised tokens")


def count_of(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def with_contents(clip: VideoSample, *, kind: FirstFrames, channels: int, encoded: bool) -> VideoSample:
    """Returns a copy of a sample with dummy pixels or latents, and with a dummy first frame in `image`.

    Args:
        clip: Sample of a clip; its shapes and sizes determine those of the dummy tensors.
        kind: Form of the first frame; "none": `image` is None.
        channels: Number of channels of the latents.
        encoded: Whether the clip gets latents, as from a cache; False: pixels.
    """
    clip = replace(
        clip,
        video=None if encoded else shared_zeros("uint8", 3, clip.num_frames, *clip.size),
        latents=shared_zeros("float32", channels, *clip.latent_shape) if encoded else None,
    )
    clip.image = None if kind == "none" else assumed_first_frame(clip, kind, channels=channels, encoded=encoded)
    return clip


def assumed_first_frame(clip: VideoSample, kind: FirstFrames, *, channels: int, encoded: bool) -> VideoSample:
    """Returns a dummy sample of the first frame of `clip`, with the pixels or latents that `kind` requires.

    Args:
        clip: Sample of the clip.
        kind: Form of the first frame, except "none".
        channels: Number of channels of the latents.
        encoded: Whether the latents of the frame are cached; False: the sample has pixels.
    """
    opening = kind.startswith("opening")
    shape = clip.latent_shape if opening else (1, *clip.latent_shape[1:])
    pixels = not encoded or kind in ("encoded in every epoch", "opening and pixels")
    return replace(
        clip,
        video=shared_zeros("uint8", 3, 1, *clip.size) if pixels else None,
        latents=shared_zeros("float32", channels, *shape) if encoded and kind != "encoded in every epoch" else None,
        latent_shape=shape,
        num_frames=clip.num_frames if opening else 1,
    )


def max_pack_tokens(cap: int | None, fill: float) -> float:
    """Returns the max tokens of a pack: `fill` (0 to 1) times the exclusive limit `cap`; infinity if `cap` is None."""
    return math.inf if cap is None else max(1, min(int(fill * cap), cap - 1))


def shared_zeros(dtype: str, *shape: int) -> Tensor:
    """Returns a tensor of zeros of this dtype name and shape, whose elements all share the memory of one element."""
    import torch

    return torch.zeros((), dtype=getattr(torch, dtype)).expand(shape)


def assumed_grid(media: MediaProcessor, kind: Kind) -> tuple[int, int, int]:
    """Returns the number of patches (time, rows, columns) of a dummy image, or of a dummy video.

    The video has the max number of frames that the limits allow. The size of the image or frames is
    `WIDTH` x `HEIGHT` pixels before they are resized for the model.
    """
    if kind == "image":
        limits: Any = media.images
        size = media.image_size(HEIGHT, WIDTH)
        return 1, size[0] // limits.patch, size[1] // limits.patch
    limits, config = media.videos, media.config
    frames = config.nframes or config.max_frames or limits.max_frames
    size = media.video_size(frames, HEIGHT, WIDTH)
    return -(-frames // limits.temporal), size[0] // limits.patch, size[1] // limits.patch


def count_tokens(grid: tuple[int, int, int], media: MediaProcessor | None) -> int:
    """Returns the number of tokens of an image or video with `grid` = (time, rows, columns) patches; 0 without media.

    Timestamps and the start and end tokens of frames are included.
    """
    return 0 if media is None else sum(placeholder_spans(grid, media)) + BETWEEN * len(placeholder_spans(grid, media))


def placeholder_spans(grid: tuple[int, int, int], media: MediaProcessor) -> list[int]:
    """Returns the length of each uninterrupted span of placeholder tokens of an image or video.

    A video has one span per temporal patch if the network expects timestamps as text, else a single span.
    """
    tokens = grid[1] * grid[2] // media.images.merge**2
    return [tokens] * grid[0] if media.videos.style.times_as_text else [tokens * grid[0]]


def size_of(grid: tuple[int, int, int], kind: Kind, media: Any) -> str:
    limits = media.images if kind == "image" else media.videos
    pixels = f"{grid[2] * limits.patch}x{grid[1] * limits.patch} pixels"
    return pixels if kind == "image" else f"{grid[0] * limits.temporal} frames of {pixels}"


def assumed_chat(
    index: int,
    text: int,
    grids: list[tuple[int, int, int]],
    kind: Kind,
    media: MediaProcessor | None,
    placeholders: dict[str, int],
) -> ChatSample:
    """Returns a dummy conversation: images or videos, then text that ends with the supervised answer.

    Args:
        index: Index of the conversation, used as its position and in its key.
        text: Number of text tokens, including the answer.
        grids: Patches (time, rows, columns) of each image or video.
        kind: Type of the media.
        media: Media processor of the model; None for a text model.
        placeholders: Token ID of the placeholder of "image" and of "video".
    """
    import torch

    from worldsmith.data.conversations.chat_processor import IGNORED, ChatSample

    types: list[int] = []
    for grid in grids:
        assert media is not None
        for tokens in placeholder_spans(grid, media):
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
    sample = ChatSample(f"assumed_{index}", index, len(ids), ids, labels, token_types, **shown)
    return sample if media is None else with_patches(sample, media)


def with_patches(sample: ChatSample, media: MediaProcessor) -> ChatSample:
    """Returns a copy of a conversation with dummy patches, as many as its `image_grids` and `video_grids` require.

    Args:
        sample: Sample whose images and videos are not decoded.
        media: Media processor of the model, which determines the number of values per patch.
    """
    values = 3 * media.images.temporal * media.images.patch**2
    found: dict[str, Any] = {}
    for kind in TYPES:
        grids = getattr(sample, f"{kind}_grids")
        if grids is not None:
            found[f"{kind}_patches"] = shared_zeros("uint8", int(grids.prod(-1).sum()), values)
    return replace(sample, **found)
