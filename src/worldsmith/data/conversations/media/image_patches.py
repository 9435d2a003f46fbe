"""Reads images and frames of videos, and converts their pixels to patches and back."""

from __future__ import annotations

import base64
import binascii
import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch.nn import functional as F

from worldsmith.data.shards.addresses import read_clip
from worldsmith.data.stream.errors import SampleError, read_error
from worldsmith.data.video_decoder import VideoInfo, file_status, pick_few
from worldsmith.files.remote import is_remote

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
"""Accepted image formats of PIL. EPS is not accepted, since PIL runs another program to decode it."""
TURNED = (5, 6, 7, 8)
"""EXIF orientations that swap height and width."""


def image_shape(source: str | bytes) -> tuple[int, int]:
    """Returns (height, width) of an image in upright orientation; reads only its header.

    Args:
        source: Path, bytes or data URI of the image.

    Raises:
        SampleError: If the image cannot be read.
    """
    with open_image(source) as image:
        width, height = image.size
        turned = image.getexif().get(ExifTags.Base.Orientation) in TURNED
    return (width, height) if turned else (height, width)


def read_image(source: str | bytes, size: tuple[int, int]) -> np.ndarray:
    """Returns an image as uint8 [3, H, W], resized (bicubic).

    The image is rotated upright by its EXIF orientation; transparent pixels are blended with white.

    Args:
        source: Path, bytes or data URI of the image.
        size: (H, W) in pixels.

    Raises:
        SampleError: If the image cannot be read.
    """
    with open_image(source) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            white = Image.new("RGBA", upright.size, (255, 255, 255, 255))
            upright = Image.alpha_composite(white, upright.convert("RGBA"))
        resized = upright.convert("RGB").resize(size[::-1], Image.Resampling.BICUBIC)
        return np.asarray(resized).transpose(2, 0, 1)


def read_video(path: str, info: VideoInfo, indices: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    """Returns frames of a video as uint8 [T, 3, H, W], upright and resized (bicubic).

    Args:
        path: Path of the video.
        info: Metadata of the video, from `examine`.
        indices: Frame indices in ascending order.
        size: (H, W) in pixels.

    Raises:
        SampleError: If the video cannot be read.
    """
    frames = np.empty((len(indices), 3, *size), np.uint8)
    for number, frame in enumerate(pick_few(path, info, indices)):
        # One thread: starting several threads per frame takes far longer than converting a small frame.
        upright = np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24", threads=1), info.rotation))
        frames[number] = resize(torch.from_numpy(upright).permute(2, 0, 1)[None], size)[0].numpy()
    return frames


def patchify(frames: np.ndarray, *, patch: int, merge: int, temporal: int) -> np.ndarray:
    """Converts frames [T, 3, H, W] to rows [t * h * w, 3 * temporal * patch * patch], with t, h, w in patches.

    Rows are ordered by time, then blocks of `merge` x `merge` patches that become one token, then patches of a block.
    Columns are ordered by channel, frame, row, column. The last frame is repeated to fill the last patch.

    Args:
        frames: Frames; H and W are multiples of patch * merge.
        patch: Pixels per side of a patch.
        merge: Patches per side of a token.
        temporal: Frames of a patch.
    """
    if extra := -len(frames) % temporal:
        frames = np.concatenate([frames, np.repeat(frames[-1:], extra, axis=0)])
    count, channels, height, width = frames.shape
    rows, columns = height // patch, width // patch
    split = frames.reshape(
        count // temporal, temporal, channels, rows // merge, merge, patch, columns // merge, merge, patch
    )
    ordered = split.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(count // temporal * rows * columns, channels * temporal * patch * patch)


def unpatchify(rows: np.ndarray, grid: Sequence[int], *, patch: int, merge: int, temporal: int) -> np.ndarray:
    """Converts rows of `patchify` back to frames [T, 3, H, W], including repeated last frames.

    Args:
        rows: Patches in the order of `patchify`.
        grid: Patches in time, height and width.
        patch: Pixels per side of a patch.
        merge: Patches per side of a token.
        temporal: Frames of a patch.
    """
    times, height, width = grid
    split = rows.reshape(times, height // merge, width // merge, merge, merge, -1, temporal, patch, patch)
    return split.transpose(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(times * temporal, -1, height * patch, width * patch)


def normalize(patches: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Converts uint8 rows of `patchify` to float32 on the same device: (x / 255 - mean) / std for each channel."""
    values = patches.to(torch.float32).div_(255).view(len(patches), len(mean), -1)
    for channel, (centre, spread) in enumerate(zip(mean, std, strict=True)):  # tensors would be copied to CUDA
        values[:, channel].sub_(centre).div_(spread)
    return values.view(len(patches), -1)


@contextmanager
def open_image(source: str | bytes) -> Iterator[Image.Image]:
    """Context manager that opens an image (path, bytes or data URI) with PIL, without decoding its pixels.

    Raises:
        SampleError: If the image cannot be opened or, within the block, cannot be decoded.
    """
    try:
        with Image.open(readable(source), formats=FORMATS) as image:
            yield image
    except Image.UnidentifiedImageError:
        raise SampleError("not_an_image", f"expected an image in one of the formats {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError as error:
        raise SampleError("too_large", str(error)) from None
    except (OSError, SyntaxError, ValueError, struct.error, EOFError, IndexError) as error:  # raised by PIL's readers
        if isinstance(error, SampleError):
            raise
        if isinstance(error, OSError) and error.errno is not None:  # an error of the system, not of the content
            raise read_error(error) from None
        raise SampleError("truncated", f"the image is damaged: {error}") from None


def readable(source: str | bytes) -> str | io.BytesIO:
    """Returns the argument for `Image.open`: the path, or a buffer with the bytes of an image, data URI or remote file.

    Raises:
        SampleError: If a file is missing or not a regular file, the image is empty, or a data URI is not base64.
    """
    if isinstance(source, str) and source.startswith("data:"):
        head, _, text = source.partition(",")
        if not head.endswith(";base64"):
            raise SampleError("not_an_image", f"a data URI must be encoded in base64, found '{head[:40]}'")
        try:
            source = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise SampleError("not_an_image", f"the data URI is not base64: {error}") from None
    if isinstance(source, bytes):
        if not source:
            raise SampleError("empty_file", "the image has 0 bytes")
        return io.BytesIO(source)
    if is_remote(source):
        return readable(read_clip(source))
    if file_status(source, "not_an_image").st_size == 0:
        raise SampleError("empty_file", "the file has 0 bytes")
    return source


def resize(pixels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Returns images, uint8 [N, 3, H, W], resized to `size` = (height, width): bicubic with antialiasing on uint8."""
    if tuple(pixels.shape[2:]) == size:
        return pixels
    return F.interpolate(pixels, size=size, mode="bicubic", antialias=True)
