"""`worldsmith dataset videophy2 OUT_ROOT`: downloads VideoPhy-2 into the layout that `ManifestDataset` reads."""

from __future__ import annotations

import csv
import hashlib
import http.client
import io
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from worldsmith.actions.action import Action, Result, make_progress_reporter
from worldsmith.config.declare.ranges import Count, NotNegative
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files.atomic import replacing, write_text
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object

TABLES = {"train": "videophy2_training.csv", "test": "videophy2_test.csv"}
FOLDERS = {"train": "videophy2_train", "test": "videophy2_val"}
SETTINGS, TABLE, FAILED = "settings.json", "table.csv", "failed.jsonl"
JUDGE = "You watch videos closely and judge them fairly. "
SCALE = """Give a whole number:
1 = {none}
2 = {little}
3 = {partly}
4 = {mostly}
5 = {fully}

Answer with [one number from 1 to 5] and nothing else. An answer looks like this:
2"""
PHYSICS = (
    JUDGE
    + """Decide how well this video keeps to physical common sense.

Look at:
- **Objects**: solid things keep their shape and size; liquids flow, spread and settle.
- **Motion and forces**: what is not held falls, what moves keeps moving until something slows it, weight shows.
- **Contacts**: things do not pass through each other; a hit has an effect that fits its force.
- **Lasting**: nothing appears, vanishes or turns into something else without a cause.

"""
    + SCALE.format(
        none="physical sense is broken nearly everywhere",
        little="much of it is broken, little holds",
        partly="some of it holds, with clear mistakes",
        mostly="it holds, with slight mistakes",
        fully="it holds throughout",
    )
)
MEANING = (
    JUDGE
    + "Decide how well this video shows what its caption says: the things, what they do, and in which order.\n\n"
    + SCALE.format(
        none="it shows something else",
        little="little of the caption is seen",
        partly="some of it is seen, important parts are not",
        mostly="nearly all of it is seen",
        fully="all of it is seen",
    )
)
BOTH = (
    JUDGE
    + "Does this video show what its caption says, and does it keep to physical common sense in doing so? Answer yes "
    "if it does both, otherwise no. Write the one word and nothing else."
)
PROMPTS = {"pc": PHYSICS, "sa": MEANING, "joint": BOTH}
"""Prompts by score column: physical common sense, semantic adherence, both."""
JOINT = {"1": "yes", "0": "no", "1.0": "yes", "0.0": "no", "true": "yes", "false": "no", "yes": "yes", "no": "no"}
PASSING = (429, 500, 502, 503, 504)
"""HTTP status codes of a busy server, after which a download is retried."""


class PrepareVideoPhy2(Action):
    """Downloads VideoPhy-2 and writes its clips, questions and scores to folders videophy2_train and videophy2_val.

    The released test split becomes videophy2_val. Run the command again to continue after a stop: existing clips are
    not downloaded again. Rows without a usable clip or score are skipped and listed in failed.jsonl. The questions have
    our own wording, so scores are not comparable with those of other prompts.
    """

    places: ClassVar[tuple[str, ...]] = ("out_root",)

    class Config(Action.Config):
        out_root: str
        """Folder for both splits."""
        split: Literal["train", "test", "both"] = "both"
        """Splits to import; test becomes videophy2_val."""
        score_field: Literal["pc", "sa", "joint"] = "pc"
        """The score: physical common sense (pc), semantic adherence (sa), each 1 to 5, or both as yes or no (joint)."""
        include_caption: bool = False
        """End the question with the clip's caption; required for sa and joint."""
        caption_field: str = "upsampled_caption"
        """Column of the caption; rows with an empty cell use column `caption`."""
        limit: NotNegative = 0
        """Import only the first N rows; 0 = all."""
        hf_train_repo: str = "videophysics/videophy2_train"
        """Hub repository of the training table."""
        hf_test_repo: str = "videophysics/videophy2_test"
        """Hub repository of the test table."""
        media_field_name: str = "video_0"
        """Name of the video field in a conversation."""
        workers: Count = 16
        """Number of parallel downloads."""

        def check(self) -> None:
            for split in self.splits():
                self.wanted(split).check()

        def splits(self) -> list[Literal["train", "test"]]:
            return ["train", "test"] if self.split == "both" else [self.split]

        def wanted(self, split: Literal["train", "test"]) -> ConversationSettings:
            repo = self.hf_train_repo if split == "train" else self.hf_test_repo
            caption = self.caption_field if self.include_caption else ""
            return ConversationSettings(repo, self.score_field, caption, self.media_field_name)

    config: Config

    def plan(self) -> Iterator[str]:
        rows = f"the first {self.config.limit} rows" if self.config.limit else "all rows"
        for split in self.config.splits():
            folder = Path(self.config.out_root, FOLDERS[split])
            yield f"videophy2: {rows} of {self.config.wanted(split).repo} with their clips, in {folder}"

    def run(self) -> Result:
        config, lines = self.config, []
        facts: dict[str, dict[str, Any]] = {}
        for split in config.splits():
            made = prepare(
                Path(config.out_root),
                split,
                config.wanted(split),
                endpoint=os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
                limit=config.limit,
                workers=config.workers,
                progress=make_progress_reporter(f"videophy2 {split}"),
            )
            left_out = f"; {len(made.failed)} rows skipped, see {made.folder / 'failed.jsonl'}" if made.failed else ""
            lines.append(f"videophy2: {made.records} records, {made.downloaded} new clips, in {made.folder}{left_out}")
            facts[split] = {**asdict(made), "folder": str(made.folder)}
        return Result(lines, facts, code=0 if all(fact["records"] for fact in facts.values()) else 1)


