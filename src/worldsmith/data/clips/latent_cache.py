"""Latents on disk, so that a clip is encoded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from worldsmith.data.content_mark import content_mark
from worldsmith.data.encoded_cache import EncodedCache

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.sample import VideoSample
    from worldsmith.data.video_file import Status


class LatentCache(EncodedCache):
    """What a VAE makes of windows of clips, [C, t, h, w]; the fingerprint stands for it."""

    encoder, tensor, what = "vae", "latents", "clip"

    def put(self, key: str, encoded: Tensor) -> None:
        """Stores latents [C, t, h, w] as float32, if that is possible."""
        super().put(key, encoded.float())


def latents_of(sample: VideoSample, encode: Callable[[Tensor], Tensor], cache: LatentCache | None) -> Tensor:
    """The sample's latents [C, t, h, w], on whatever device: those that it brought, or encoded now and then kept."""
    if sample.latents is not None:
        return sample.latents
    if sample.video is None:
        raise ValueError(f"sample {sample.key} has neither latents nor a video")
    latents = encode(sample.video)
    if cache is not None and sample.cache_key is not None:
        cache.put(sample.cache_key, latents)
    return latents


def file_identity(status: Status, path: str, relative_path: str, mark: str = "") -> list[Any]:
    """What stands for a file in a key: relative path, size, modification time (ns) and `content_mark` or its `mark`.

    Not a hash of the whole content: it would read every clip in full at each access, which the cache is there to avoid.
    A rewritten file has a new time; a data set that is moved as a whole keeps its entries.
    """
    return [relative_path, status.st_size, status.st_mtime_ns, mark or content_mark(path)]
