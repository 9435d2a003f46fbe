"""Writes generated videos as MP4 files, images as JPEG, and contact sheets that show many clips in one image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
from torch import Tensor

from worldsmith.data.clips.clip_frames import read_upright
from worldsmith.data.video_decoder import examine
from worldsmith.data.video_writer import write_video
from worldsmith.files.atomic import replacing

FRAME_SIDE = 112  # smaller frames are enlarged by a whole factor to at least this many pixels on a contact sheet
GAP = 10
LABEL_WIDTH = 130
HEADER_LINES = 3
LINE_HEIGHT = 19
INK, PAPER, RULE = (30, 30, 30), (255, 255, 255), (205, 205, 205)


def write_mp4(path: str | Path, frames: Tensor, fps: float, *, crf: int = 12) -> None:
    """Writes a video as an MP4 file (H.264) and creates missing folders.

    Args:
        path: The MP4 file.
        frames: The frames, uint8 [3, T, H, W].
        fps: Frames per second.
        crf: Constant rate factor of H.264; lower is better.

    Raises:
        ValueError: If `frames` does not have four dimensions.
    """
    if frames.ndim != 4:
        raise ValueError(f"{path}: expected uint8 frames [3, T, H, W], found {frames.dtype} {list(frames.shape)}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, frames.permute(1, 2, 3, 0).cpu().numpy(), fps, crf=crf)


def write_jpeg(path: Path, picture: Tensor, quality: int) -> None:
    """Writes an image, uint8 [3, H, W], as a JPEG file that appears only when complete; `quality` is from 1 to 100."""
    with replacing(path) as aside:
        Image.fromarray(picture.permute(1, 2, 0).cpu().numpy()).save(aside, format="JPEG", quality=quality)


def few_frames(path: Path, count: int = 4) -> Tensor:
    """Reads about `count` evenly spaced frames of a video, or the frame of a .jpg file, as uint8 [3, T, H, W]."""
    if path.suffix == ".jpg":
        return read_image(path)[:, None]
    _, info = examine(str(path))
    step = max(1, (info.num_frames - 1) // max(1, count - 1))
    return torch.from_numpy(read_upright(str(path), info, range(0, info.num_frames, step)))


def read_image(path: str | Path) -> Tensor:
    """Reads an image as uint8 [3, H, W], rotated according to its EXIF data.

    Raises:
        ValueError: If the file is not an image.
    """
    try:
        image = ImageOps.exif_transpose(Image.open(path))
    except UnidentifiedImageError as error:
        raise ValueError(str(error)) from None
    with image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


def contact_sheet(
    path: str | Path,
    rows: Sequence[tuple[str, Sequence[Tensor]]],
    prompts: Sequence[str],
    *,
    frames_per_clip: int = 4,
    columns: int = 4,
    legend: str = "",
) -> None:
    """Writes a PNG with a column per prompt and a row per label; a cell shows evenly spaced frames from left to right.

    Args:
        path: The PNG file; missing folders are created.
        rows: (label, clips) of each row, with one clip, uint8 [3, T, H, W], per prompt.
        prompts: Text above each column.
        frames_per_clip: Max number of frames in a cell.
        columns: Max number of columns; the columns of further prompts are below the first ones.
        legend: Text at the top that explains rows and columns.

    Raises:
        ValueError: If a row does not have one clip per prompt, or there are no rows or prompts.
    """
    for label, clips in rows:
        if len(clips) != len(prompts):
            raise ValueError(f"contact sheet row '{label}' has {len(clips)} clips for {len(prompts)} prompts")
    if not rows or not prompts:
        raise ValueError("a contact sheet requires at least one row and one prompt")
    cells = [[filmstrip(clip, frames_per_clip) for clip in clips] for _, clips in rows]
    cell_width = max(cell.width for row in cells for cell in row)
    row_heights = [max(cell.height for cell in row) for row in cells]
    shown = min(columns, len(prompts))
    bands = [range(start, min(start + shown, len(prompts))) for start in range(0, len(prompts), shown)]
    font = ImageFont.load_default(size=15)
    titles = [wrap(prompt, font, cell_width) for prompt in prompts]
    header = max(title.count("\n") + 1 for title in titles) * LINE_HEIGHT + GAP
    band_height = header + sum(row_heights) + GAP * len(rows) + GAP
    left = LABEL_WIDTH + GAP
    width = left + shown * (cell_width + GAP)
    legend = wrap(legend, font, width - 2 * GAP)
    first = GAP + ((legend.count("\n") + 1) * LINE_HEIGHT + GAP if legend else 0)
    sheet = Image.new("RGB", (width, first + band_height * len(bands)), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.multiline_text((GAP, GAP), legend, fill=INK, font=font, spacing=3)
    for band, members in enumerate(bands):
        top = first + band * band_height
        if band:
            draw.line([(GAP, top - GAP), (sheet.width - GAP, top - GAP)], fill=RULE)
        for column, index in enumerate(members):
            x = left + column * (cell_width + GAP)
            draw.multiline_text((x, top), titles[index], fill=INK, font=font, spacing=3)
        y = top + header
        for (label, _), row, height in zip(rows, cells, row_heights):
            text = wrap(label, font, LABEL_WIDTH - GAP)
            draw.multiline_text((GAP, y + GAP), text, fill=INK, font=font, spacing=3)
            for column, index in enumerate(members):
                sheet.paste(row[index], (left + column * (cell_width + GAP), y))
            y += height + GAP
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        sheet.save(aside, format="PNG")


def filmstrip(clip: Tensor, count: int) -> Image.Image:
    """Returns an image with up to `count` evenly spaced frames of `clip` [3, T, H, W], uint8, next to each other.

    Small frames are enlarged.
    """
    total, height, width = clip.shape[1:]
    picks = np.linspace(0, total - 1, min(count, total)).round().astype(int)
    scale = max(1, -(-FRAME_SIDE // min(height, width)))
    strip = Image.new("RGB", ((width * scale + 2) * len(picks) - 2, height * scale), PAPER)
    for place, pick in enumerate(picks):
        frame = Image.fromarray(np.ascontiguousarray(clip[:, pick].permute(1, 2, 0).cpu().numpy()))
        strip.paste(
            frame.resize((width * scale, height * scale), Image.Resampling.NEAREST), (place * (width * scale + 2), 0)
        )
    return strip


def wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Breaks text at spaces into at most 3 lines of at most `width` pixels; an ellipsis replaces the rest."""
    lines: list[str] = [""]
    for word in text.split():
        candidate = f"{lines[-1]} {word}".strip()
        if font.getlength(candidate) <= width or not lines[-1]:
            lines[-1] = candidate
        else:
            lines.append(word)
    if len(lines) > HEADER_LINES:
        lines = [*lines[: HEADER_LINES - 1], lines[HEADER_LINES - 1] + " …"]
    return "\n".join(cut_to_width(line, font, width) for line in lines)


def cut_to_width(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    if font.getlength(line) <= width:
        return line
    while line and font.getlength(line + "…") > width:
        line = line[:-1]
    return line.rstrip(" …") + "…"
