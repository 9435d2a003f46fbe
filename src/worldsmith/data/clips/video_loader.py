"""`VideoLoader`: packs of captioned clips, and `VideoSample`, their samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from worldsmith.config.declare.ranges import Count
from worldsmith.data.clips.clip_records import is_clips
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.maker import ThroughPipe

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.latent_grid import LatentGrid
    from worldsmith.data.encoded_cache import LatentCache
    from worldsmith.data.stream.quarantine import Quarantine

FirstFrames = Literal["none", "encoded each time", "cached", "opening", "opening and pixels"]
"""What a sample contains of its first frame, as a sample of its own: nothing; pixels; cached latents; cached latents of
a clip that begins with it and is empty after it; or these latents and pixels."""


class VideoLoader(PackingDataLoader):
    """The stream of the windows of a `VideoDataset`, as packs of `VideoSample`.

    Counts in addition to those of every loader: captions_truncated, variable_rate, windows_shortened, cache_hit,
    cache_miss, cache_corrupt.
    """

    class Config(PackingDataLoader.Config):
        dataset: VideoDataset.Config = field(default_factory=VideoDataset.Config)
        """The data set."""
        max_caption_tokens: Count = 2048
        """Caption ids beyond this many are cut off, after the chat template."""
        latent_cache: str = ""
        """Folder for encoded clips, and for captions that a text encoder has read; "" = off."""

    def __init__(
        self,
        config: Config,
        *,
        grid: LatentGrid,
        tokenizer: Callable[[str], list[int]],
        latent_cache: LatentCache | None = None,
        quarantine: Quarantine | None = None,
        rank: int = 0,
        world_size: int = 1,
        first_frames: FirstFrames = "none",
        only_shape: tuple[int, int, int] | None = None,
    ) -> None:
        """`tokenizer` maps a caption to its chat-templated ids, in the workers; clips of another latent shape (t, h, w)
        than `only_shape` are left out.

        Raises DataError when no window can be used.
        """
        from worldsmith.data.clips.sample_maker import ClipMaker

        config.dataset.check()
        config.check()
        if config.latent_cache and latent_cache is None:
            raise ValueError(
                f"latent_cache is '{config.latent_cache}' but no LatentCache was given; pass one, or set it to ''"
            )
        dataset = config.dataset.build()
        maker = ClipMaker(
            dataset,
            config,
            grid=grid,
            tokenizer=tokenizer,
            latent_cache=latent_cache,
            first_frames=first_frames,
            only_shape=only_shape,
        )
        super().__init__(config, maker=maker, quarantine=quarantine, rank=rank, world_size=world_size)

    @classmethod
    def dataset_at(cls, path: str) -> VideoDataset.Config | None:
        return VideoDataset.Config(path=path) if is_clips(path) else None


@dataclass(slots=True)
class VideoSample(ThroughPipe):
    """One window of one clip, ready to be encoded (`video`) or already encoded (`latents`)."""

    key: str
    """`<uuid>_w<window index>`."""
    position: int
    """Position in the endless stream of samples (epoch * len(dataset) + i); it seeds all its randomness."""
    text_ids: list[int]
    """Chat-templated caption ids, truncated; without the end-of-text and vision-start ids that packing appends."""
    caption: str
    """The text of the caption."""
    video: Tensor | None
    """uint8 [3, T, H, W] with T = 4k + 1; None when `latents` is set."""
    latents: Tensor | None
    """float32 [C, t, h, w], normalized; None when `video` is set."""
    latent_shape: tuple[int, int, int]
    """(t, h, w) of the latents."""
    size: tuple[int, int]
    """(H, W) in pixels."""
    num_frames: int
    """T."""
    fps: float
    """Conditioning fps: original / interval, or the fixed `conditioning_fps`."""
    condition_frames: int
    """Clean leading latent frames: 0 text-to-video, 1 image-to-video, 2 video-to-video."""
    num_tokens: int
    """Tokens that count toward the cap of a pack (`LatentGrid.sample_tokens`)."""
    cache_key: str | None
    """Key of the latents in the cache; None when the cache is off."""
    resolution: str
    """Resolution of the dataset: a tier such as "256", or a size such as "720x480"."""
    image: VideoSample | None = None
    """The first frame as a sample of its own, if the task needs it; also in addition to cached `latents`."""
