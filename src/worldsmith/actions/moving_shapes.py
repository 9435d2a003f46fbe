"""`worldsmith dataset moving-shapes OUT`: makes the procedural dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import ClassVar

from worldsmith.actions.action import Action, Result, share_done
from worldsmith.data.moving_shapes import DatasetPlan, make_dataset


class MakeMovingShapes(Action):
    """Makes a dataset of coloured shapes that move in one direction, as H.264 MP4 files with captions.

    It has a train and a val split and prompts for `worldsmith evaluate`. A complete dataset with the same parameters is
    left as it is.
    """

    places: ClassVar[tuple[str, ...]] = ("out",)

    class Config(Action.Config):
        out: str
        """Folder of the dataset."""
        clips: int = 700
        """Training clips."""
        val_clips: int = 64
        """Validation clips."""
        seed: int = 0
        """Of scenes and captions."""
        size: int = 64
        """Height and width in pixels."""
        num_frames: int = 17
        """Frames of a clip, 4k+1."""
        fps: int = 8
        """Frames per second."""
        force: bool = False
        """Replace a dataset made with other parameters."""

        def check(self) -> None:
            self.dataset_plan().check()

        def dataset_plan(self) -> DatasetPlan:
            return DatasetPlan(**{name: getattr(self, name) for name in DatasetPlan.__dataclass_fields__})

    config: Config

    def plan(self) -> Iterator[str]:
        plan = self.config.dataset_plan()
        yield (
            f"moving-shapes: {plan.clips} train and {plan.val_clips} val clips of {plan.num_frames} frames, "
            f"{plan.size}×{plan.size}, in {self.config.out}"
        )

    def run(self) -> Result:
        out, plan = self.config.out, self.config.dataset_plan()
        made = make_dataset(out, plan, force=self.config.force, progress=share_done("moving-shapes"))
        if made:
            line = f"moving-shapes: {plan.clips} train and {plan.val_clips} val clips in {out}"
        else:
            line = f"moving-shapes: {out} is complete already, nothing to do"
        return Result([line], {"folder": out, "made": made, **asdict(plan)})
