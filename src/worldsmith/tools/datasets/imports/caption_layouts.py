"""Layouts of clips with captions: tables and lists with a row or line per clip, caption files, and tar shards.

Caption files are next to the videos, or in folders of their own: the captioner of Cosmos writes `captions/`, and
CogVideo's SAT reads `labels/`. SAT's shards are `NAME.tar` with `KEY.id` and `KEY.mp4`, and `NAME.meta.jsonl` with the
captions.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from worldsmith.data.clips.clip_records import ShardSample, samples_of, text_of
from worldsmith.data.json_records import parse_json, read_lines
from worldsmith.data.shards.addresses import part_address
from worldsmith.data.shards.tar_index import index_of
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.files.lines import read_lines as read_text_lines
from worldsmith.tools.datasets.imports.source_clips import (
    TEXT_KEYS,
    Choices,
    Clip,
    Found,
    caption_of,
    files_below,
    is_media,
    media_path,
    split_of,
    split_within,
)

TABLE_FILES = ("metadata.csv", "metadata.jsonl")
TABLE_SUFFIXES = (".csv", ".jsonl")
PATH_COLUMNS = ("file_name", "video_file_name", "image_file_name", "file_path", "path", "video", "image", "file")
LINE_FILES = ("prompts.txt", "videos.txt")
IMAGE_LIST = "images.txt"
CAPTION_SUFFIXES = (".json", ".txt")
Named = Mapping[Path, list[Path]]
"""Files by the name that media and captions share; all paths are relative to the source."""
CAPTION_NAMES = ("caption.json", "caption.txt")
META = ".meta.jsonl"
COPY = "-$#%@&"
"""Marker in the key of a sample; SAT uses only the part before it to find the entry in .meta.jsonl."""


def recognise_tables(source: Path) -> str:
    """Returns text that names a table of clips in `source` (or the source itself); "" if no table is found."""
    files = tables_of(source)
    return f"{files[0].name} is {'the source' if files[0] == source else f'in {files[0].parent}'}" if files else ""


def read_tables(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields the clips of all tables of a source, rows that must be skipped (Rejection), and notes for the user (str).

    Paths in a table are relative to the folder of the table. The split of a clip follows from the clip's path or, if
    the clip is outside of the source, from the path of the table.

    Args:
        source: A folder with tables, or a table.
        choices: Import options; only the columns of paths and captions are used.

    Raises:
        ValueError: If a table cannot be read, or has no column of paths.
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
    """Returns text that names a folder of `source` with `prompts.txt` and `videos.txt`; "" if no folder has both."""
    folders = folders_of(source)
    return f"found {' and '.join(LINE_FILES)} in {folders[0]}" if folders else ""


def read_line_lists(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields the clips in `videos.txt` with captions from `prompts.txt`, skipped lines (Rejection), and notes (str).

    Lines that are blank in both files are ignored.

    Args:
        source: Folder with the two files, or with subfolders that contain them.
        choices: Not used by this layout.

    Raises:
        ValueError: If the files have different numbers of lines.
    """
    for folder in folders_of(source):
        names = [*LINE_FILES, *[IMAGE_LIST] * (folder / IMAGE_LIST).is_file()]
        files = {name: strip_blank_end(read_text_lines(folder / name)) for name in names}
        require_same_length(folder, files)
        if IMAGE_LIST in files:
            count = sum(1 for line in files[IMAGE_LIST] if line.strip())
            yield f"{folder / IMAGE_LIST}: its {count} images are ignored, the first frame of each clip is used"
        for number, (prompt, video, *_) in enumerate(zip(*files.values(), strict=True), start=1):
            if not prompt.strip() and not video.strip():
                continue
            try:
                path = media_path(folder, video)
                if not prompt.strip():
                    yield (
                        f"{folder / LINE_FILES[0]}: line {number} is blank, but {LINE_FILES[1]} names {video.strip()}"
                    )
                yield Clip(path, caption_of(prompt), split_within(source, path, folder / LINE_FILES[0]))
            except SampleError as error:
                yield Rejection(
                    f"{LINE_FILES[1]}:{number}", error.reason, error.detail, str(folder / LINE_FILES[1]), number
                )


