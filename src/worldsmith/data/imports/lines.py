"""`prompts.txt` and `videos.txt`: line n of the one is the caption of the path in line n of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from worldsmith.data.imports.found import Choices, Clip, Found, caption_of, media_path, split_within
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.files.lines import read_lines

FILES = ("prompts.txt", "videos.txt")
IMAGES = "images.txt"


def recognise(source: Path) -> str:
    folders = folders_of(source)
    return f"{' and '.join(FILES)} are in {folders[0]}" if folders else ""


def folders_of(source: Path) -> list[Path]:
    """The source itself, or else the folders in it that hold both files."""
    inside = sorted(path for path in source.iterdir() if path.is_dir()) if source.is_dir() else []
    return [folder for folder in (source, *inside) if all((folder / name).is_file() for name in FILES)]


def read(source: Path, choices: Choices) -> Iterator[Found]:
    """Lines that are blank in all files are passed over. Raises ValueError when the files do not go together."""
    for folder in folders_of(source):
        names = [*FILES, *[IMAGES] * (folder / IMAGES).is_file()]
        files = {name: without_end(read_lines(folder / name)) for name in names}
        require_same_length(folder, files)
        if IMAGES in files:
            count = sum(1 for line in files[IMAGES] if line.strip())
            yield f"{folder / IMAGES}: the image of a clip is its first frame here; {count} images are not read"
        for number, (prompt, video, *_) in enumerate(zip(*files.values(), strict=True), start=1):
            if not prompt.strip() and not video.strip():
                continue
            try:
                path = media_path(folder, video)
                if not prompt.strip():
                    yield f"{folder / FILES[0]}: line {number} is blank, and {FILES[1]} names {video.strip()}"
                yield Clip(path, caption_of(prompt), split_within(source, path, folder / FILES[0]))
            except SampleError as error:
                yield Rejection(f"{FILES[1]}:{number}", error.reason, error.detail, str(folder / FILES[1]), number)


def without_end(lines: list[str]) -> list[str]:
    """The lines without blank ones after the last."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def require_same_length(folder: Path, files: dict[str, list[str]]) -> None:
    """Raises ValueError for files of different lengths, with the first line that is blank in one of them alone."""
    counts = {name: len(lines) for name, lines in files.items()}
    if len(set(counts.values())) == 1:
        return
    told = ", ".join(f"{name} has {count} lines" for name, count in counts.items())
    blank = next(
        (
            f"; {name} is blank in line {number}"
            for number in range(1, max(counts.values()) + 1)
            for name, lines in files.items()
            if number <= len(lines) and not lines[number - 1].strip()
        ),
        "",
    )
    raise ValueError(f"{folder}: {told}; each line of one belongs to the same line of the others{blank}")
