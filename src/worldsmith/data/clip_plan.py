"""`ClipPlan`: the parameters of a dataset of clips that Worldsmith renders itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from worldsmith.data.clip_limits import require_clip, require_room


@dataclass(frozen=True)
class ClipPlan:
    """Two datasets with equal plans are the same."""

    kind: ClassVar[str]
    format_version: ClassVar[int]
    least_frames: ClassVar[int]

    clips: int
    val_clips: int
    seed: int = 0
    size: int = 64
    num_frames: int = 17
    fps: int = 8

    def check(self, out: Path | None = None) -> None:
        """Raises ValueError for a plan that cannot be made, in the folder `out` if it is known where."""
        least = {"clips": 1, "val_clips": 0, "seed": 0, "size": 32, "num_frames": self.least_frames, "fps": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{self.kind}: {name} must be at least {low}, found {getattr(self, name)}")
        if self.size % 2:
            raise ValueError(f"{self.kind}: size must be even for H.264 with 4:2:0 colour, found {self.size}")
        try:
            require_clip(self.num_frames, self.size, self.size, self.fps)
            if out is not None:
                require_room(out, self.clips + self.val_clips)
        except ValueError as error:
            raise ValueError(f"{self.kind}: {error}") from None

    @property
    def counts(self) -> dict[str, int]:
        """Clips of each split."""
        return {"train": self.clips, "val": self.val_clips}

    def header(self) -> dict[str, Any]:
        """What the dataset is known by."""
        return {"dataset": self.kind, "format_version": self.format_version, **asdict(self)}