def tables_of(source: Path) -> list[Path]:
    """Returns the tables of a source: the source itself if it is a file, or its metadata files at any depth."""
    if source.is_file():
        return [source] if source.suffix.lower() in TABLE_SUFFIXES else []
    return [source / path for path in files_below(source) if path.name in TABLE_FILES]


def rows_of(table: Path) -> Iterator[tuple[int, dict[str, Any] | SampleError]]:
    """Yields (line number from 1, row) for each row of a table that is not blank; an invalid row is a SampleError.

    Raises ValueError if the file is not a table.
    """
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
    """Yields (line number from 1, row) for each row of a CSV file that is not blank; an invalid row is a SampleError.

    Raises ValueError if the file is not a table.
    """
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = next(reader, [])
            if len(set(names)) < len(names):
                raise ValueError(f"{table}: a column name occurs twice in the first line: {', '.join(names)}")
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


def column(table: Path, row: Iterable[str], chosen: str | None, known: tuple[str, ...], content_name: str) -> str:
    """Returns the name of a column: the chosen one, else the first of `known` that the table has.

    Args:
        table: The table, for the error message.
        row: Column names of the table.
        chosen: Column that the user selected; None: not selected.
        known: Default column names, by preference.
        content_name: What the column contains, such as "captions", for the error message.

    Raises:
        ValueError: If the table lacks the chosen column, or all default columns.
    """
    for name in [chosen] if chosen is not None else known:
        if name in row:
            return name
    raise ValueError(
        f"{table} has no column {chosen or ' or '.join(known)} for {content_name}; its columns: {', '.join(row)}"
    )


def caption_columns(table: Path, row: Iterable[str], chosen: str | None) -> list[str]:
    """Returns the names of the caption columns: `chosen`, else caption_json and the first column of plain captions.

    `row` has the column names of the table. Raises ValueError if the table lacks the chosen column.
    """
    if chosen is not None:
        return [column(table, row, chosen, (), "captions")]
    texts = [name for name in TEXT_KEYS if name in row][:1]
    return [name for name in ("caption_json",) if name in row] + texts


def clip_of(table: Path, row: dict[str, Any], path_column: str, captions: list[str], base: Path) -> Clip:
    """Returns the clip of a table row.

    Args:
        table: The table.
        row: Cells by column name.
        path_column: Column of the path.
        captions: Columns of captions.
        base: Folder of the source; the split follows from the path of the clip relative to it.

    Raises:
        SampleError: With the reason no_path, remote_path, bad_caption or bad_json.
    """
    path = media_path(table.parent, row.get(path_column))
    found: dict[str, Any] = {}
    for name in captions:
        found |= caption_of({name: row.get(name)} if name == "caption_json" else row.get(name))
    return Clip(path, found, split_within(base, path, table))


def folders_of(source: Path) -> list[Path]:
    """Returns those of `source` and its direct subfolders that contain both `prompts.txt` and `videos.txt`."""
    inside = sorted(path for path in source.iterdir() if path.is_dir()) if source.is_dir() else []
    return [folder for folder in (source, *inside) if all((folder / name).is_file() for name in LINE_FILES)]


def strip_blank_end(lines: list[str]) -> list[str]:
    """Returns the lines without blank lines at the end."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def require_same_length(folder: Path, files: dict[str, list[str]]) -> None:
    """Raises ValueError if the files of a folder (lines by file name) have different numbers of lines.

    The message also names the first line that is blank in one of the files, if there is one.
    """
    counts = {name: len(lines) for name, lines in files.items()}
    if len(set(counts.values())) == 1:
        return
    listing = ", ".join(f"{name} has {count} lines" for name, count in counts.items())
    blank = next(
        (
            f"; {name} is blank in line {number}"
            for number in range(1, max(counts.values()) + 1)
            for name, lines in files.items()
            if number <= len(lines) and not lines[number - 1].strip()
        ),
        "",
    )
    raise ValueError(f"{folder}: {listing}; expected the same number of lines in each, one line per clip{blank}")


def recognise_sidecars(source: Path) -> str:
    """Returns text that names a caption file next to a media file of the same name; "" if `source` has no such pair."""
    captions = caption_files(source)
    for name, media in media_files(source).items():
        if name in captions:
            return f"found {captions[name][0]} next to {media[0].name}"
    return ""


def read_sidecars(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields the clips of media files, with captions from files of the same name, and skipped clips (Rejection).

    `choices` is not used by this layout.
    """
    yield from pair_up(source, media_files(source), caption_files(source))


