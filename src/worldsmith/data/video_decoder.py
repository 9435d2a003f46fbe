"""Reads video files with PyAV: metadata, and selected frames.

A path may be the address of a tar member (`shards.addresses`) or of a remote file, which `open_clip` opens.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import stat
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import av
import av.error
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from worldsmith.data.shards.addresses import is_read_whole, open_clip
from worldsmith.data.stream.errors import READ_ERRORS, SampleError, read_error

CONTAINERS = (
    "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,h264,hevc,av1,obu,ivf,flv,asf,ogg,mxf,nut,dv,rm,gif,apng,"
    "png_pipe,jpeg_pipe,webp_pipe,bmp_pipe,tiff_pipe,jpegxl_pipe"
)
"""Accepted container formats of FFmpeg. Formats that open other files, such as playlists, are not accepted."""

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
"""Image files, which are clips of one frame."""
JPEG_START, JPEG_SCAN, JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"

OPTIONS = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
TEXTS: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}
"""Options for `av.open` with which metadata that is not UTF-8 causes no error; PyAV 19 needs no option for that."""
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}

MAX_PLAUSIBLE_FPS = 1000
SKIPPING = ("h264", "hevc", "mpeg4", "mpeg2video", "vp8", "vp9")
"""Codecs whose decoders can skip single non-reference frames."""
WITHOUT_STAMPS = ("avi",)
"""Container formats that state the decoding order of packets, but not the presentation times of frames."""
VARIABLE_RATE = 0.02
"""Frames are unevenly spaced if base and average frame rate differ by more than this fraction."""


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """Metadata of a video or image file; `width` and `height` are in pixels, of the upright frames."""

    width: int
    height: int
    fps: float
    """Frames per second."""
    num_frames: int
    """Number of displayed frames."""
    rotation: int
    """Number of counter-clockwise quarter turns (0..3) that rotate a decoded frame upright."""
    variable_rate: bool = False
    """Whether the frames are unevenly spaced; `fps` is then their average rate."""

    @property
    def duration(self) -> float:
        """Duration in seconds."""
        return self.num_frames / self.fps


class FileStatus(NamedTuple):
    """Size and modification time of a file, which change if the file is replaced."""

    st_size: int
    """Size in bytes."""
    st_mtime_ns: int
    """Modification time in nanoseconds; 0 for a tar member or remote file."""


def examine(path: str) -> tuple[FileStatus, VideoInfo]:
    """Returns (size and modification time, metadata) of a video or image file; decodes one frame.

    Args:
        path: Path, or address of a tar member or remote file.

    Raises:
        SampleError: If the file is not a readable video.
    """
    if is_read_whole(path):
        with open_clip(path) as file:
            status = FileStatus(file.seek(0, os.SEEK_END), 0)
    else:
        found = file_status(path, "not_a_video")
        status = FileStatus(found.st_size, found.st_mtime_ns)
    return status, probe(path, *status)


def file_status(path: str, other_reason: str) -> os.stat_result:
    """Returns `os.stat` of a regular file.

    Args:
        path: Path.
        other_reason: `reason` of the SampleError for a FIFO, folder or device.

    Raises:
        SampleError: If the file cannot be accessed or is not a regular file.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise read_error(error) from None
    if not stat.S_ISREG(status.st_mode):  # reading from a FIFO would wait for ever
        raise SampleError(other_reason, f"expected a file, found {KINDS.get(stat.S_IFMT(status.st_mode), 'a device')}")
    return status


@lru_cache(maxsize=65536)
def probe(path: str, size: int, mtime_ns: int) -> VideoInfo:
    """Returns the metadata of a video or image file; decodes one frame.

    The result is cached, so `size` and `mtime_ns` must be those of the current version of the file.

    Args:
        path: Path, or address of a tar member or remote file.
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds.

    Raises:
        SampleError: If the file is not a readable video.
    """
    with opened(path) as (container, stream):
        stated = stated_frames(stream)
        first = next(container.decode(stream), None)
        num_frames = count_frames(path) if stated is None else stated
        if num_frames == 0 or first is None:
            raise SampleError("no_frames", "the file has a video stream without frames")
        turns = round(first.rotation / 90) % 4
        width, height = (first.height, first.width) if turns % 2 else (first.width, first.height)
        fps, variable_rate = frame_rate(stream)
        return VideoInfo(width, height, fps, num_frames, turns, variable_rate)


def stated_frames(stream: VideoStream) -> int | None:
    """Returns the number of displayed frames stated by the container; None if it is missing or unreliable.

    Matroska and WebM state no number. An MP4 that was cut without re-encoding hides frames (by an edit list) that its
    number includes.
    """
    rate, duration, base = stream.average_rate, stream.duration, stream.time_base
    if stream.frames and rate and duration and base and abs(duration * base * rate - stream.frames) < 0.5:
        return stream.frames
    return None


