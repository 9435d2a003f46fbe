"""`SyntheticDataset`: parameters of a dataset of clips that Worldsmith renders, and how it is written."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from worldsmith.data.clip_limits import require_clip
from worldsmith.data.dataset_folder import complete_folder, prepare_folder
from worldsmith.files.write_checks import nearest_folder

SPLITS = {"train": 0, "val": 1}
"""Split -> number in its random seed, so that the splits have different scenes."""
MIN_FILE_BYTES = 4096
"""Min bytes of disk space per file."""


@dataclass(frozen=True)
class SyntheticDataset(ABC):
    """Base class of the parameters of a synthetic dataset; equal parameters produce equal files."""

    kind: ClassVar[str]
    format_version: ClassVar[int]
    min_frames: ClassVar[int]
    contents: ClassVar[tuple[str, ...]]
    """Files and folders that `write` creates."""

    clips: int
    val_clips: int
    seed: int = 0
    size: int = 64
    num_frames: int = 17
    fps: int = 8

    def check(self, out: Path | None = None) -> None:
        """Raises ValueError for invalid parameters, or if the disk of the folder `out` has too little space.

        If `out` is None, the disk space is not checked.
        """
        least = {"clips": 1, "val_clips": 0, "seed": 0, "size": 32, "num_frames": self.min_frames, "fps": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{self.kind}: {name} must be at least {low}, found {getattr(self, name)}")
        if self.size % 2:
            raise ValueError(f"{self.kind}: size must be even for H.264 with 4:2:0 colour, found {self.size}")
        try:
            require_clip(self.num_frames, self.size, self.size, self.fps)
            if out is not None:
                require_disk_space(out, self.clips + self.val_clips)
        except ValueError as error:
            raise ValueError(f"{self.kind}: {error}") from None

    @property
    def counts(self) -> dict[str, int]:
        """Number of clips by split."""
        return dict(zip(SPLITS, (self.clips, self.val_clips), strict=True))

    def header(self) -> dict[str, Any]:
        """Returns the first entries of dataset.json: kind, format version and all parameters of the dataset."""
        return {"dataset": self.kind, "format_version": self.format_version, **asdict(self)}

    def make(self, out: str | Path, *, force: bool = False, progress: Callable[[int, int], None] | None = None) -> bool:
        """Writes the dataset and, last, dataset.json. An incomplete dataset is written again.

        Args:
            out: Folder of the dataset.
            force: Whether a complete dataset in `out` is replaced, whatever its parameters.
            progress: Called with (number of written clips, number of all clips) after each clip.

        Returns:
            True if the dataset was written; False if `out` already contains it and `force` is False.

        Raises:
            ValueError: For invalid parameters.
            FileExistsError: If `out` contains a dataset with other parameters and `force` is False, or anything that
                is not a dataset.
        """
        out = Path(out)
        self.check(out)
        if not prepare_folder(out, self.header(), self.contents, force):
            return False
        total, numbers = sum(self.counts.values()), count(1)
        summary = self.write(out, lambda: progress(next(numbers), total) if progress is not None else None)
        complete_folder(out, self.header() | summary)
        return True

    @abstractmethod
    def write(self, out: Path, clip_written: Callable[[], None]) -> dict[str, Any]:
        """Writes the files of the dataset into `out` and calls `clip_written` after each clip.

        Returns:
            Additional entries of dataset.json.
        """


def require_disk_space(out: Path, clips: int) -> None:
    """Raises ValueError if the disk of `out` has less free space than the minimum for a dataset of `clips` clips."""
    needed, free = clips * MIN_FILE_BYTES, shutil.disk_usage(nearest_folder(out)).free
    if needed > free:
        raise ValueError(
            f"{clips} clips need at least {needed / 2**20:,.1f} MiB, but {free / 2**20:,.1f} MiB are free on "
            f"the disk of {out}. Use fewer clips, or free disk space"
        )
