"""Test clips made with PyAV, and data set files that point to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest


@pytest.fixture
def write_clip() -> Callable[..., Path]:
    """write_clip(path, frames=17, width=96, ...) encodes a clip and returns its path.

    With `times`, in 1/600 s, one for each frame, the frames are unevenly spaced.
    """

    def write(
        path: Path,
        frames: int = 17,
        width: int = 96,
        height: int = 64,
        fps: int = 8,
        codec: str = "libx264",
        rotation: int | None = None,
        noise: bool = False,
        options: dict[str, str] | None = None,
        times: list[int] | None = None,
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.RandomState(0)
        with av.open(str(path), "w", options=options or {}) as container:
            stream = container.add_stream(codec, rate=fps)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            if times is not None:
                stream.codec_context.time_base = Fraction(1, 600)
            if rotation is not None:
                stream.set_display_rotation(rotation)
            for number in range(frames):
                # Red counts the frames, the upper half is green: enough to see order, place and orientation.
                picture = np.zeros((height, width, 3), np.uint8)
                picture[:, :, 0] = number * 10 % 250
                picture[: height // 2, :, 1] = 200
                if noise:
                    picture = random.randint(0, 256, picture.shape).astype(np.uint8)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                if times is not None:
                    frame.pts, frame.time_base = times[number], Fraction(1, 600)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path

    return write


@pytest.fixture
def write_jsonl() -> Callable[..., Path]:
    """write_jsonl(folder, records) writes folder/video_dataset_file.jsonl; text is written as it is."""

    def write(folder: Path, records: list[dict | str]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "video_dataset_file.jsonl"
        file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
        return file

    return write


@pytest.fixture
def record() -> Callable[..., dict]:
    """record(uuid, frames=17, **changes): a data set record with one window over the whole clip videos/<uuid>.mp4."""

    def make(uuid: str, frames: int = 17, **changes: object) -> dict:
        window = {"start_frame": 0, "end_frame": frames - 1, "temporal_interval": 1, "caption": f"clip {uuid}"}
        made = {"uuid": uuid, "duration": frames / 8, "width": 96, "height": 64, "vision_path": f"videos/{uuid}.mp4"}
        return {**made, "t2w_windows": [window], **changes}

    return make


@pytest.fixture
def clips(tmp_path: Path, write_clip: Callable, write_jsonl: Callable, record: Callable) -> Callable[..., Path]:
    """clips(count, frames=...) makes a data set of sound clips with differing lengths; returns its folder."""

    def make(count: int, lengths: tuple[int, ...] = (5, 9, 17), width: int = 96, height: int = 64) -> Path:
        folder = tmp_path / "set"
        records = []
        for i in range(count):
            frames = lengths[i % len(lengths)]
            write_clip(folder / f"videos/c{i}.mp4", frames=frames, width=width, height=height)
            records.append(record(f"c{i}", frames))
        write_jsonl(folder, records)
        return folder

    return make
