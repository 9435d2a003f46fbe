"""`ClipMix`: several datasets of clips and robot episodes in one stream."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import field
from itertools import accumulate
from typing import Any

from worldsmith.config import WrongValueError, wrong
from worldsmith.config.declare.ranges import Factor
from worldsmith.data.clips.clip_dataset import ClipDataset
from worldsmith.data.clips.video_sample import RobotActions
from worldsmith.data.stream.sample_maker import DatasetMix


class ClipMix(DatasetMix, ClipDataset):
    """Several datasets in one stream; packs contain samples of all of them. Keys begin with the dataset's name.

    Without weights, an epoch has each sample once. With weights, an epoch is as long as needed to contain each sample
    at least once in the given ratios; further samples of a dataset continue where its last epoch ended.
    """

    class Config(ClipDataset.Config):
        datasets: dict[str, ClipDataset.Config] = field(default_factory=dict)
        """Datasets of clips (VideoDataset) or robot episodes (RobotDataset) by name."""
        weights: dict[str, Factor] = field(default_factory=dict)
        """Relative number of samples of each dataset by name; empty = each sample once per epoch."""

        def resolutions(self) -> list[str]:
            return [resolution for member in self.datasets.values() for resolution in member.resolutions()]

        def assumed_clip(self) -> tuple[str, int, float, RobotActions | None]:
            clips = (member.assumed_clip() for member in self.datasets.values())
            return max(clips, key=lambda clip: (clip[3] is not None, clip[1]))

        def check(self) -> None:
            if not self.datasets:
                raise WrongValueError({"datasets": self.datasets}, why="a mix needs at least one dataset")
            if nested := [name for name, member in self.datasets.items() if isinstance(member, ClipMix.Config)]:
                raise WrongValueError({f"datasets.{nested[0]}": "ClipMix"}, why="a mix cannot contain another one")
            if self.weights and (set(self.weights) != set(self.datasets) or min(self.weights.values()) <= 0):
                why = "each dataset needs a positive weight"
                raise wrong(self, "weights", why=why, remedy=f"set one for each of {', '.join(sorted(self.datasets))}")

    def __init__(self, config: Config) -> None:
        """Reads all datasets; raises DataError if one of them cannot be read."""
        super().__init__(config)
        weights = config.weights or {name: float(len(member)) for name, member in self.members.items()}
        scale = max((len(member) / weights[name] for name, member in self.members.items() if weights[name]), default=0)
        counts = [round(scale * weights[name]) * bool(len(member)) for name, member in self.members.items()]
        self.starts = [0, *accumulate(counts)]
        """Index of the first sample of each dataset in an epoch, and the length of an epoch."""

    def __len__(self) -> int:
        return self.starts[-1]

    def member(self, index: int, epoch: int) -> tuple[str, int]:
        """Returns (name of the dataset, index in that dataset) of the sample `index` of an epoch."""
        number = bisect_right(self.starts, index) - 1
        name = list(self.members)[number]
        count = self.starts[number + 1] - self.starts[number]
        return name, (epoch * count + index - self.starts[number]) % len(self.members[name])

    def listing(self) -> Iterator[tuple[str, Any]]:
        for name, start in zip(self.members, self.starts):
            for key, facts in self.members[name].listing():
                yield f"{name}/{key}", facts if not self.config.weights else [start, facts]

    def channels(self) -> dict[str, Any]:
        return {f"{name}: {key}": one for name, data in self.members.items() for key, one in data.channels().items()}

    def run_files(self) -> dict[str, str]:
        files = ((name, *found) for name, member in self.members.items() for found in member.run_files().items())
        return {f"{name}_{file}": content for name, file, content in files}