def recognise_caption_folders(source: Path) -> str:
    """Returns text that names a caption in `captions/` or `labels/` and its video; "" if `source` has no such pair."""
    media, captions = media_and_captions(source)
    both = sorted(captions.keys() & media.keys())
    return f"{captions[both[0]][0]} belongs to {media[both[0]][0]}" if both else ""


def read_caption_folders(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields the clips of `videos/` with captions from `captions/` or `labels/`, and skipped clips (Rejection).

    `choices` is not used by this layout.
    """
    yield from pair_up(source, *media_and_captions(source))


def media_files(source: Path) -> Named:
    """Returns the videos and images below a source: relative path without suffix → relative paths."""
    return group_by_name((path, path.with_suffix("")) for path in files_below(source) if is_media(path))


def caption_files(source: Path) -> Named:
    """Returns the .json and .txt files below a source: relative path without suffix → relative paths."""
    found = (path for path in files_below(source) if path.suffix.lower() in CAPTION_SUFFIXES)
    return group_by_name((path, path.with_suffix("")) for path in found)


def group_by_name(named: Iterable[tuple[Path, Path]]) -> Named:
    """Groups (path, name) pairs by name; returns a dict from each name to the list of its paths."""
    found: dict[Path, list[Path]] = {}
    for path, name in named:
        found.setdefault(name, []).append(path)
    return found


def pair_up(source: Path, media: Named, captions: Named) -> Iterator[Found]:
    """Yields a clip for each media file, with the captions of the same name, or without captions if it has none.

    Unusable captions and captions without a media file are yielded as Rejection. A .json caption is structured, a .txt
    caption is plain text.

    Args:
        source: Folder that all paths are relative to.
        media: Media files by name.
        captions: Caption files by name.
    """
    for name in sorted({*media, *captions}):
        files = captions.get(name, [])
        if name not in media:
            where = str(source / files[0])
            yield Rejection(str(name), "caption_without_video", "no video or image has the same name", where)
            continue
        try:
            found: dict[str, Any] = {}
            for file in files:
                found |= read_caption_file(source / file)
        except SampleError as error:
            yield Rejection(str(name), error.reason, f"{file.name}: {error.detail}", str(source / file))
            continue
        for path in media[name]:
            yield Clip(source / path, found, split_of(path))


def media_and_captions(source: Path) -> tuple[Named, Named]:
    """Returns the media of `videos/` and the captions of `captions/` or `labels/`, each as name → relative paths.

    The name is NAME of `videos/NAME.mp4`, or SPLIT/NAME of `SPLIT/videos/NAME.mp4`.
    """
    media, captions = [], []
    for path in files_below(source):
        *parts, folder, name = ("", "", *path.parts)
        if is_media(path) and folder == "videos":
            media.append((path, Path(*parts, path.stem)))
        elif name in CAPTION_NAMES and parts[-1] == "captions":
            captions.append((path, Path(*parts[:-1], folder)))
        elif path.suffix.lower() == ".txt" and folder == "labels":
            captions.append((path, Path(*parts, path.stem)))
    return group_by_name(media), group_by_name(captions)


def read_caption_file(path: Path) -> dict[str, Any]:
    """Reads a .txt or .json caption file; returns {"caption": text, "caption_json": object}, without missing keys.

    The dictionary is empty if the file is blank.

    Raises:
        SampleError: With the reason unreadable, bad_json or bad_caption.
    """
    try:
        if not path.is_file():  # reading from a FIFO would wait for ever
            raise SampleError("bad_caption", f"{path.name} is not a file, or a broken link")
        content = path.read_bytes()
    except OSError as error:
        raise SampleError("unreadable", str(error)) from None
    if path.suffix.lower() == ".json":
        return caption_of(parse_json(content))
    try:
        return caption_of(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SampleError("bad_caption", f"{path.name} is not UTF-8 text: {error}") from None


def recognise_sat_shards(source: Path) -> str:
    """Returns text that names a tar shard of `source` and its .meta.jsonl file; "" if `source` has no such shard."""
    shards = shards_of(source)
    return f"{meta_of(shards[0]).name} belongs to {shards[0].name}" if shards else ""


def shards_of(source: Path) -> list[Path]:
    """Returns the tar files with a .meta.jsonl file next to them: the source itself, or files at any depth in it."""
    tars = [source] if source.is_file() else [source / path for path in files_below(source)]
    return [tar for tar in tars if tar.suffix == ".tar" and meta_of(tar).is_file()]


def meta_of(tar: Path) -> Path:
    """Returns the path of the .meta.jsonl file that belongs to a tar shard, whether or not it exists."""
    return tar.with_name(tar.name.split(".")[0] + META)


def read_sat_shards(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields the clips of SAT's tar shards, which stay in the shards, and rejections of damaged lines and samples.

    Args:
        source: A shard, or a folder with shards.
        choices: Import options; only the caption column is used: the key of the captions in .meta.jsonl.
    """
    columns = [choices.caption_column] if choices.caption_column else ["caption_json", *TEXT_KEYS]
    for tar in shards_of(source):
        entries: dict[str, dict[str, Any]] = {}
        meta = meta_of(tar)
        for number, line in read_lines(meta):
            try:
                item = parse_json(line)
                if not isinstance(item, dict) or not isinstance(item.get("key"), str):
                    raise SampleError("bad_record", "expected an object with a string under 'key'")
                entries[item["key"]] = {**entries.get(item["key"], {}), **item}
            except SampleError as error:
                yield Rejection(f"{meta.name}:{number}", error.reason, error.detail, str(meta), number)
        yield from clips_of_shard(tar, entries, columns, source)


def clips_of_shard(tar: Path, entries: dict[str, dict[str, Any]], columns: list[str], source: Path) -> Iterator[Found]:
    """Yields the clips and rejections of one tar shard.

    Args:
        tar: The shard.
        entries: Entries of the .meta.jsonl file of the shard, by key.
        columns: Keys of the captions in an entry.
        source: The imported folder or file.
    """
    index = index_of(str(tar))
    name = str(tar.relative_to(source)) if tar != source else tar.name
    split = split_of(Path(name))
    for sample in samples_of(index):
        try:
            yield clip_of_sample(sample, tar, f"{name}/{sample.key}", entries, columns, split)
        except SampleError as error:
            yield Rejection(f"{name}/{sample.key}", error.reason, error.detail, str(tar))
    if index.fault is not None:
        offset, why = index.fault
        yield Rejection(f"{name}@{offset}", "damaged_shard", why, str(tar))


def clip_of_sample(
    sample: ShardSample, tar: Path, key: str, entries: dict[str, dict[str, Any]], columns: list[str], split: str
) -> Clip:
    """Returns a sample of a tar shard as a clip.

    Args:
        sample: The sample, with its members in the shard.
        tar: The shard.
        key: Name of the clip.
        entries: Entries of the .meta.jsonl file by key.
        columns: Keys of the captions in an entry.
        split: Split of the clip.

    Raises:
        SampleError: With the reason missing_file, bad_record, bad_caption or bad_json.
    """
    video = sample.video()
    entry = entries.get(sample.key.split(COPY)[0], {}) if "id" in sample.members else {}
    captions = caption_of({name: entry[name] for name in columns if name in entry})
    if len(columns) == 1 and columns[0] in entry:
        captions = caption_of(entry[columns[0]])
    if not captions and "txt" in sample.members:
        captions = caption_of(text_of(sample.members["txt"]))
    return Clip(Path(part_address(str(tar), video.start, video.size)), captions, split, key)
