"""MP4 files that come back as written, and contact sheets with every clip in its place."""

from __future__ import annotations

import logging
from pathlib import Path

import av
import pytest
import torch
from mp4 import read_mp4
from PIL import Image

from worldsmith.sampling.write_media import contact_sheet, read_image, write_mp4


def moving_square(height: int = 64, width: int = 96, frames: int = 9) -> torch.Tensor:
    video = torch.full((3, frames, height, width), 40, dtype=torch.uint8)
    for t in range(frames):
        video[0, t, 16:40, 8 + 4 * t : 32 + 4 * t] = 220
    return video


def test_frames_and_rate_survive_the_file(tmp_path: Path) -> None:
    """Size, count, rate and colours of a clip are those that were written, and the codec is H.264 with yuv420p."""
    video = moving_square()
    write_mp4(tmp_path / "deep" / "clip.mp4", video, fps=8)
    back, fps = read_mp4(tmp_path / "deep" / "clip.mp4")
    assert back.shape == video.shape
    assert fps == 8
    assert (back.float() - video.float()).abs().mean() < 4
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["clip.mp4"]
    with av.open(str(tmp_path / "deep" / "clip.mp4")) as container:
        codec = container.streams.video[0].codec_context
        assert (codec.name, codec.pix_fmt) == ("h264", "yuv420p")


def test_fractional_rate_is_kept(tmp_path: Path) -> None:
    """NTSC rates are stored exactly as fractions of 1001."""
    write_mp4(tmp_path / "clip.mp4", moving_square(), fps=30000 / 1001)
    assert read_mp4(tmp_path / "clip.mp4")[1] == pytest.approx(30000 / 1001, abs=1e-9)


def test_odd_sides_are_padded_with_a_notice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """33x47 px becomes 34x48 and the log says so."""
    with caplog.at_level(logging.WARNING):
        write_mp4(tmp_path / "odd.mp4", moving_square(47, 33, 2), fps=8)
    assert "33x47" in caplog.text
    assert read_mp4(tmp_path / "odd.mp4")[0].shape == (3, 2, 48, 34)


@pytest.mark.parametrize(
    "frames",
    [torch.zeros(3, 2, 8, 8), torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(3, 0, 8, 8, dtype=torch.uint8)],
)
def test_other_shapes_and_types_are_refused(tmp_path: Path, frames: torch.Tensor) -> None:
    """Floats, frames-first tensors and empty clips raise and leave no file."""
    with pytest.raises(ValueError, match="expected uint8 frames"):
        write_mp4(tmp_path / "clip.mp4", frames, fps=8)
    assert not list(tmp_path.iterdir())


def test_contact_sheet_shows_every_clip_and_frame(tmp_path: Path) -> None:
    """Each clip's colour fills its cell: a row per label, a column per prompt, wrapped past the last column."""
    colours = [[(200, 0, 0), (0, 200, 0), (0, 0, 200)], [(90, 0, 90), (0, 90, 90), (90, 90, 0)]]
    rows = [
        (label, [torch.tensor(c, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 5, 32, 32) for c in row])
        for label, row in zip(["untrained", "trained"], colours)
    ]
    contact_sheet(tmp_path / "sheet.png", rows, ["one", "two", "three " * 60], frames_per_clip=3, columns=2)
    sheet = read_image(tmp_path / "sheet.png")
    side = 128  # 32 px enlarged four times
    places = {}
    for row in colours:
        for colour in row:
            mask = (sheet == torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1)).all(0)
            assert mask.sum() == 3 * side * side
            ys, xs = mask.nonzero(as_tuple=True)
            places[colour] = (int(ys.min()), int(xs.min()))
    (a, b, c), (d, e, f) = colours
    assert places[a][0] == places[b][0] < places[d][0] == places[e][0] < places[c][0] < places[f][0]
    assert places[a][1] == places[d][1] == places[c][1] == places[f][1] < places[b][1] == places[e][1]


def test_contact_sheet_has_a_legend_above_its_rows(tmp_path: Path) -> None:
    for name, legend in (("plain", ""), ("legend", "Rows: a = before; b = after. " * 4)):
        contact_sheet(tmp_path / f"{name}.png", [("a", [moving_square()])], ["one"], legend=legend)
    plain, sheet = read_image(tmp_path / "plain.png"), read_image(tmp_path / "legend.png")
    height = sheet.shape[1] - plain.shape[1]
    assert height > 19
    assert (sheet[:, 10 : height - 10] < 128).any()  # letters
    assert (sheet[:, height + 10 :] == plain[:, 10:]).all()


def test_contact_sheet_refuses_a_row_with_missing_clips(tmp_path: Path) -> None:
    """A clip that would slide under another prompt is an error."""
    with pytest.raises(ValueError, match="row 'trained' has 1 clips for 2 prompts"):
        contact_sheet(tmp_path / "sheet.png", [("trained", [moving_square()])], ["one", "two"])


def test_read_image_drops_alpha(tmp_path: Path) -> None:
    """A PNG with transparency is read as three channels."""
    Image.new("RGBA", (5, 4), (1, 2, 3, 128)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").shape == (3, 4, 5)
