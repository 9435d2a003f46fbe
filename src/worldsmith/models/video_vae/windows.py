"""Encodes a clip in temporal tiles: each causal convolution keeps the last input frames of the previous tile.

The first tile is the first frame, which becomes the first latent frame. Because the convolutions are causal, the cached
frames are the only past inputs that they need: for any tile length, the result equals that of the complete clip up to
rounding, while memory depends on the tile and not on the clip. Long tiles are fast for small frames, short tiles limit
the memory of large frames.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, patchify
from torch import Tensor, nn

logger = logging.getLogger(__name__)

WINDOWS = ((256 * 320, 68), (640 * 640, 24), (1184 * 896, 8))
"""(max pixels of a frame, frames per temporal tile) for the resolution buckets 256, 480, and 704 to 768; tiles of
larger frames have `SHORTEST` frames."""
SHORTEST = 4
MOST_COMPILED_SHAPES = 64

Caches = tuple[Any, ...]
"""Cache of the last input frames per causal convolution; None before the first temporal tile."""
EncodeWindow = Callable[[nn.Module, Tensor, Caches], tuple[Tensor, Caches]]


def window_frames(height: int, width: int) -> int:
    """Returns the number of frames per temporal tile for frames of `height` × `width` pixels."""
    return next((frames for pixels, frames in WINDOWS if height * width <= pixels), SHORTEST)


def window_bounds(frames: int, window: int) -> Iterator[tuple[int, int]]:
    """Yields (first, end) frame indices of the temporal tiles of a clip: frame 0 alone, then `window` frames each.

    The last tile may be shorter.
    """
    yield 0, 1
    for start in range(1, frames, window):
        yield start, min(start + window, frames)


def encode_window(encoder: nn.Module, frames: Tensor, caches: Caches) -> tuple[Tensor, Caches]:
    """Encodes one temporal tile.

    Args:
        encoder: Encoder of an `AutoencoderKLWan`.
        frames: Pixels of the tile, [1, C, T, H, W].
        caches: Last input frames of each causal convolution from the previous tile; None each for the first tile.

    Returns:
        Encoder output of the tile [1, 2·z_dim, t, h, w], and the caches for the next tile.
    """
    kept = list(caches)
    return encoder(frames, feat_cache=kept, feat_idx=[0]), tuple(kept)


def encode_in_windows(model: Any, video: Tensor, *, window: int, run: EncodeWindow = encode_window) -> Tensor:
    """Encodes a video in temporal tiles to the mean and log variance of its latents.

    Args:
        model: An `AutoencoderKLWan`.
        video: uint8 pixels [3, T, H, W], scaled to value/127.5 - 1.
        window: Frames per temporal tile, a multiple of 4.
        run: `encode_window`, possibly compiled.

    Returns:
        Mean and log variance [1, 2·z_dim, (T-1)/4+1, h, w] in the model's dtype.
    """
    device, dtype = model.device, model.dtype
    caches: Caches = (None,) * sum(isinstance(module, WanCausalConv3d) for module in model.encoder.modules())
    moments = []
    for first, end in window_bounds(video.shape[1], window):
        pixels = video[:, first:end].to(device).float().div(127.5).sub(1.0).to(dtype)[None]
        if model.config.patch_size is not None:
            pixels = patchify(pixels, model.config.patch_size)
        encoded, caches = run(model.encoder, pixels, caches)
        moments.append(encoded)
    return model.quant_conv(torch.cat(moments, dim=2))


class CompiledEncoder:
    """Callable that compiles `encode_window` for each of the first `MOST_COMPILED_SHAPES` input shapes.

    For other shapes `encode_window` runs uncompiled.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.compiled = torch.compile(  # type: ignore[call-overload]  # the stubs lack the last two
            encode_window,
            backend=backend,
            dynamic=False,
            fullgraph=True,
            recompile_limit=MOST_COMPILED_SHAPES,
            isolate_recompiles=True,
        )
        self.shapes: set[tuple[Any, ...]] = set()
        self.full = False

    def __call__(self, encoder: nn.Module, frames: Tensor, caches: Caches) -> tuple[Tensor, Caches]:
        shape = (*frames.shape, *(None if cache is None else cache.shape[2] for cache in caches))
        if shape in self.shapes:
            return self.compiled(encoder, frames, caches)
        if len(self.shapes) == MOST_COMPILED_SHAPES:
            if not self.full:
                logger.warning(
                    "the VAE encoder has been compiled for %d shapes, the maximum; other shapes run uncompiled",
                    MOST_COMPILED_SHAPES,
                )
            self.full = True
            return encode_window(encoder, frames, caches)
        start = time.perf_counter()
        result = self.compiled(encoder, frames, caches)
        self.shapes.add(shape)
        logger.info(
            "compiled the VAE encoder for %d frames of latent height and width %s in %.0f s",
            frames.shape[2], list(result[0].shape[3:]), time.perf_counter() - start,
        )  # fmt: skip
        return result