def prepare(
    out_root: Path,
    split: Literal["train", "test"],
    wanted: ConversationSettings,
    *,
    endpoint: str,
    limit: int = 0,
    workers: int = 16,
    progress: Callable[[int, int], None] | None = None,
    pause: float = 1.0,
) -> PreparedSplit:
    """Downloads the missing clips of a split, and writes its conversations and manifest; a repeated call resumes.

    Rows without an available clip or score are skipped and listed in `failed.jsonl`.

    Args:
        out_root: Folder that contains the folders of both splits.
        split: The official split; "test" is written as videophy2_val.
        wanted: Settings of the conversations.
        endpoint: URL of the hub.
        limit: Maximum number of rows; 0 = all.
        workers: Number of parallel downloads.
        progress: Called with (done, total) after each row.
        pause: Seconds before the first retry of a download.

    Raises:
        DataError: If the folder of the split was written with other settings than `wanted`.
        UserError: If the table of the split cannot be downloaded.
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
            write_text(folder / "text" / f"{record_id(number)}.json", text)
        except (SampleError, UserError) as error:
            return {"id": record_id(number), "url": row["video_url"], "error": str(error)}
        return None

    (folder / "text").mkdir(parents=True, exist_ok=True)
    failed: list[dict[str, str]] = []
    with ThreadPoolExecutor(workers) as pool:
        for done, failure in enumerate(pool.map(make, rows), start=1):
            failed += [failure] if failure else []
            if progress:
                progress(done, len(rows))
    bad = {failure["id"] for failure in failed}
    records = [manifest_record(number) for number, _ in rows if record_id(number) not in bad]
    write_text(folder / FAILED, "".join(json.dumps(failure) + "\n" for failure in failed))
    write_text(folder / "meta.json", json.dumps(records, indent=1))
    downloaded = sum(record_id(number) not in bad and number not in before for number, _ in rows)
    return PreparedSplit(folder, len(records), downloaded, failed)


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """Settings that determine question and answer of each clip; equal for all conversations in a folder."""

    repo: str
    score_field: Literal["pc", "sa", "joint"]
    caption_field: str
    """Column with the caption that is appended to the question; "" = no caption."""
    media_name: str

    def check(self) -> None:
        """Raises ValueError if the question lacks the caption, which the scores "sa" and "joint" rate."""
        if self.score_field != "pc" and not self.caption_field:
            raise ValueError(
                f"score_field '{self.score_field}' rates the caption, but the question does not contain it; "
                "set include_caption"
            )


@dataclass(frozen=True, slots=True)
class PreparedSplit:
    """Result of `prepare`: the folder of a split, its numbers of records and new clips, and the failed rows."""

    folder: Path
    records: int
    downloaded: int
    failed: list[dict[str, str]]


def record_settings(folder: Path, wanted: ConversationSettings) -> None:
    """Writes the settings `wanted` to settings.json in `folder`, which is created.

    An existing file is kept. Raises DataError if it contains different settings.
    """
    digest = hashlib.sha256(PROMPTS[wanted.score_field].encode()).hexdigest()[:16]
    settings = {**asdict(wanted), "prompt": digest}
    if (folder / SETTINGS).exists():
        before = read_json_object(folder / SETTINGS)
        changed = [
            f"{key} {before.get(key)!r} -> {settings[key]!r}" for key in settings if before.get(key) != settings[key]
        ]
        if changed:
            raise DataError(
                f"{folder} was created with other settings ({', '.join(changed)}): choose another --out_root"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / SETTINGS, json.dumps(settings, indent=1))


def read_table(table: Path, wanted: ConversationSettings) -> Iterator[dict[str, str]]:
    """Yields the rows of a CSV table by column name; invalid UTF-8 is replaced.

    Raises DataError if the table lacks a column that the settings `wanted` require.
    """
    reader = csv.DictReader(io.StringIO(table.read_bytes().decode("utf-8", "replace"), newline=""))
    needed = ["video_url", wanted.score_field, *([wanted.caption_field] if wanted.caption_field else [])]
    missing = [column for column in needed if column not in (reader.fieldnames or [])]
    if missing:
        raise DataError(
            f"{table} lacks the column {', '.join(missing)}; its columns: {', '.join(reader.fieldnames or [])}"
        )
    for row in reader:
        yield {key: value or "" for key, value in row.items() if isinstance(key, str)}


def conversation(row: dict[str, str], wanted: ConversationSettings) -> dict[str, object]:
    """Returns {"conversations": [question with video, answer]} for a table row, the JSON format of ManifestDataset.

    `row` has the cells by column name. Raises SampleError if the caption is missing, or the score is not valid.
    """
    caption = ""
    if wanted.caption_field:
        caption = row[wanted.caption_field].strip() or row.get("caption", "").strip()
        if not caption:
            raise SampleError("no_caption", f"column {wanted.caption_field} is empty")
    question = [
        {"type": "video", "video": wanted.media_name},
        {"type": "text", "text": prompt_text(wanted.score_field, caption)},
    ]
    answer = [{"type": "text", "text": answer_text(wanted.score_field, row[wanted.score_field])}]
    return {"conversations": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def prompt_text(score_field: str, caption: str) -> str:
    """Returns the question for a score, followed by the caption unless `caption` is "".

    `score_field` is "pc" (physical common sense), "sa" (semantic adherence) or "joint" (both).
    """
    return PROMPTS[score_field] + (f"\n\nCaption: {caption}" if caption else "")


def answer_text(score_field: str, value: str) -> str:
    """Returns the answer for the value of a score column: a digit from 1 to 5, or for "joint" yes or no.

    Raises SampleError for a value that is not a valid score.
    """
    value = value.strip().lower()
    if score_field == "joint":
        found = JOINT.get(value)
    else:
        found = next((digit for digit in "12345" if value in (digit, f"{digit}.0")), None)
    if found is None:
        raise SampleError("bad_score", f"column {score_field} holds {value!r:.40}")
    return found


def record_id(number: int) -> str:
    return f"conversation_{number:04d}"


def media_file(folder: Path, number: int) -> Path:
    return folder / "media" / f"video_{number:04d}.mp4"


def manifest_record(number: int) -> dict[str, str]:
    """Returns the meta.json entry of table row `number` (from 1): `id`, relative paths `media` and `conversation`."""
    media = f"media/{media_file(Path(), number).name}"
    return {"id": record_id(number), "media": media, "conversation": f"text/{record_id(number)}.json"}


def download(url: str, target: Path, *, attempts: int = 5, timeout: float = 60.0, pause: float = 1.0) -> None:
    """Downloads an http(s) URL to `target`, which appears only when it is complete.

    Args:
        url: The address.
        target: Path of the file.
        attempts: Maximum number of attempts, if the server is busy or the connection breaks.
        timeout: Timeout of a connection in seconds.
        pause: Seconds before the second attempt; each further pause is twice as long.

    Raises:
        UserError: If the file cannot be downloaded, or has 0 bytes.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"'{url[:200]}' is not an http or https address")
    for attempt in range(1, attempts + 1):
        try:
            fetch(url, target, timeout)
            return
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError) as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code not in PASSING
            if final or isinstance(error, ValueError) or attempt == attempts:
                times = "" if attempt == 1 else f" after {attempt} attempts"
                raise UserError(f"{url} cannot be downloaded{times}: {error}") from error
        time.sleep(pause * 2 ** (attempt - 1))


def fetch(url: str, target: Path, timeout: float) -> None:
    """Downloads a URL to `target` without retries; `timeout` of the connection is in seconds.

    Raises:
        ConnectionError: If the download is shorter than announced.
        ValueError: If the file has 0 bytes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=timeout) as response, replacing(target) as aside:
        with open(aside, "wb") as out:
            shutil.copyfileobj(response, out)
        size, announced = aside.stat().st_size, response.headers.get("Content-Length")
        if announced is not None and size != int(announced):
            raise ConnectionError(f"received {size} of {announced} bytes")
        if size == 0:
            raise ValueError("it has 0 bytes")
