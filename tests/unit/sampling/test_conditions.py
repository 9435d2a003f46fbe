"""Conditions from files are what a viewer shows of them."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from worldsmith.sampling.requests import is_structured
from worldsmith.sampling.sample_args import read_condition


def write_clip(path: Path, frames: int = 9, rotation: int | None = None) -> Path:
    """96x64, upper half green; the red level counts the frames."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        if rotation is not None:
            stream.set_display_rotation(rotation)
        for number in range(frames):
            picture = np.zeros((64, 96, 3), np.uint8)
            picture[:, :, 0] = number * 20
            picture[:32, :, 1] = 200
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_the_first_or_last_frames_of_a_video_are_read(tmp_path: Path) -> None:
    clip = str(write_clip(tmp_path / "a.mp4"))
    opening, ending = read_condition(clip, 5).numpy(), read_condition(clip, 5, last=True).numpy()
    assert opening.shape == ending.shape == (3, 5, 64, 96)
    assert np.allclose(opening[0, :, 40:].mean(axis=(1, 2)), [0, 20, 40, 60, 80], atol=5)
    assert np.allclose(ending[0, :, 40:].mean(axis=(1, 2)), [80, 100, 120, 140, 160], atol=5)


@pytest.mark.parametrize(("rotation", "half"), [(90, np.s_[:, :28]), (180, np.s_[36:]), (270, np.s_[:, 36:])])
def test_a_rotated_video_is_turned_upright(tmp_path: Path, rotation: int, half: tuple) -> None:
    """The green upper half becomes the left, the lower or the right one, as in training."""
    condition = read_condition(str(write_clip(tmp_path / "a.mp4", rotation=rotation)), 5).numpy()
    assert condition.shape[2:] == ((64, 96) if rotation == 180 else (96, 64))
    assert condition[1, 0][half].mean() > 150
    assert condition[1, 0].mean() < 130


def test_a_photo_is_turned_as_its_metadata_say(tmp_path: Path) -> None:
    """EXIF orientation 6: shown with its left column on top."""
    picture = Image.new("RGB", (96, 64))
    picture.paste((0, 200, 0), (0, 0, 48, 64))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "a.jpg", exif=exif)
    condition = read_condition(str(tmp_path / "a.jpg"), 1).numpy()
    assert condition.shape == (3, 1, 96, 64)
    assert condition[1, 0, :44].mean() > 150


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("ffconcat version 1.0\nfile 'b.mp4'\n")
    write_clip(tmp_path / "b.mp4")
    with pytest.raises(ValueError, match=r"a\.mp4: .*not_a_video"):
        read_condition(str(tmp_path / "a.mp4"), 5)
    with pytest.raises(ValueError, match=r"absent\.mp4: the file does not exist"):
        read_condition(str(tmp_path / "absent.mp4"), 5)
    (tmp_path / "a.png").write_text("none")
    with pytest.raises(ValueError, match=r"a\.png"):
        read_condition(str(tmp_path / "a.png"), 1)
    with pytest.raises(ValueError, match=r"absent\.png: No such file"):
        read_condition(str(tmp_path / "absent.png"), 1)


def test_a_prompt_of_deeply_nested_json_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the prompt '\{\"a\":.* is JSON that is nested too deep"):
        is_structured('{"a":' * 50_000 + "1" + "}" * 50_000)
    assert is_structured('{"a": 1}')
    assert not is_structured('{"a"')
