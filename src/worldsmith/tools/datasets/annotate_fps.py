"""`worldsmith dataset annotate-fps SOURCE --out NEW`: copies records and adds the frame rate of each video stream."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from worldsmith import __version__
from worldsmith.actions.action import Action, Result, make_progress_reporter
from worldsmith.config.errors import UserError
from worldsmith.data.conversations.datasets.chat_file import ChatFile, Entry
from worldsmith.data.conversations.datasets.llava import TURNS, WRAPPERS, LlavaDataset
from worldsmith.data.conversations.datasets.messages import MessagesDataset
from worldsmith.data.conversations.media.frames_and_sizes import rates_differ
from worldsmith.data.data_report import EXAMPLES
from worldsmith.data.json_records import read_lines, records_in
from worldsmith.data.shards.addresses import absolute_path
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.video_decoder import VideoInfo, examine
from worldsmith.files.atomic import write_text
from worldsmith.files.lines import read_bytes

PROVENANCE = ".provenance.json"
FPS, ORIGIN = "video_fps", "video_fps_from"
STREAM = "stream"
"""Value of `video_fps_from` in records whose frame rate was read from the video stream."""
READERS = 8


class AnnotateFps(Action):
    """Writes a copy of a conversations file that states the frame rate of each video, as `video_fps`.

    The source (annotations.json in any of its layouts, or messages.jsonl) is only read, and an existing file is never
    replaced. Frame rates that are already stated are kept; those that are more than 1 % off are listed. Next to the
    new file, NEW.provenance.json records its inputs.
    """

    places: ClassVar[tuple[str, ...]] = ("source",)

    class Config(Action.Config):
        source: str
        """Source file of conversations (annotations.json or messages.jsonl), or its folder."""
        out: str
        """Path of the new file, which must not exist."""
        media_root: str = ""
        """Folder that media paths are relative to; "": the folder of the source."""
        replace: bool = False
        """Also replace stated frame rates that differ from the stream's by more than 1 %."""

    config: Config

    def dataset(self) -> ChatFile:
        """Returns the dataset to annotate, which the setting `source` names.

        Raises UserError if `source` is neither annotations.json nor messages.jsonl, DataError if it cannot be read.
        """
        config = self.config
        kind = next((kind for kind in (LlavaDataset, MessagesDataset) if kind.is_at(config.source)), None)
        if kind is None:
            names = f"{LlavaDataset.file_name} or {MessagesDataset.file_name}"
            raise UserError(f"{config.source}: expected conversations ({names}), either the file or its folder")
        return kind.Config(path=config.source, media_root=config.media_root).build()

    def check_out(self, dataset: ChatFile) -> Path:
        """Returns the path of the annotated file to write (`--out`).

        Raises UserError if the file or its provenance file exists, if its folder does not exist, or if its suffix is
        not that of the file of `dataset`.
        """
        out = Path(self.config.out)
        for path in (out, provenance_file(out)):
            if os.path.lexists(path):
                raise UserError(f"{path} already exists and is not replaced: choose another --out, or remove it")
        if not out.parent.is_dir():
            raise UserError(f"{out}: the folder {out.parent} does not exist")
        suffix = Path(dataset.file_name).suffix
        if out.suffix != suffix:
            raise UserError(f"{out}: expected a file name that ends in {suffix}, like the source file")
        return out

    def plan(self) -> Iterator[str]:
        dataset = self.dataset()
        out = self.check_out(dataset)
        videos = sum(entry.shows_video for entry in dataset.entries)
        yield f"{dataset.name}: {dataset.num_records} records, {videos} with a video; would write {out}"

    def run(self) -> Result:
        dataset = self.dataset()
        out = self.check_out(dataset)
        before = read_bytes(dataset.file)
        done = annotate(dataset, replace=self.config.replace, progress=make_progress_reporter("reading rates"))
        facts = self.facts(dataset, done, before, out)
        write_text(out, done.text)
        write_text(provenance_file(out), json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        return Result(list(self.lines(dataset, done, out)), facts)

    def facts(self, dataset: ChatFile, done: Annotated, before: bytes, out: Path) -> dict[str, Any]:
        """Returns the content of the provenance file: both paths and checksums, media folder, record counts.

        Args:
            dataset: The dataset that was annotated.
            done: The annotated copy of it.
            before: Bytes of the dataset's file.
            out: Path of the annotated file.
        """
        counts = {name: value for name, value in asdict(done).items() if name != "text"}
        return {
            "made_by": f"worldsmith {__version__} dataset annotate-fps",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": {"path": absolute_path(dataset.file), "sha256": hashlib.sha256(before).hexdigest()},
            "result": {"path": str(out.absolute()), "sha256": hashlib.sha256(done.text.encode()).hexdigest()},
            "media_root": absolute_path(dataset.media_root),
            "records": dataset.num_records,
            **counts,
        }

    def lines(self, dataset: ChatFile, done: Annotated, out: Path) -> Iterator[str]:
        """Yields output lines for the user: record counts of the annotated copy `done`, and examples of problems."""
        yield f"{out}: {dataset.num_records} records, video_fps added to {done.added}, replaced in {done.replaced}"
        known_counts = (f"{done.stated} already had one", f"{done.without_video} have no video")
        yield f"  {', '.join([*known_counts, f'{done.not_records} cannot be used by a run and are copied unchanged'])}"
        kept = "" if self.config.replace else " and are kept; see --replace"
        notes = {
            "disagrees": f"stated frame rates differ by more than 1 %{kept}",
            "unreadable": "are not annotated",
            "uneven": "have unevenly spaced frames; with their average frame rate the model sees evenly spaced "
            "timestamps",
        }
        for name, what in notes.items():
            if found := getattr(done, name):
                yield f"  {len(found)} {what}"
                yield from (f"    record {one['index']} ({one['key']}): {one['detail']}" for one in found[:EXAMPLES])
        if absolute_path(str(out.parent)) != absolute_path(dataset.media_root):
            yield f"  media paths are relative to {dataset.media_root}: use the new file with this media_root"


def provenance_file(out: Path) -> Path:
    return out.with_name(out.name + PROVENANCE)


@dataclass(slots=True)
class Annotated:
    """Text of an annotated dataset file, with numbers of its records by outcome, and lists of records with problems.

    Each item of a list is a dict with `index` (record number, from 0), `key` (record id) and `detail` (message).
    """

    text: str = ""
    added: int = 0
    stated: int = 0
    """Number of records that already stated a frame rate, which was kept."""
    replaced: int = 0
    without_video: int = 0
    not_records: int = 0
    """Number of records that training cannot use; they are copied unchanged."""
    disagrees: list[dict[str, Any]] = field(default_factory=list)
    """Records whose stated frame rate differs from that of the stream."""
    unreadable: list[dict[str, Any]] = field(default_factory=list)
    """Records with unreadable videos, or with videos of different frame rates; they are not annotated."""
    uneven: list[dict[str, Any]] = field(default_factory=list)
    """Records with unevenly spaced frames; the average frame rate was added, so a model sees evenly spaced
    timestamps."""


def annotate(dataset: ChatFile, *, replace: bool, progress: Callable[[int, int], None] | None = None) -> Annotated:
    """Returns the text of a dataset's file with the frame rate of each record with videos added, and record counts.

    A new or replaced rate is written as `video_fps`, together with `video_fps_from` = "stream".

    Args:
        dataset: Dataset to annotate; its files are only read.
        replace: Replace stated rates that differ from the stream by more than 1 %.
        progress: Called after each record with the number of processed records and the number of all records.
    """
    dataset.open_media()
    done = Annotated(not_records=dataset.num_records - len(dataset.entries))
    changed: dict[int, dict[str, Any]] = {}
    with ThreadPoolExecutor(READERS) as pool:
        headers = pool.map(lambda entry: read_rates(dataset, entry), dataset.entries)
        for number, (entry, found) in enumerate(zip(dataset.entries, headers), start=1):
            record = entry.record if isinstance(entry.record, dict) else {"messages": entry.record}
            rate = choose_rate(done, entry, record, found, replace=replace)
            if rate is not None:
                changed[entry.number] = {**record, FPS: rate, ORIGIN: STREAM}
            if progress is not None:
                progress(number, len(dataset.entries))
    done.text = replace_records(dataset, changed)
    return done


def read_rates(dataset: ChatFile, entry: Entry) -> list[VideoInfo] | str:
    """Returns the header data (such as fps) of each video of a record, in order; an error message if unreadable."""
    sources = [part.source for turn in dataset.parse(entry.record) for part in turn.parts if part.kind == "video"]
    try:
        return [examine(str(source))[1] for source in sources]
    except SampleError as error:
        return str(error)


def choose_rate(
    done: Annotated, entry: Entry, record: dict[str, Any], found: Sequence[VideoInfo] | str, *, replace: bool
) -> float | None:
    """Returns the frame rate (fps) to write into a record, or None if the record stays unchanged.

    Args:
        done: Result of the annotation, modified in place: the record is counted, and listed if it has a problem.
        entry: Entry of the record in the dataset, with its number and key.
        record: Content of the record.
        found: Headers of the record's videos, or an error message (str) if a video cannot be read.
        replace: Replace a stated rate that differs from the stream by more than 1 %.
    """
    known: dict[str, Any] = {"index": entry.number, "key": entry.key}
    stated = record.get(FPS)
    if not entry.shows_video:
        done.without_video += 1
        return None
    rates = [info.fps for info in found if isinstance(info, VideoInfo)]
    if isinstance(found, str) or rates_differ(min(rates), max(rates)):
        different = f"its videos have different frame rates: {', '.join(map(str, rates))}"
        done.unreadable.append({**known, "detail": found if isinstance(found, str) else different})
        done.stated += stated is not None
        return None
    if stated is not None:
        other = rates_differ(stated, rates[0])
        if other:
            done.disagrees.append({**known, "detail": f"stated: {stated:g} fps, stream: {rates[0]:g} fps"})
        done.stated += not (other and replace)
        done.replaced += other and replace
        if not (other and replace):
            return None
    else:
        done.added += 1
    if any(info.variable_rate for info in found if isinstance(info, VideoInfo)):
        done.uneven.append({**known, "detail": f"its frames are unevenly spaced, {rates[0]:g} fps on average"})
    return rates[0]


def replace_records(dataset: ChatFile, changed: dict[int, dict[str, Any]]) -> str:
    """Returns the text of the file of `dataset`, with the records in `changed` (by record number from 0) replaced."""
    if not isinstance(dataset, LlavaDataset):
        lines = [line.decode(errors="surrogateescape").rstrip("\r\n") for _, line in read_lines(dataset.file)]
        return "".join((to_json(changed[n]) if n in changed else line) + "\n" for n, line in enumerate(lines))
    container = json.loads(read_bytes(dataset.file))
    records = records_in(container, WRAPPERS, TURNS)
    for number, record in changed.items():
        records[number] = record
    return to_json(records[0] if isinstance(container, dict) and TURNS in container else container, indent=1) + "\n"


def to_json(value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON text; non-ASCII characters are escaped only if the text has an unpaired surrogate."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, indent=indent)
    return text
