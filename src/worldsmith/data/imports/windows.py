"""Cuts a stretch of frames into windows: at scene changes, by length, or both."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from worldsmith.data.stream.errors import SampleError
from worldsmith.data.video_file import VideoInfo, frame_times
from worldsmith.files.errors import UserError

THRESHOLD = 27.0
"""PySceneDetect's own, of its `ContentDetector`."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How clips are cut; by default they are not."""

    scenes: bool = False
    threshold: float = THRESHOLD
    """How much of a change is a new scene."""
    frames: int | None = None
    """Length of a window."""
    seconds: float | None = None
    """The same by time; at most one of both is given."""
    overlap: float = 0.0
    """Part of a window that the next one repeats, 0 up to, but not including, 1."""
    min_frames: int = 1
    """Windows with fewer are left out, by who asks for them."""


def windows_of(frames: range, path: str, mtime_ns: int, info: VideoInfo, cut: Cut) -> Iterator[range]:
    """The windows of a stretch, in order. Raises SampleError for a clip that cannot be read."""
    length = cut.frames if cut.seconds is None else max(1, round(cut.seconds * info.fps))
    for scene in split_at(
        frames, scene_starts(path, mtime_ns, cut.threshold) if cut.scenes and len(frames) > 1 else ()
    ):
        yield from by_length(scene, length, cut.overlap) if length is not None else [scene]


def split_at(frames: range, starts: Sequence[int]) -> list[range]:
    """The stretch in pieces that begin at those of the `starts` which lie in it."""
    places = [frames.start, *(start for start in sorted(set(starts)) if start in frames[1:]), frames.stop]
    return [range(*ends) for ends in pairwise(places)]


def by_length(frames: range, length: int, overlap: float) -> Iterator[range]:
    """Windows of `length` frames, and a shorter one at the end if frames are left that are in no other."""
    step = max(1, round(length * (1 - overlap)))
    for start in range(frames.start, frames.stop, step):
        yield range(start, min(start + length, frames.stop))
        if start + length >= frames.stop:
            return


@lru_cache(maxsize=1)
def scene_starts(path: str, mtime_ns: int, threshold: float) -> tuple[int, ...]:
    """Frames that begin a new scene, as PySceneDetect's `ContentDetector` finds them.

    It says when they are shown, which our own count of frames is found by. Raises UserError when it is not installed,
    SampleError for a clip that it cannot read.
    """
    try:
        from scenedetect import ContentDetector, SceneManager, VideoOpenFailure, open_video
    except ImportError:
        raise UserError(
            "scene changes are found with the library 'scenedetect', which is not installed; "
            "install it with `pip install 'worldsmith[scenes]'`"
        ) from None
    manager = SceneManager()
    manager.add_detector(ContentDetector(threshold=threshold))
    try:
        manager.detect_scenes(open_video(path, backend="pyav", suppress_output=True))
    except VideoOpenFailure as error:
        raise SampleError("unreadable", f"PySceneDetect: {error}") from None
    if not (times := frame_times(path)):
        raise SampleError("no_time_stamps", "without them it is not known which frame begins a scene")
    spacing = times[-1] / max(1, len(times) - 1)
    return tuple(bisect_left(times, cut.seconds - spacing / 2) for cut in manager.get_cut_list())
