"""Size, length and frame rate of a run's training clips: the defaults for generation."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worldsmith.data.clips.captions import choose_caption
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import clips_of_run
from worldsmith.data.clips.window_index import Window
from worldsmith.data.stream.errors import DataError, SampleError

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.models.video_model import GenerationDefaults

logger = logging.getLogger(__name__)

CLIPS_TO_TRY = 8


def with_clip_size(
    defaults: GenerationDefaults, run_tree: Mapping[str, Any] | None, grid: tuple[int, ...]
) -> GenerationDefaults:
    """Returns default generation settings with the size, number of frames and fps of the run's first readable clip.

    If the training data cannot be read, a warning is logged and the settings are returned unchanged.

    Args:
        defaults: Settings to complete.
        run_tree: Config of the run as plain data; None for an export, whose settings are complete already. The settings
            of a run on robot episodes are returned unchanged.
        grid: Arguments of `LatentGrid`: frames and pixels per latent, patch size, and so on (`latent_grid` of a model).
    """
    clips = clips_of_run(run_tree)
    if clips is None:
        return defaults
    try:
        return use_first_clip(defaults, VideoDataset(clips), grid)
    except DataError as error:
        logger.warning("the training clips cannot be read, so their size is unknown: %s", error)
        return defaults


def use_first_clip(defaults: GenerationDefaults, dataset: VideoDataset, grid: tuple[int, ...]) -> GenerationDefaults:
    """Returns default generation settings with the size, number of frames and fps of a dataset's first readable clip.

    Args:
        defaults: Settings to complete.
        dataset: The dataset.
        grid: Arguments of `LatentGrid` (`latent_grid` of a model).

    Raises:
        DataError: If none of the first `CLIPS_TO_TRY` clips is readable.
    """
    from worldsmith.data.clips.inspect_clips import inspect_window

    for window in dataset.windows[:CLIPS_TO_TRY]:
        with suppress(SampleError):
            part = inspect_window(window, dataset.config, LatentGrid(*grid), random.Random(0))
            height, width = part.size
            return replace(defaults, height=height, width=width, num_frames=part.selection.count, fps=part.fps)
    raise DataError(f"none of the first clips of {dataset.name} can be read")


def first_windows(dataset: VideoDataset, count: int) -> dict[str, Window]:
    """Returns caption -> clip window for the first `count` different captions, in the order of the dataset's windows.

    Raises:
        DataError: If no window of the dataset has a caption.
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
    """Reads the first frame of a clip window that training uses, uint8 [3, 1, H, W] in its original size.

    Args:
        window: The clip window.
        dataset: Dataset that contains the window.
        grid: Arguments of `LatentGrid` (`latent_grid` of a model).

    Raises:
        SampleError: If the frame cannot be read.
    """
    import torch

    from worldsmith.data.clips.clip_frames import read_upright
    from worldsmith.data.clips.inspect_clips import inspect_window

    part = inspect_window(window, dataset.config, LatentGrid(*grid), random.Random(0))
    return torch.from_numpy(read_upright(window.path, part.info, part.selection.indices[:1]))


def read_clip(
    window: Window, dataset: VideoDataset, grid: tuple[int, ...], size: tuple[int, int]
) -> tuple[Tensor, float]:
    """Reads the frames of a clip window that training uses, scaled and cropped as in training.

    Args:
        window: The clip window.
        dataset: Dataset that contains the window.
        grid: Arguments of `LatentGrid` (`latent_grid` of a model).
        size: (height, width) in pixels.

    Returns:
        The frames, uint8 [3, T, H, W], and their fps.

    Raises:
        SampleError: If the frames cannot be read.
    """
    import torch

    from worldsmith.data.clips.clip_frames import Framing, read_frames
    from worldsmith.data.clips.inspect_clips import inspect_window

    part = inspect_window(window, dataset.config, LatentGrid(*grid), random.Random(0))
    framing = Framing((size[1], size[0]), "training")
    return torch.from_numpy(read_frames(window.path, part.info, part.selection.indices, framing)), part.fps
