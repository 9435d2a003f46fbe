"""Writes H.264 MP4 files deterministically: equal frames give equal bytes in every process and on every x86 CPU."""

from __future__ import annotations

import logging
import platform
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from worldsmith.files.atomic import replacing

logger = logging.getLogger(__name__)

# Left to itself, x264 takes the widest instructions of the machine, and with AVX-512 it gives another file at every
# call. Up to AVX2 the file of SSE4.2 is the same, and every x86 CPU since 2013 has that.
X86_PARAMS = "asm=sse4.2"


def write_video(path: Path, frames: np.ndarray, fps: float, *, crf: int = 12, preset: str = "medium") -> None:
    """Writes a video as H.264 (yuv420p) in MP4, atomically.

    Odd sides are padded by one repeated pixel row or column, with a warning in the log, since yuv420p requires even
    sides.

    Args:
        path: File to write.
        frames: uint8 array [T, H, W, 3] in RGB.
        fps: Frames per second.
        crf: Constant rate factor of x264, 0 (lossless) to 51 (lowest quality).
        preset: Preset of x264.

    Raises:
        ValueError: If the frames have another shape or dtype, or `fps` is not positive.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or frames.shape[0] == 0:
        raise ValueError(f"{path}: expected uint8 frames [T, H, W, 3], found {frames.dtype} {list(frames.shape)}")
    if not fps > 0:
        raise ValueError(f"{path}: frames per second must be positive, found {fps}")
    height, width = frames.shape[1:3]
    if height % 2 or width % 2:
        logger.warning("%s: %dx%d px padded to even sides for H.264", path.name, width, height)
        frames = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    options = {"crf": str(crf), "preset": preset, "threads": "1"}
    if platform.machine() in ("x86_64", "AMD64"):
        options["x264-params"] = X86_PARAMS

    with replacing(path) as aside, av.open(str(aside), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001 * 240), options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
