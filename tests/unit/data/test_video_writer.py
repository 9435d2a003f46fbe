"""The same frames give the same file: at every call, with every x86 instruction set, and on every machine."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import av
import numpy as np
import pytest

from worldsmith.data import video_writer
from worldsmith.data.video_writer import write_video

x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the instruction sets of x86")


def moving_waves(frames: int = 25, height: int = 120, width: int = 160) -> np.ndarray:
    """Uneven motion everywhere, in integers: uint8 [T, H, W, 3] that no CPU rounds otherwise."""
    t, y, x = np.ogrid[0:frames, 0:height, 0:width]
    return np.stack(
        np.broadcast_arrays(
            (x * y // 40 + 7 * t) % 256, abs((3 * x + 5 * t) % 200 - 100) + y // 2, (x + y + 5 * t) % 256
        ),
        axis=-1,
    ).astype(np.uint8)


def file_of(folder: Path, preset: str) -> bytes:
    write_video(folder / "clip.mp4", moving_waves(), 8, preset=preset)
    return (folder / "clip.mp4").read_bytes()


@pytest.mark.parametrize("preset", [pytest.param("medium", marks=pytest.mark.slow), "veryfast"])
def test_forty_files_of_the_same_frames_are_one(tmp_path: Path, preset: str) -> None:
    assert len({file_of(tmp_path, preset) for _ in range(40)}) == 1


@x86
@pytest.mark.parametrize("preset", ["medium", "veryfast"])
@pytest.mark.parametrize("instructions", ["avx", "avx2"])
def test_wider_instructions_give_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instructions: str, preset: str
) -> None:
    if f" {instructions} " not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this CPU has no {instructions}")
    ours = file_of(tmp_path, preset)
    monkeypatch.setattr(video_writer, "X86_PARAMS", f"asm={instructions}")
    assert file_of(tmp_path, preset) == ours


@x86
@pytest.mark.skipif(av.__version__ != "18.1.0", reason="the files of PyAV 18.1.0 are known")
@pytest.mark.parametrize(("preset", "digest"), [("medium", "0d16aa5c2c43378d"), ("veryfast", "2164898bc2ba6d51")])
def test_the_file_is_that_of_every_other_machine(tmp_path: Path, preset: str, digest: str) -> None:
    assert hashlib.sha256(file_of(tmp_path, preset)).hexdigest()[:16] == digest
