"""Shards in all that tars are written with."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

Members = list[tuple[str, bytes]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def tar_bytes(members: Members, form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(scope="session")
def clip_bytes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], bytes]:
    """clip_bytes(frames): an MP4 of 64x64 pixels; each number of frames is encoded once."""
    import av
    import numpy as np

    made: dict[int, bytes] = {}

    def make(frames: int) -> bytes:
        if frames not in made:
            buffer = io.BytesIO()
            with av.open(buffer, "w", format="mp4") as container:
                stream = container.add_stream("libx264", rate=8)
                stream.width = stream.height = 64
                stream.pix_fmt = "yuv420p"
                for number in range(frames):
                    picture = np.full((64, 64, 3), number * 10 % 250, np.uint8)
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
                container.mux(stream.encode())
            made[frames] = buffer.getvalue()
        return made[frames]

    return make


@pytest.fixture
def shards(tmp_path: Path, clip_bytes: Callable[[int], bytes]) -> Callable[..., Path]:
    """shards(12, of=5) writes clips of 5, 9 and 17 frames into tars of 5 samples each; returns their folder."""

    def make(count: int, of: int = 5, folder: str = "set") -> Path:
        out = tmp_path / folder
        out.mkdir()
        for first in range(0, count, of):
            members: Members = []
            for number in range(first, min(first + of, count)):
                frames = (5, 9, 17)[number % 3]
                members += [
                    (f"{number:04d}.mp4", clip_bytes(frames)),
                    (f"{number:04d}.json", json.dumps({"caption": f"clip {number}"}).encode()),
                ]
            (out / f"clips-{first // of:03d}.tar").write_bytes(tar_bytes(members))
        return out

    return make
