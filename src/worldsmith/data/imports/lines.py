"""`prompts.txt` and `videos.txt`: line n of the one is the caption of the path in line n of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from worldsmith.data.imports.found import Choices, Clip, Found, caption_of, media_path, split_within
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.files.lines import read_lines

FILES = ("prompts.txt", "videos.txt")


def recognise(source: Path) -> str:
    folders = folders_of(source)
    return f"{' and '.join(FILES)} are in {folders[0]}" if folders else ""


def folders_of(source: Path) -> list[Path]:
    """The source itself, or else the folders in it that hold both files."""
    inside = sorted(path for path in source.iterdir() if path.is_dir()) if source.is_dir() else []
    return [folder for folder in (source, *inside) if all((folder / name).is_file() for name in FILES)]


def read(source: Path, choices: Choices) -> Iterator[Found]:
    """Raises ValueError when the files differ in their number of lines."""
    for folder in folders_of(source):
        prompts, videos = (read_lines(folder / name) for name in FILES)
        if len(prompts) != len(videos):
            raise ValueError(
                f"{folder}: {FILES[0]} has {len(prompts)} lines and {FILES[1]} {len(videos)}; "
                "each line of one belongs to the same line of the other"
            )
        for number, (prompt, video) in enumerate(zip(prompts, videos), start=1):
            try:
                path = media_path(folder, video)
                yield Clip(path, caption_of(prompt), split_within(source, path, folder / FILES[0]))
            except SampleError as error:
                yield Rejection(f"{FILES[1]}:{number}", error.reason, error.detail, str(folder / FILES[1]), number)
