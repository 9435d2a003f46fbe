"""`worldsmith dataset KIND OUT` for the datasets that Worldsmith renders itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import ClassVar

from worldsmith.actions.action import Action, Result, share_done
from worldsmith.data import falling_dataset, moving_shapes
from worldsmith.data.clip_plan import ClipPlan
from worldsmith.data.falling_dataset import FallingPlan
from worldsmith.data.falling_questions import TOPICS, Topic
from worldsmith.data.moving_shapes import DatasetPlan


class MakeClips(Action):
    """What the kinds have in common. A complete dataset with the same parameters is left as it is."""

    places: ClassVar[tuple[str, ...]] = ("out",)
    make: ClassVar[Callable[..., bool]]

    class Config(Action.Config):
        plan_class: ClassVar[type[ClipPlan]]

        out: str
        """Folder of the dataset."""
        seed: int = 0
        """Of all that is drawn at random."""
        size: int = 64
        """Height and width in pixels."""
        fps: int = 8
        """Frames per second."""
        force: bool = False
        """Replace a dataset made with other parameters."""

        def check(self) -> None:
            self.dataset_plan().check()

        def dataset_plan(self) -> ClipPlan:
            return self.plan_class(**{item.name: getattr(self, item.name) for item in fields(self.plan_class)})

    config: Config

    def plan(self) -> Iterator[str]:
        plan = self.config.dataset_plan()
        plan.check(Path(self.config.out))
        yield (
            f"{plan.kind}: {plan.clips} train and {plan.val_clips} val clips of {plan.num_frames} frames, "
            f"{plan.size}×{plan.size}, in {self.config.out}"
        )

    def run(self) -> Result:
        out, plan = self.config.out, self.config.dataset_plan()
        made = type(self).make(out, plan, force=self.config.force, progress=share_done(plan.kind))
        if made:
            line = f"{plan.kind}: {plan.clips} train and {plan.val_clips} val clips in {out}"
        else:
            line = f"{plan.kind}: {out} is complete already, nothing to do"
        return Result([line], {"folder": out, "made": made, **asdict(plan)})


class MakeMovingShapes(MakeClips):
    """Makes a dataset of coloured shapes that move in one direction, as H.264 MP4 files with captions.

    It has a train and a val split and prompts for `worldsmith evaluate`. A complete dataset with the same parameters is
    left as it is.
    """

    make = staticmethod(moving_shapes.make_dataset)

    class Config(MakeClips.Config):
        plan_class = DatasetPlan

        clips: int = 700
        """Training clips."""
        val_clips: int = 64
        """Validation clips."""
        num_frames: int = 17
        """Frames of a clip, 4k+1."""


class MakeFallingObjects(MakeClips):
    """Makes clips of an object that falls onto a bar and may break laws of physics, as H.264 MP4 files.

    A train and a val split hold a score from 1 to 5 for each clip in the VideoPhy-2 layout, and questions about it with
    the answer yes or no in the LLaVA layout (annotations.json). A complete dataset with the same parameters is left as
    it is.
    """

    make = staticmethod(falling_dataset.make_dataset)

    class Config(MakeClips.Config):
        plan_class = FallingPlan

        clips: int = 1200
        """Training clips; every 60 hold each score equally often."""
        val_clips: int = 120
        """Validation clips."""
        num_frames: int = 16
        """Frames of a clip."""
        topics: list[Topic] = field(default_factory=lambda: list(TOPICS))
        """What is asked of a clip in annotations.json."""
