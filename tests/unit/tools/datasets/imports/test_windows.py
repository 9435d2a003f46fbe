"""Clips are cut by length and where a scene changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_sources import bars
from PIL import Image

from worldsmith.data.stream.errors import SampleError
from worldsmith.data.video_decoder import examine
from worldsmith.data.video_writer import write_video
from worldsmith.files.errors import UserError
from worldsmith.tools.datasets.imports.importer import Cut, scene_starts, split_at, split_by_length, windows_of

SCENES = (20, 17, 30, 23)
"""Frames of each scene; PySceneDetect takes none under 15."""
STARTS = (20, 37, 67)


def scenes() -> np.ndarray:
    """Frames of one colour a scene, with something that moves in them."""
    colours = [(200, 40, 40), (30, 30, 220), (230, 230, 60), (20, 120, 30)]
    scenes = [np.full((count, 64, 96, 3), colour, np.uint8) for count, colour in zip(SCENES, colours)]
    frames = np.concatenate(scenes)
    for number, frame in enumerate(frames):
        frame[20:30, number % 80 : number % 80 + 10] = 255
    return frames


def film(path: Path, fps: float = 24) -> str:
    write_video(path, scenes(), fps, preset="ultrafast")
    return str(path)


def test_scenes_of_unevenly_spaced_frames_begin_at_our_own_count_of_frames(tmp_path: Path) -> None:
    path = str(tmp_path / "uneven.mp4")
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=24, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 600)
        for number, picture in enumerate(scenes()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = 25 * number + 75 * (number // 8), Fraction(1, 600)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert examine(path)[1].variable_rate
    assert scene_starts(path, 0, 27.0) == STARTS


@pytest.mark.parametrize("fps", [24, 30000 / 1001])
def test_scenes_begin_where_the_clip_was_cut_and_where_pyscenedetect_says(fps: float, tmp_path: Path) -> None:
    from scenedetect import ContentDetector, detect

    path = film(tmp_path / "film.mp4", fps)
    assert scene_starts(path, 0, 27.0) == STARTS
    judged = detect(path, ContentDetector(27.0), backend="opencv")
    assert [first.frame_num for first, _ in judged][1:] == list(STARTS)


def test_scenes_and_lengths_cut_within_the_frames_that_are_wanted(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4")
    cut = Cut(scenes=True, seconds=0.5)
    found = list(windows_of(range(30, 70), path, 0, examine(path)[1], cut))
    assert found == [range(30, 37), range(37, 49), range(49, 61), range(61, 67), range(67, 70)]
    assert list(windows_of(range(90), path, 0, examine(path)[1], Cut())) == [range(90)]


def test_a_clip_without_a_change_is_one_scene(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", bars(25), 24, preset="ultrafast")
    assert scene_starts(str(tmp_path / "a.mp4"), 0, 27.0) == ()


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scenedetect", None)
    with pytest.raises(UserError, match=r"worldsmith\[scenes\]"):
        scene_starts(film(tmp_path / "film.mp4"), 0, 27.0)


@given(start=st.integers(0, 50), count=st.integers(1, 200), length=st.integers(1, 90), overlap=st.floats(0, 0.99))
def test_windows_cover_every_frame_and_end_with_the_stretch(
    start: int, count: int, length: int, overlap: float
) -> None:
    frames = range(start, start + count)
    windows = list(split_by_length(frames, length, overlap))
    assert {frame for window in windows for frame in window} == set(frames)
    assert all(len(window) == length for window in windows[:-1])
    assert windows[-1].stop == frames.stop
    if overlap == 0:
        assert sum(map(len, windows)) == count
    assert all(second.start > first.start and second.stop > first.stop for first, second in pairwise(windows))


@given(start=st.integers(0, 20), count=st.integers(1, 40), starts=st.lists(st.integers(0, 80)))
def test_pieces_are_the_stretch_and_begin_where_they_are_told_to(start: int, count: int, starts: list[int]) -> None:
    frames = range(start, start + count)
    pieces = split_at(frames, starts)
    assert [frame for piece in pieces for frame in piece] == list(frames)
    assert {piece.start for piece in pieces} == {start, *(s for s in starts if s in frames)}


def test_overlap_repeats_its_part_of_a_window() -> None:
    assert list(split_by_length(range(20), 9, 0.5)) == [range(9), range(4, 13), range(8, 17), range(12, 20)]


def test_what_has_no_times_is_not_cut_by_guess(tmp_path: Path, write_clip: Callable) -> None:
    raw = str(write_clip(tmp_path / "raw.h264", frames=20))
    with pytest.raises(SampleError, match="no_time_stamps"):
        scene_starts(raw, 0, 27.0)
    image = tmp_path / "a.png"
    Image.fromarray(bars(1)[0]).save(image)
    assert list(windows_of(range(1), str(image), 0, examine(str(image))[1], Cut(scenes=True))) == [range(1)]
