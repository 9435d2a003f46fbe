"""A look at a data set before a run: what is there, what is left out and why."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset, Window
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.maker import Features
from worldsmith.data.stream.quarantine import Rejection


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """Counts of a data set. `rejections` has those of the file's lines and those of the probed windows."""

    records: int
    windows: int
    probed: int
    rejections: list[Rejection]
    features: list[Features]
    """Of the probed windows that are not left out."""

    @property
    def drops(self) -> dict[str, int]:
        """Number of rejections per reason."""
        return dict(sorted(Counter(r.reason for r in self.rejections).items()))

    def __str__(self) -> str:
        drops = ", ".join(f"{reason} {n}" for reason, n in self.drops.items()) or "nothing"
        return f"{self.records} records, {self.windows} windows; left out: {drops} ({self.probed} clips opened)"


def summarize(
    dataset: VideoDataset, grid: LatentGrid, *, probe: int = 16, max_tokens: int | None = None
) -> DatasetSummary:
    """Looks at every line, and opens `probe` clips spread evenly over the data set (their first frame is decoded).

    With `max_tokens`, those are counted whose video alone, without its caption, is above that limit of a pack.
    """
    from worldsmith.data.clips.sample_maker import features_of, look_at

    windows = spread(dataset.windows, probe)
    rejections, features = list(dataset.rejections), []
    for window in windows:
        try:
            part = look_at(window, dataset.config, grid, random.Random(0))
            tokens = grid.sample_tokens(0, part.latent_shape)
            if max_tokens is not None and tokens > max_tokens:
                raise SampleError("over_token_cap", f"{tokens} tokens ({part}); a pack holds {max_tokens}")
            features.append(features_of(part.info, part.selection.count, part.size, part.fps))
        except SampleError as error:
            rejections.append(Rejection(window.key, error.reason, error.detail, window.path, window.line))
    return DatasetSummary(dataset.num_records, len(dataset.windows), len(windows), rejections, features)


def spread(windows: list[Window], count: int) -> list[Window]:
    """`count` windows at even distances, or all when there are fewer."""
    if len(windows) <= count:
        return windows
    return [windows[i * len(windows) // count] for i in range(count)]
