"""Samples of the captions of a data set, with their real clips as training sees them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldsmith.actions.answers.outcome import file_name
from worldsmith.actions.outputs.held_out import HeldOutClips
from worldsmith.config.errors import UserError
from worldsmith.data.clips.captions import choose_caption
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset, Window
from worldsmith.data.content_mark import content_mark
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.files.atomic import write_text
from worldsmith.files.lines import read_lines
from worldsmith.models.video_model import Mode

SAMPLES, REAL_FOLDER = "held_out_samples.jsonl", "real"
PREFERRED: tuple[Mode, ...] = ("text2video", "image2video", "video2video", "text2image")


def choose_mode(modes: Sequence[Mode], asked: Mode | None) -> Mode:
    """What is generated out of what. Raises UserError for a mode that the model does not have."""
    if asked is None:
        return next(mode for mode in PREFERRED if mode in modes)
    if asked not in modes:
        raise UserError(f"--model-mode {asked}: this model does not make it; it makes {', '.join(modes)}")
    return asked


def write_samples(clips: HeldOutClips, out: Path, count: int, mode: Mode, *, anew: bool) -> None:
    """Writes the first clips as training sees them, and `SAMPLES`, the samples of their captions.

    An unchanged clip is not written again. Raises UserError when no clip can be used.
    """
    file, dataset, grid = out / SAMPLES, clips.dataset, LatentGrid(*clips.model.config.latent_grid)
    lines = [json.loads(line) for line in read_lines(file)] if file.is_file() and not anew else []
    known = {line["name"]: line for line in lines if isinstance(line, dict) and "name" in line}
    samples: list[dict[str, Any]] = []
    for window in dataset.windows:
        if len(samples) == count:
            break
        try:
            samples.append(write_sample(window, dataset.config, grid, out, mode, len(samples), known))
        except SampleError as error:
            clips.leave_out([Rejection(window.key, error.reason, error.detail, window.path, window.line)])
    if not samples:
        raise clips.nothing_usable()
    if samples != lines:
        write_text(file, "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples))


def write_sample(
    window: Window,
    config: VideoDataset.Config,
    grid: LatentGrid,
    out: Path,
    mode: Mode,
    seed: int,
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes a clip, unless its sample is `known`, and returns the sample. Raises SampleError for an unusable clip."""
    import torch
    from PIL import Image

    from worldsmith.data.clips.inspect_clips import inspect_window
    from worldsmith.data.clips.video_reader import Framing, read_frames
    from worldsmith.sampling.video_writer import write_mp4

    part = inspect_window(window, config, grid, random.Random(0))
    caption = choose_caption(window.captions, config.caption_keys, random.Random(0))
    assert caption is not None  # the data set leaves such windows out
    (height, width), frames, name = part.size, part.selection.count, file_name(window.key)
    still, video = f"{REAL_FOLDER}/{name}.png", f"{REAL_FOLDER}/{name}.mp4"
    mode = "text2image" if frames == 1 else mode
    real = still if frames == 1 else video
    given = {"image2video": {"vision_path": still}, "video2video": {"vision_path": video}}.get(mode, {})
    taken = [part.selection.start, part.selection.interval]
    source = {
        "clip": window.path,
        "window": window.key,
        "frames": taken,
        "mark": window.mark or content_mark(window.path),
    }
    sample = {
        **{"name": name, "prompt": caption.text, **given, "height": height, "width": width, "num_frames": frames},
        **{"fps": part.fps, "seed": seed, "extra": {"real": real, **source}},
    }
    if known.get(name) == sample and all((out / path).is_file() for path in (still, real)):
        return sample
    pixels = read_frames(window.path, part.info, part.selection.indices, Framing((width, height), "training"))
    (out / REAL_FOLDER).mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[:, 0].transpose(1, 2, 0)).save(out / still)
    if frames > 1:
        write_mp4(out / video, torch.from_numpy(pixels), part.fps)
    return sample
