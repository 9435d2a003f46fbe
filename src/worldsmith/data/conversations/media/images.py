"""Reading images with PIL: files, bytes and data URIs."""

from __future__ import annotations

import base64
import binascii
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import ExifTags, Image, ImageOps

from worldsmith.data.stream.errors import SampleError, read_error
from worldsmith.data.video_file import file_status

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
"""What an image may be: none of these formats starts another program, as EPS does."""
TURNED = (5, 6, 7, 8)
"""EXIF orientations that swap height and width."""


def image_shape(source: str | bytes) -> tuple[int, int]:
    """(height, width) as the image is shown, from its header. Raises SampleError."""
    with opened(source) as image:
        width, height = image.size
        turned = image.getexif().get(ExifTags.Base.Orientation) in TURNED
    return (width, height) if turned else (height, width)


def read_image(source: str | bytes, size: tuple[int, int]) -> np.ndarray:
    """uint8 [3, H, W] at `size` = (H, W): turned upright as its EXIF data say, transparency on white, bicubic."""
    with opened(source) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            white = Image.new("RGBA", upright.size, (255, 255, 255, 255))
            upright = Image.alpha_composite(white, upright.convert("RGBA"))
        resized = upright.convert("RGB").resize(size[::-1], Image.Resampling.BICUBIC)
        return np.asarray(resized).transpose(2, 0, 1)


@contextmanager
def opened(source: str | bytes) -> Iterator[Image.Image]:
    """The image, its pixels not decoded yet. Raises SampleError, also for what goes wrong while it is used."""
    try:
        with Image.open(readable(source), formats=FORMATS) as image:
            yield image
    except Image.UnidentifiedImageError:
        raise SampleError("not_an_image", f"expected one of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError as error:
        raise SampleError("too_large", str(error)) from None
    except (OSError, SyntaxError, ValueError, struct.error, EOFError, IndexError) as error:  # what PIL's readers raise
        if isinstance(error, SampleError):
            raise
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not one about the content
            raise read_error(error) from None
        raise SampleError("truncated", f"the image is damaged: {error}") from None


def readable(source: str | bytes) -> str | io.BytesIO:
    """What PIL opens. Raises SampleError for a file that is not there, empty, or no regular file."""
    if isinstance(source, str) and source.startswith("data:"):
        head, _, text = source.partition(",")
        if not head.endswith(";base64"):
            raise SampleError("not_an_image", f"a data URI must be base64, found '{head[:40]}'")
        try:
            source = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise SampleError("not_an_image", f"the data URI is not base64: {error}") from None
    if isinstance(source, bytes):
        if not source:
            raise SampleError("empty_file", "the image has 0 bytes")
        return io.BytesIO(source)
    if file_status(source, "not_an_image").st_size == 0:
        raise SampleError("empty_file", "the file has 0 bytes")
    return source
