"""What the clips of a run look like: the size, length and frame rate to generate at when nothing else is asked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worldsmith.config.tree.plain import from_dict
from worldsmith.data.clips.sample import VideoSample
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.errors import DataError

if TYPE_CHECKING:
    from worldsmith.models.cosmos3.generator import GenerationDefaults

logger = logging.getLogger(__name__)

CLIPS_TO_TRY = 8


def with_clip_size(defaults: GenerationDefaults, run_tree: Mapping[str, Any] | None) -> GenerationDefaults:
    """The defaults with height, width, frames and frame rate of the run's first usable training clip.

    `run_tree`: the run's config as plain data; None for an exported pipeline, whose defaults are complete. When the
    data are gone, a warning says so and the defaults stay open.
    """
    if run_tree is None:
        return defaults
    try:
        clip = first_clip(from_dict(run_tree["dataloader_train"]["dataset"], VideoDataset.Config))
    except DataError as error:
        logger.warning("the training clips cannot be looked at, so their size is not known: %s", error)
        return defaults
    height, width = clip.size
    return replace(defaults, height=height, width=width, num_frames=clip.num_frames, fps=clip.fps)


def first_clip(config: VideoDataset.Config) -> VideoSample:
    """The first usable sample of a data set. Raises DataError when the first few cannot be read."""
    from worldsmith.data.clips.sample_maker import SampleMaker

    dataset = VideoDataset(config)
    maker = SampleMaker(dataset, seed=0, shuffle=False, latent_cache=None)
    for position in range(min(CLIPS_TO_TRY, len(dataset))):
        item = maker[position].item
        if isinstance(item, VideoSample):
            return item
    raise DataError(f"none of the first clips of {dataset.file} can be read")
