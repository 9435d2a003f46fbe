"""VideoPhy-2 from its tables and clips on the web: the layout that `ManifestDataset` reads."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from worldsmith.data.conversations.videophy2_prompt import PROMPTS, answer, ask
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files.atomic import write_text
from worldsmith.files.download import download
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object

TABLES = {"train": "videophy2_training.csv", "test": "videophy2_test.csv"}
FOLDERS = {"train": "videophy2_train", "test": "videophy2_val"}
SETTINGS, TABLE, FAILED = "settings.json", "table.csv", "failed.jsonl"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the conversations of a split are made from; a folder holds those of one such choice."""

    repo: str
    score_field: Literal["pc", "sa", "joint"]
    caption_field: str
    """Column of the caption that the question ends with; "" = without."""
    media_name: str

    def check(self) -> None:
        """Raises ValueError for a question that lacks what it asks about."""
        if self.score_field != "pc" and not self.caption_field:
            raise ValueError(
                f"score_field '{self.score_field}' is about the caption, which the question lacks; set include_caption"
            )


@dataclass(frozen=True, slots=True)
class Made:
    """A prepared split."""

    folder: Path
    records: int
    downloaded: int
    failed: list[dict[str, str]]


def prepare(
    out_root: Path,
    split: Literal["train", "test"],
    wanted: Wanted,
    *,
    endpoint: str,
    limit: int = 0,
    workers: int = 16,
    progress: Callable[[int, int], None] | None = None,
    pause: float = 1.0,
) -> Made:
    """Downloads the clips that are not there yet, and writes conversations and the manifest. Can be run again.

    Rows whose clip or score cannot be had are left out and listed in `failed.jsonl`. Raises DataError for a folder that
    was made with other settings, UserError when the table cannot be downloaded.
    """
    wanted.check()
    folder = out_root / FOLDERS[split]
    record_settings(folder, wanted)
    table = folder / TABLE
    if not table.exists():
        download(f"{endpoint}/datasets/{wanted.repo}/resolve/main/{TABLES[split]}", table, pause=pause)
    rows = list(enumerate(read_table(table, wanted), start=1))[: limit or None]
    before = {number for number, _ in rows if media_file(folder, number).exists()}

    def make(numbered: tuple[int, dict[str, str]]) -> dict[str, str] | None:
        number, row = numbered
        try:
            text = json.dumps(conversation(row, wanted), ensure_ascii=False, indent=1)
            if number not in before:
                download(row["video_url"].strip(), media_file(folder, number), pause=pause)
            write_text(folder / "text" / f"{name(number)}.json", text)
        except (SampleError, UserError) as error:
            return {"id": name(number), "url": row["video_url"], "error": str(error)}
        return None

    (folder / "text").mkdir(parents=True, exist_ok=True)
    failed: list[dict[str, str]] = []
    with ThreadPoolExecutor(workers) as pool:
        for done, failure in enumerate(pool.map(make, rows), start=1):
            failed += [failure] if failure else []
            if progress:
                progress(done, len(rows))
    bad = {failure["id"] for failure in failed}
    records = [record(number) for number, _ in rows if name(number) not in bad]
    write_text(folder / FAILED, "".join(json.dumps(failure) + "\n" for failure in failed))
    write_text(folder / "meta.json", json.dumps(records, indent=1))
    downloaded = sum(name(number) not in bad and number not in before for number, _ in rows)
    return Made(folder, len(records), downloaded, failed)


def record_settings(folder: Path, wanted: Wanted) -> None:
    """Writes down what the folder is made from. Raises DataError when that was something else."""
    digest = hashlib.sha256(PROMPTS[wanted.score_field].encode()).hexdigest()[:16]
    settings = {**asdict(wanted), "prompt": digest}
    if (folder / SETTINGS).exists():
        before = read_json_object(folder / SETTINGS)
        changed = [
            f"{key} {before.get(key)!r} -> {settings[key]!r}" for key in settings if before.get(key) != settings[key]
        ]
        if changed:
            raise DataError(f"{folder} was made with other settings ({', '.join(changed)}); give another --out_root")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / SETTINGS, json.dumps(settings, indent=1))


def read_table(table: Path, wanted: Wanted) -> Iterator[dict[str, str]]:
    """The rows. The published tables have bytes that are no UTF-8. Raises DataError for a table without the columns."""
    reader = csv.DictReader(io.StringIO(table.read_bytes().decode("utf-8", "replace"), newline=""))
    needed = ["video_url", wanted.score_field, *([wanted.caption_field] if wanted.caption_field else [])]
    missing = [column for column in needed if column not in (reader.fieldnames or [])]
    if missing:
        raise DataError(f"{table} lacks the column {', '.join(missing)}; it has {', '.join(reader.fieldnames or [])}")
    for row in reader:
        yield {key: value or "" for key, value in row.items() if isinstance(key, str)}


def conversation(row: dict[str, str], wanted: Wanted) -> dict[str, object]:
    """Question and answer of a row. Raises SampleError for a score or a caption that is not there."""
    caption = ""
    if wanted.caption_field:
        caption = row[wanted.caption_field].strip() or row.get("caption", "").strip()
        if not caption:
            raise SampleError("no_caption", f"column {wanted.caption_field} is empty")
    question = [
        {"type": "video", "video": wanted.media_name},
        {"type": "text", "text": ask(wanted.score_field, caption)},
    ]
    said = [{"type": "text", "text": answer(wanted.score_field, row[wanted.score_field])}]
    return {"conversations": [{"role": "user", "content": question}, {"role": "assistant", "content": said}]}


def name(number: int) -> str:
    return f"conversation_{number:04d}"


def media_file(folder: Path, number: int) -> Path:
    return folder / "media" / f"video_{number:04d}.mp4"


def record(number: int) -> dict[str, str]:
    media = f"media/{media_file(Path(), number).name}"
    return {"id": name(number), "media": media, "conversation": f"text/{name(number)}.json"}
