"""The folder of a generated sample: its arguments, its outcome and what was made, which appear in that order of trust.

`sample_outputs.json` is written last: a sample that has it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.atomic import remove_leftovers, write_text
from worldsmith.files.json_file import read_json_object

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.sampling.sample_args import SampleArgs

ARGS, OUTPUTS = "sample_args.json", "sample_outputs.json"
FILES = ("vision.mp4", "vision.jpg")
SOURCES = "sources"
"""Where the values came from: the one argument that changes nothing."""


@dataclass(frozen=True, slots=True)
class MadeSample:
    """A complete sample on disk."""

    folder: Path
    args: Mapping[str, Any]
    """What `sample_args.json` says."""

    @property
    def file(self) -> Path:
        """The video or the image."""
        return next(self.folder / name for name in FILES if (self.folder / name).is_file())


def find_samples(root: Path) -> Iterator[MadeSample]:
    """The complete samples below a folder that `worldsmith generate` has written, by name."""
    for outcome in sorted(root.rglob(OUTPUTS)):
        if found := read_sample(outcome.parent):
            yield found


def read_sample(folder: Path) -> MadeSample | None:
    """The sample of a folder; None where there is no complete one. Raises UserError for files that are damaged."""
    if not (folder / OUTPUTS).is_file() or not any((folder / name).is_file() for name in FILES):
        return None
    return MadeSample(folder, read_json_object(folder / ARGS))


def differences(made: MadeSample, args: Mapping[str, Any]) -> list[str]:
    """The arguments in which a sample differs from what is asked for, wherever they came from."""
    wanted = json.loads(json.dumps(args))
    names = sorted({*made.args, *wanted} - {SOURCES})
    return [name for name in names if made.args.get(name) != wanted.get(name)]


def write_sample(folder: Path, sample: SampleArgs, args: Mapping[str, Any], video: Tensor) -> None:
    """Writes a video, uint8 [3, T, H, W], or the image that it is, with its arguments; replaces an earlier sample."""
    from worldsmith.sampling.video_writer import write_jpeg, write_mp4

    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    for name in (OUTPUTS, *FILES):
        (folder / name).unlink(missing_ok=True)
    write_text(folder / ARGS, dump(args))
    if sample.is_image:
        write_jpeg(folder / sample.file, video[:, 0], sample.image_save_quality)
    else:
        write_mp4(folder / sample.file, video, sample.fps)
    outputs = [{"content": {}, "files": [sample.file]}]
    write_text(folder / OUTPUTS, dump({"args": args, "status": "success", "message": None, "outputs": outputs}))


def dump(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
