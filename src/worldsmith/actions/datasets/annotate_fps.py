"""`worldsmith dataset annotate-fps SOURCE --out NEW`: records with the rates of their videos, in a new file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from worldsmith import __version__
from worldsmith.actions.action import Action, Result, share_done
from worldsmith.config.errors import UserError
from worldsmith.data.conversations.annotate import Annotated, annotate
from worldsmith.data.conversations.datasets.chat_file import ChatFile
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.messages import MessagesDataset
from worldsmith.data.report.data_report import EXAMPLES
from worldsmith.files.atomic import write_text

PROVENANCE = ".provenance.json"


class AnnotateFps(Action):
    """Writes a new file of conversations, in which each record with a video has its stream's rate as `video_fps`.

    The source (annotations.json in any of its shapes, or messages.jsonl) is only read, and an existing file is never
    replaced. Rates that are stated already stay; those that are more than 1 % off are listed. Beside the new file,
    NEW.provenance.json says what it was made from.
    """

    places: ClassVar[tuple[str, ...]] = ("source",)

    class Config(Action.Config):
        source: str
        """The file of records, or its folder."""
        out: str
        """The new file; nothing may be there."""
        media_root: str = ""
        """Folder to which media paths are relative; "" = that of the source."""
        replace: bool = False
        """Also give a new rate to records whose rate is more than 1 % off that of the stream."""

    config: Config

    def dataset(self) -> ChatFile:
        """Raises UserError for a source of another kind, DataError for one that cannot be read."""
        config = self.config
        kind = next((kind for kind in (LlavaDataset, MessagesDataset) if kind.is_at(Path(config.source))), None)
        if kind is None:
            names = f"{LlavaDataset.file_name} or {MessagesDataset.file_name}"
            raise UserError(f"{config.source}: expected conversations ({names}), the file or its folder")
        dataset: ChatFile = kind.Config(path=config.source, media_root=config.media_root).build()
        return dataset

    def check_out(self, dataset: ChatFile) -> Path:
        out = Path(self.config.out)
        for path in (out, provenance(out)):
            if os.path.lexists(path):
                raise UserError(f"{path} exists, and is not replaced: give another --out, or remove it")
        if not out.parent.is_dir():
            raise UserError(f"{out}: there is no folder {out.parent}")
        suffix = Path(dataset.file_name).suffix
        if out.suffix != suffix:
            raise UserError(f"{out}: the name of such a file must end in {suffix}")
        return out

    def plan(self) -> Iterator[str]:
        dataset = self.dataset()
        out = self.check_out(dataset)
        videos = sum(entry.shows_video for entry in dataset.entries)
        yield f"{dataset.name}: {dataset.num_records} records, {videos} with a video; would write {out}"

    def run(self) -> Result:
        dataset = self.dataset()
        out = self.check_out(dataset)
        before = dataset.file.read_bytes()
        done = annotate(dataset, replace=self.config.replace, shown=share_done("reading rates"))
        facts = self.facts(dataset, done, before, out)
        write_text(out, done.text)
        write_text(provenance(out), json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        return Result(list(self.lines(dataset, done, out)), facts)

    def facts(self, dataset: ChatFile, done: Annotated, before: bytes, out: Path) -> dict[str, Any]:
        counts = {name: value for name, value in asdict(done).items() if name != "text"}
        return {
            "made_by": f"worldsmith {__version__} dataset annotate-fps",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": {"path": str(dataset.file.absolute()), "sha256": hashlib.sha256(before).hexdigest()},
            "result": {"path": str(out.absolute()), "sha256": hashlib.sha256(done.text.encode()).hexdigest()},
            "media_root": str(dataset.media_root.absolute()),
            "records": dataset.num_records,
            **counts,
        }

    def lines(self, dataset: ChatFile, done: Annotated, out: Path) -> Iterator[str]:
        yield f"{out}: {dataset.num_records} records, video_fps added to {done.added}, replaced in {done.replaced}"
        said = (f"{done.stated} stated one already", f"{done.without_video} have no video")
        yield f"  {', '.join([*said, f'{done.not_records} cannot be used by a run and are copied as they are'])}"
        for name, what in (
            (
                "disagrees",
                "stated rates are more than 1 % off" + ("" if self.config.replace else " and stay; see --replace"),
            ),
            ("unreadable", "got no rate"),
            ("uneven", "have unevenly spaced frames: their average rate makes the times told to a model even"),
        ):
            found = getattr(done, name)
            if found:
                yield f"  {len(found)} {what}"
                yield from (f"    record {one['index']} ({one['key']}): {one['detail']}" for one in found[:EXAMPLES])
        if out.parent.resolve() != dataset.media_root.resolve():
            yield f"  media paths are relative to {dataset.media_root}: the new file needs it as media_root"


def provenance(out: Path) -> Path:
    return out.with_name(out.name + PROVENANCE)