def count_frames(path: str) -> int:
    """Returns the exact number of displayed frames of a file, by reading all packets without decoding them.

    Raises:
        SampleError: If the file is not a readable video.
    """
    with opened(path) as (container, stream):
        return sum(1 for packet in container.demux(stream) if packet.size and not packet.is_discard)


def pick(path: str, info: VideoInfo, indices: Sequence[int]) -> Iterator[VideoFrame]:
    """Yields the decoded frames with the given indices.

    All frames from the start are decoded in order: exact for every stream, also with a variable frame rate.

    Args:
        path: Path, or address of a tar member or remote file.
        info: Metadata of the file, from `examine`.
        indices: Frame indices in ascending order.

    Raises:
        SampleError: truncated if the file ends or is damaged before the last frame.
    """
    done = 0
    with opened(path) as (container, stream):
        for number, frame in enumerate(decode(container, stream, info)):
            if number == indices[done]:
                yield frame
                done += 1
                if done == len(indices):
                    return
    raise SampleError("truncated", f"frame {indices[done]} is missing; the container states {info.num_frames} frames")


def pick_few(path: str, info: VideoInfo, indices: Sequence[int]) -> Iterator[VideoFrame]:
    """Yields the same frames as `pick`, but faster if the frames are far apart.

    Frames that are neither requested nor required to decode another frame are not decoded.

    Frames are identified by time stamps; if these are incomplete, `pick` is used.

    Args:
        path: Path, or address of a tar member or remote file.
        info: Metadata of the file, from `examine`.
        indices: Frame indices in ascending order.

    Raises:
        SampleError: If the file cannot be read or is truncated.
    """
    with opened(path) as (container, stream):
        skips = stream.codec_context.name in SKIPPING and container.format.name not in WITHOUT_STAMPS
        stamps = frame_stamps(container, stream) if skips else []
    done = 0
    if len(set(stamps)) == len(stamps) == info.num_frames:
        wanted = [stamps[index] for index in indices]
        with opened(path) as (container, stream):
            for frame in decode(container, stream, info, needed=set(wanted)):
                if frame.pts == wanted[done]:
                    yield frame
                    done += 1
                    if done == len(wanted):
                        return
    yield from pick(path, info, indices[done:])


def pick_times(path: str, info: VideoInfo, times: Sequence[float], tolerance: float) -> Iterator[VideoFrame]:
    """Yields the decoded frame at each of some times, in seconds after the first frame of the file.

    Decoding begins at the last key frame before the first time. The result is exact: each frame is accepted by its
    own time stamp.

    Args:
        path: Path, or address of a tar member or remote file.
        info: Metadata of the file, from `examine`.
        times: Times in ascending order.
        tolerance: Max difference in seconds between a time and that of its frame.

    Raises:
        SampleError: If the file cannot be read or is truncated, or has no frame at one of the times (times_differ).
    """
    done = 0
    with opened(path) as (container, stream):
        base, origin = float(stream.time_base or 1), stream.start_time or 0
        container.seek(origin + max(0, math.floor((times[0] - tolerance) / base)), stream=stream)
        frames = decode(container, stream, info)
        first = next(frames, None)
        if first is None or first.pts is None or (first.pts - origin) * base > times[0] + tolerance:
            container.seek(origin, stream=stream)
            frames = decode(container, stream, info)
        else:
            frames = itertools.chain((first,), frames)
        for frame in frames:
            if frame.pts is None:
                raise SampleError("times_differ", "the frames of the file have no time stamps")
            time = (frame.pts - origin) * base
            if time > times[done] + tolerance:
                raise SampleError("times_differ", f"no frame at {times[done]:.4f} s; the next one is at {time:.4f} s")
            if time >= times[done] - tolerance:
                yield frame
                done += 1
                if done == len(times):
                    return
    raise SampleError("truncated", f"the file ends before the frame at {times[done]:.4f} s")


def frame_stamps(container: InputContainer, stream: VideoStream) -> list[int]:
    """Returns the ascending time stamps (`pts`) of all displayed frames; reads the complete stream without decoding."""
    return sorted(p.pts for p in container.demux(stream) if p.size and p.pts is not None and not p.is_discard)


def frame_times(path: str) -> list[float]:
    """Returns the time of each frame in seconds after the first frame, without decoding.

    Raises:
        SampleError: If the file is not a readable video.
    """
    with opened(path) as (container, stream):
        base = stream.time_base or Fraction(1)
        stamps = frame_stamps(container, stream)
    return [float((stamp - stamps[0]) * base) for stamp in stamps]


