"""Layouts of lists: a table with a row per clip, or text files with a line per clip."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from worldsmith.data.json_records import parse_json, read_lines
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.files.lines import read_lines as read_text_lines
from worldsmith.tools.datasets.imports.found import (
    TEXT_KEYS,
    Choices,
    Clip,
    Found,
    caption_of,
    files_below,
    media_path,
    split_within,
)

TABLE_FILES = ("metadata.csv", "metadata.jsonl")
TABLE_SUFFIXES = (".csv", ".jsonl")
PATH_COLUMNS = ("file_name", "video_file_name", "image_file_name", "file_path", "path", "video", "image", "file")
LINE_FILES = ("prompts.txt", "videos.txt")
IMAGE_LIST = "images.txt"


def recognise_tables(source: Path) -> str:
    files = tables_of(source)
    return f"{files[0].name} is {'the source' if files[0] == source else f'in {files[0].parent}'}" if files else ""


def read_tables(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields the clips of all tables of a source.

    Paths are relative to the folder of the table. The split follows from the path of the clip, or else of the table.

    Raises:
        ValueError: A table cannot be read, or has no column of paths.
    """
    base = source if source.is_dir() else source.parent
    for table in tables_of(source):
        path_column: str | None = None
        for number, row in rows_of(table):
            if isinstance(row, SampleError):
                yield Rejection(f"{table.name}:{number}", row.reason, row.detail, str(table), number)
                continue
            if path_column is None:
                path_column = column(table, row, choices.path_column, PATH_COLUMNS, "paths")
                captions = caption_columns(table, row, choices.caption_column)
                yield f"{table}: paths from {path_column}, captions from {' and '.join(captions) or 'no column'}"
            try:
                yield clip_of(table, row, path_column, captions, base)
            except SampleError as error:
                yield Rejection(f"{table.name}:{number}", error.reason, error.detail, str(table), number)


def recognise_line_lists(source: Path) -> str:
    folders = folders_of(source)
    return f"{' and '.join(LINE_FILES)} are in {folders[0]}" if folders else ""


def read_line_lists(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields the clips of `videos.txt` and `prompts.txt`; skips lines that are blank in both.

    Raises:
        ValueError: The files have different numbers of lines.
    """
    for folder in folders_of(source):
        names = [*LINE_FILES, *[IMAGE_LIST] * (folder / IMAGE_LIST).is_file()]
        files = {name: without_end(read_text_lines(folder / name)) for name in names}
        require_same_length(folder, files)
        if IMAGE_LIST in files:
            count = sum(1 for line in files[IMAGE_LIST] if line.strip())
            yield f"{folder / IMAGE_LIST}: the image of a clip is its first frame here; {count} images are not read"
        for number, (prompt, video, *_) in enumerate(zip(*files.values(), strict=True), start=1):
            if not prompt.strip() and not video.strip():
                continue
            try:
                path = media_path(folder, video)
                if not prompt.strip():
                    yield f"{folder / LINE_FILES[0]}: line {number} is blank, and {LINE_FILES[1]} names {video.strip()}"
                yield Clip(path, caption_of(prompt), split_within(source, path, folder / LINE_FILES[0]))
            except SampleError as error:
                yield Rejection(
                    f"{LINE_FILES[1]}:{number}", error.reason, error.detail, str(folder / LINE_FILES[1]), number
                )


def tables_of(source: Path) -> list[Path]:
    if source.is_file():
        return [source] if source.suffix.lower() in TABLE_SUFFIXES else []
    return [source / path for path in files_below(source) if path.name in TABLE_FILES]


def rows_of(table: Path) -> Iterator[tuple[int, dict[str, Any] | SampleError]]:
    """Yields (line number from 1, row) of every row that is not blank. Raises ValueError if the file is not a table."""
    if table.suffix.lower() == ".csv":
        yield from csv_rows(table)
        return
    for number, line in read_lines(table):
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise SampleError("bad_record", f"expected an object, found {type(row).__name__}")
            yield number, row
        except SampleError as error:
            yield number, error


def csv_rows(table: Path) -> Iterator[tuple[int, dict[str, Any] | SampleError]]:
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            if len(set(names)) < len(names):
                raise ValueError(f"{table}: a column name stands twice in the first line: {', '.join(names)}")
            for cells in reader:
                if len(cells) == len(names):
                    yield reader.line_num, dict(zip(names, cells))
                elif cells:
                    detail = f"{len(cells)} cells in a table of {len(names)} columns"
                    yield reader.line_num, SampleError("bad_record", detail)
    except UnicodeDecodeError as error:
        raise ValueError(f"{table} is not UTF-8 text: {error}") from None
    except csv.Error as error:
        raise ValueError(f"{table}, line {reader.line_num}: {error}") from None


def column(table: Path, row: Iterable[str], chosen: str | None, known: tuple[str, ...], what: str) -> str:
    """Returns the first of the known columns, or the chosen one. Raises ValueError if the table lacks it."""
    for name in [chosen] if chosen is not None else known:
        if name in row:
            return name
    raise ValueError(f"{table} has no column {chosen or ' or '.join(known)} for {what}; there are: {', '.join(row)}")


def caption_columns(table: Path, row: Iterable[str], chosen: str | None) -> list[str]:
    """Returns the columns of captions: the chosen one, or else that of structured and the first of plain captions."""
    if chosen is not None:
        return [column(table, row, chosen, (), "captions")]
    texts = [name for name in TEXT_KEYS if name in row][:1]
    return [name for name in ("caption_json",) if name in row] + texts


def clip_of(table: Path, row: dict[str, Any], path_column: str, captions: list[str], base: Path) -> Clip:
    """Returns the clip of a row. Raises SampleError: no_path, bad_caption, bad_json."""
    path = media_path(table.parent, row.get(path_column))
    found: dict[str, Any] = {}
    for name in captions:
        found |= caption_of({name: row.get(name)} if name == "caption_json" else row.get(name))
    return Clip(path, found, split_within(base, path, table))


def folders_of(source: Path) -> list[Path]:
    """Returns the source and the folders in it that contain both files."""
    inside = sorted(path for path in source.iterdir() if path.is_dir()) if source.is_dir() else []
    return [folder for folder in (source, *inside) if all((folder / name).is_file() for name in LINE_FILES)]


def without_end(lines: list[str]) -> list[str]:
    """Returns the lines without blank lines at the end."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def require_same_length(folder: Path, files: dict[str, list[str]]) -> None:
    """Raises ValueError for files of different lengths; names the first line that is blank in only one file."""
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
