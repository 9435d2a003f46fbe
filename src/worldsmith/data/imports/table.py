"""`metadata.csv` or `metadata.jsonl` with a row a clip, also in the folders of Hugging Face's videofolder."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from worldsmith.data.imports.found import (
    TEXT_KEYS,
    Choices,
    Clip,
    Found,
    caption_of,
    files_below,
    media_path,
    split_within,
)
from worldsmith.data.json_records import parse_json, read_lines
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection

NAMES = ("metadata.csv", "metadata.jsonl")
ENDINGS = (".csv", ".jsonl")
PATHS = ("file_name", "video_file_name", "image_file_name", "file_path", "path", "video", "image", "file")


def recognise(source: Path) -> str:
    files = tables_of(source)
    return f"{files[0].name} is {'the source' if files[0] == source else f'in {files[0].parent}'}" if files else ""


def tables_of(source: Path) -> list[Path]:
    if source.is_file():
        return [source] if source.suffix.lower() in ENDINGS else []
    return [source / path for path in files_below(source) if path.name in NAMES]


def read(source: Path, choices: Choices) -> Iterator[Found]:
    """Paths are seen from the folder of the table; the split is what the path of the clip says, or of the table.

    Raises ValueError for a table without a column of paths, or one that cannot be read.
    """
    base = source if source.is_dir() else source.parent
    for table in tables_of(source):
        path_column: str | None = None
        for number, row in rows_of(table):
            if isinstance(row, SampleError):
                yield Rejection(f"{table.name}:{number}", row.reason, row.detail, str(table), number)
                continue
            if path_column is None:
                path_column = column(table, row, choices.path_column, PATHS, "paths")
                captions = caption_columns(table, row, choices.caption_column)
                yield f"{table}: paths from {path_column}, captions from {' and '.join(captions) or 'no column'}"
            try:
                yield clip_of(table, row, path_column, captions, base)
            except SampleError as error:
                yield Rejection(f"{table.name}:{number}", error.reason, error.detail, str(table), number)


def rows_of(table: Path) -> Iterator[tuple[int, dict[str, Any] | SampleError]]:
    """(line number from 1, row) of every row that is not blank. Raises ValueError for a file that is no table."""
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
    """Raises ValueError when it is not there, naming those that are."""
    for name in [chosen] if chosen is not None else known:
        if name in row:
            return name
    raise ValueError(f"{table} has no column {chosen or ' or '.join(known)} for {what}; there are: {', '.join(row)}")


def caption_columns(table: Path, row: Iterable[str], chosen: str | None) -> list[str]:
    """The chosen column; else the structured captions and the first plain ones; none where there are none."""
    if chosen is not None:
        return [column(table, row, chosen, (), "captions")]
    texts = [name for name in TEXT_KEYS if name in row][:1]
    return [name for name in ("caption_json",) if name in row] + texts


def clip_of(table: Path, row: dict[str, Any], path_column: str, captions: list[str], base: Path) -> Clip:
    """Raises SampleError: no_path, bad_caption, bad_json."""
    path = media_path(table.parent, row.get(path_column))
    found: dict[str, Any] = {}
    for name in captions:
        found |= caption_of({name: row.get(name)} if name == "caption_json" else row.get(name))
    return Clip(path, found, split_within(base, path, table))