def decode(
    container: InputContainer, stream: VideoStream, info: VideoInfo, *, needed: Container[int] | None = None
) -> Iterator[VideoFrame]:
    """Yields the decoded frames of a video in display order.

    Args:
        container: Opened container.
        stream: Video stream of the container.
        info: Metadata of the video, for messages.
        needed: Time stamps (`pts`) of the required frames: other frames, on which no frame depends, may be skipped.
            None: no frame is skipped.

    Raises:
        SampleError: truncated if a frame is damaged.
    """
    number = 0
    for packet in container.demux(stream):
        if needed is not None:
            skipped = packet.size and packet.pts not in needed
            stream.codec_context.skip_frame = "NONREF" if skipped else "DEFAULT"
        try:
            frames = packet.decode()
        except av.error.FFmpegError as error:
            raise SampleError("truncated", f"decoding failed at frame {number} of {info.num_frames}: {error}") from None
        for frame in frames:
            if frame.is_corrupt:
                raise SampleError("truncated", f"frame {number} of {info.num_frames} is damaged")
            yield frame
            number += 1


@contextmanager
def opened(path: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Context manager that opens a video or image file and yields (container, video stream).

    Raises:
        SampleError: If the file is not readable or contains no video stream that can be decoded.
    """
    try:
        with source_of(path) as source, av.open(source, "r", options=OPTIONS, **TEXTS) as container:
            # A cover image of an audio file is a video stream, too, but not one to train on.
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams:
                raise SampleError(*why_unreadable(path, "no_video_stream", "the file has no video stream"))
            stream = streams[0]
            if stream.codec_context is None:
                raise SampleError(*why_unreadable(path, "unknown_codec", "there is no decoder for the video stream"))
            stream.codec_context.thread_count = 1  # the loader's workers are the parallelism
            yield container, stream
    except (av.error.FFmpegError, OSError) as error:
        if isinstance(error, OSError) and error.errno in READ_ERRORS:
            raise read_error(error) from None
        raise SampleError(*why_unreadable(path, "not_a_video", str(error))) from None


@contextmanager
def source_of(path: str) -> Iterator[str | BinaryIO]:
    """Context manager that yields the argument for `av.open`: the path of a local video, or an opened file.

    Images are read into memory, because FFmpeg treats their paths as patterns.

    Raises:
        SampleError: If a JPEG is truncated, since its missing part would be decoded as gray.
    """
    if not is_read_whole(path) and not path.lower().endswith(IMAGES):
        yield path
        return
    with open_clip(path) as file:
        start = file.read(len(JPEG_START))
        data = start + file.read() if start == JPEG_START or path.lower().endswith(IMAGES) else b""
        if start == JPEG_START and data.rfind(JPEG_END) < data.rfind(JPEG_SCAN):
            raise SampleError("truncated", "the JPEG file ends inside its image data")
        file.seek(0)
        yield io.BytesIO(data) if data else file


def why_unreadable(path: str, reason: str, detail: str) -> tuple[str, str]:
    """Returns (reason, detail) of the SampleError for an unreadable file.

    Args:
        path: Path, or address of a tar member or remote file.
        reason: Reason that is returned if the file is neither missing, unreadable, empty nor a truncated MP4.
        detail: Message for `reason`.
    """
    try:
        with open_clip(path) as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                return "empty_file", "the file has 0 bytes"
            if is_cut_mp4(file, size):
                return "truncated", "the MP4 file ends inside a box or before its index (moov)"
    except OSError as error:
        fault = read_error(error)
        return fault.reason, fault.detail
    return reason, detail


def is_cut_mp4(file: BinaryIO, size: int) -> bool:
    """Returns whether a file of `size` bytes is a truncated MP4/MOV file, by its top-level boxes (ISO/IEC 14496-12)."""
    position, names = 0, []
    while position < size:
        file.seek(position)
        header = file.read(16)
        if position == 0 and header[4:8] != b"ftyp":
            return False
        length = int.from_bytes(header[:4], "big")
        if length == 1:  # the real length follows in 64 bits
            length = int.from_bytes(header[8:16], "big")
        if length == 0:  # up to the end of the file
            length = size - position
        if len(header) < 8 or length < 8:
            return True
        names.append(header[4:8])
        position += length
    return position > size or b"moov" not in names


def frame_rate(stream: VideoStream) -> tuple[float, bool]:
    """Returns (frames per second, whether the frames are unevenly spaced) of a video stream.

    The rate is the base rate (ffprobe's r_frame_rate), or the average rate for unevenly spaced frames: their base rate
    is only a time base that fits all time stamps, and is often several times too high.

    Raises:
        SampleError: If neither rate is usable.
    """
    base, average = usable(stream.base_rate), usable(stream.average_rate or stream.guessed_rate)
    if base and (average is None or abs(average - base) <= VARIABLE_RATE * base):
        return base, False
    if average:
        return average, bool(stream.base_rate)
    raise SampleError("no_frame_rate", "the container states no usable frame rate")


def usable(rate: Fraction | None) -> float | None:
    return float(rate) if rate and 0 < rate <= MAX_PLAUSIBLE_FPS else None
