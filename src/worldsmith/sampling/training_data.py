"""Size, length and frame rate of a run's training clips: the defaults for generation."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worldsmith.config.tree.reader import from_dict
from worldsmith.data.clips.captions import choose_caption
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset, Window
from worldsmith.data.stream.errors import DataError, SampleError

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.inspect_clips import InspectedClip
    from worldsmith.models.video_model import GenerationDefaults

logger = logging.getLogger(__name__)

CLIPS_TO_TRY = 8


def with_clip_size(
    defaults: GenerationDefaults, run_tree: Mapping[str, Any] | None, grid: tuple[int, ...]
) -> GenerationDefaults:
    """Returns the defaults with height, width, frames and frame rate of the run's first usable training clip.

    If the data are not readable, a warning is logged and the defaults are returned unchanged.

    Args:
        defaults: Defaults to complete.
        run_tree: The run's config as plain data; None for an exported pipeline, whose defaults are complete.
        grid: The model's `latent_grid`.
    """
    if run_tree is None:
        return defaults
    try:
        dataset = VideoDataset(from_dict(run_tree["dataloader_train"]["dataset"], VideoDataset.Config))
        return use_first_clip(defaults, dataset, grid)
    except DataError as error:
        logger.warning("the training clips cannot be read, so their size is unknown: %s", error)
        return defaults


def use_first_clip(defaults: GenerationDefaults, dataset: VideoDataset, grid: tuple[int, ...]) -> GenerationDefaults:
    """Returns `defaults` with the size, length and fps of the first usable clip of a dataset.

    Args:
        defaults: Defaults to complete.
        dataset: The dataset.
        grid: The model's `latent_grid`.

    Raises:
        DataError: If none of the first clips is readable.
    """
    part = first_part(dataset, LatentGrid(*grid))
    height, width = part.size
    return replace(defaults, height=height, width=width, num_frames=part.selection.count, fps=part.fps)


def first_windows(dataset: VideoDataset, count: int) -> dict[str, Window]:
    """Returns the first `count` different captions with their windows, in the order of the windows.

    Raises:
        DataError: If the dataset has no caption.
    """
    found: dict[str, Window] = {}
    for window in dataset.windows:
        if caption := choose_caption(window.captions, dataset.config.caption_keys, random.Random(0)):
            found.setdefault(caption.text, window)
        if len(found) == count:
            break
    if not found:
        raise DataError(f"{dataset.name} has no caption")
    return found


def read_first_frame(window: Window, dataset: VideoDataset, grid: tuple[int, ...]) -> Tensor:
    """Returns the first frame that training uses of a window, uint8 [3, 1, H, W] in its original size.

    Args:
        window: The window.
        dataset: Its dataset.
        grid: The model's `latent_grid`.

    Raises:
        SampleError: If the frame cannot be read.
    """
    import torch

    from worldsmith.data.clips.inspect_clips import inspect_window
    from worldsmith.data.clips.video_reader import read_upright

    part = inspect_window(window, dataset.config, LatentGrid(*grid), random.Random(0))
    return torch.from_numpy(read_upright(window.path, part.info, part.selection.indices[:1]))


def read_clip(
    window: Window, dataset: VideoDataset, grid: tuple[int, ...], size: tuple[int, int]
) -> tuple[Tensor, float]:
    """Reads the frames of a window that training uses, scaled and cropped as in training.

    Args:
        window: The window.
        dataset: Its dataset.
        grid: The model's `latent_grid`.
        size: (height, width) in pixels.

    Returns:
        The frames, uint8 [3, T, H, W], and their fps.

    Raises:
        SampleError: If the frames cannot be read.
    """
    import torch

    from worldsmith.data.clips.inspect_clips import inspect_window
    from worldsmith.data.clips.video_reader import Framing, read_frames

    part = inspect_window(window, dataset.config, LatentGrid(*grid), random.Random(0))
    framing = Framing((size[1], size[0]), "training")
    return torch.from_numpy(read_frames(window.path, part.info, part.selection.indices, framing)), part.fps


def first_part(dataset: VideoDataset, grid: LatentGrid) -> InspectedClip:
    """Inspects the first usable clip as training would.

    Raises:
        DataError: If none of the first clips is readable.
    """
    from worldsmith.data.clips.inspect_clips import inspect_window

    for window in dataset.windows[:CLIPS_TO_TRY]:
        with suppress(SampleError):
            return inspect_window(window, dataset.config, grid, random.Random(0))
    raise DataError(f"none of the first clips of {dataset.name} can be read")
