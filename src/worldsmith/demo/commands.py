"""Commands `worldsmith dataset moving-shapes OUT` and `worldsmith dataset falling-objects OUT`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import ClassVar

from worldsmith.actions.action import Action, Result, make_progress_reporter
from worldsmith.demo.falling_objects import TOPICS, FallingObjects, Topic
from worldsmith.demo.moving_shapes import MovingShapes
from worldsmith.demo.synthetic_dataset import SyntheticDataset


class MakeClips(Action):
    """Base class of commands that create a synthetic dataset, unless it exists complete with the same parameters."""

    places: ClassVar[tuple[str, ...]] = ("out",)

    class Config(Action.Config):
        dataset_class: ClassVar[type[SyntheticDataset]]

        out: str
        """Folder of the dataset."""
        seed: int = 0
        """Seed of all random choices."""
        size: int = 64
        """Height and width in pixels."""
        fps: int = 8
        """Frame rate (fps)."""
        force: bool = False
        """Replace a dataset with other parameters."""

        def check(self) -> None:
            self.dataset().check()

        def dataset(self) -> SyntheticDataset:
            return self.dataset_class(**{item.name: getattr(self, item.name) for item in fields(self.dataset_class)})

    config: Config

    def plan(self) -> Iterator[str]:
        dataset = self.config.dataset()
        dataset.check(Path(self.config.out))
        yield (
            f"{dataset.kind}: {dataset.clips} train and {dataset.val_clips} val clips of {dataset.num_frames} frames, "
            f"{dataset.size}×{dataset.size}, in {self.config.out}"
        )

    def run(self) -> Result:
        """Writes the dataset unless it exists complete with the same parameters and `force` is False.

        The data of the result has the keys `folder`, `made` (True if the dataset was written) and the name of each
        parameter of the dataset.
        """
        out, dataset = self.config.out, self.config.dataset()
        made = dataset.make(out, force=self.config.force, progress=make_progress_reporter(dataset.kind))
        written = f"{dataset.clips} train and {dataset.val_clips} val clips in {out}"
        line = f"{dataset.kind}: {written if made else f'{out} is already complete'}"
        return Result([line], {"folder": out, "made": made, **asdict(dataset)})


class MakeMovingShapes(MakeClips):
    """Generates a dataset of colored shapes that move in one direction, as H.264 MP4 files with captions.

    The dataset has a train and a val split and prompts for `worldsmith evaluate`. If it exists complete with the same
    parameters, it is kept.
    """

    class Config(MakeClips.Config):
        dataset_class = MovingShapes

        clips: int = 700
        """Number of training clips."""
        val_clips: int = 64
        """Number of validation clips."""
        num_frames: int = 17
        """Number of frames of a clip, 4k+1."""


class MakeFallingObjects(MakeClips):
    """Generates clips of an object that falls onto a bar and may break laws of physics, as H.264 MP4 files.

    Each clip of the train and val splits has a score from 1 to 5 in the VideoPhy-2 layout, and yes/no questions in the
    LLaVA layout (annotations.json). If the dataset exists complete with the same parameters, it is kept.
    """

    class Config(MakeClips.Config):
        dataset_class = FallingObjects

        clips: int = 1200
        """Number of training clips. In every 60 clips each score occurs 12 times."""
        val_clips: int = 120
        """Number of validation clips."""
        num_frames: int = 16
        """Number of frames of a clip."""
        topics: list[Topic] = field(default_factory=lambda: list(TOPICS))
        """Topics of the questions in annotations.json."""
