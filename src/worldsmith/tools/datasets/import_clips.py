"""`worldsmith dataset import SOURCE -o OUT`: converts clips and captions in common layouts to a dataset."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.actions.pool_action import PoolAction
from worldsmith.actions.processes import FailedItem
from worldsmith.config import wrong
from worldsmith.config.declare.configurable import field_names
from worldsmith.config.declare.ranges import Count, PositiveFactor, Range
from worldsmith.data.clips.clip_records import FILE_NAMES
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.files.remote import is_remote
from worldsmith.tools.datasets.imports.caption_layouts import (
    media_files,
    read_caption_folders,
    read_line_lists,
    read_sat_shards,
    read_sidecars,
    read_tables,
    recognise_caption_folders,
    recognise_line_lists,
    recognise_sat_shards,
    recognise_sidecars,
    recognise_tables,
)
from worldsmith.tools.datasets.imports.curator import read_curator, recognise_curator
from worldsmith.tools.datasets.imports.importer import (
    LEFT_OUT,
    NAME,
    THRESHOLD,
    ClipsOfFile,
    Cut,
    Import,
    OpenedFile,
    gather,
    open_file,
    write_import,
)
from worldsmith.tools.datasets.imports.lerobot import read_lerobot, recognise_lerobot
from worldsmith.tools.datasets.imports.source_clips import Choices, Found

logger = logging.getLogger(__name__)

SHOWN = 3
"""Max examples per reason in the report of skipped clips."""


class ImportClips(PoolAction):
    """Turns clips and captions into a dataset that training reads, and leaves the clips where they are.

    Layouts of SOURCE:
      sidecar     videos or images, each with a .txt or .json of the same name
      lines       prompts.txt and videos.txt
      table       metadata.csv or metadata.jsonl, also Hugging Face's videofolder and imagefolder
      captions    captions/NAME/ and videos/NAME.mp4
      sat_shards  tar shards of CogVideo's SAT, with NAME.meta.jsonl
      lerobot     LeRobot v2.0, v2.1, v3.0
      curator     output of cosmos-curate's splitting pipeline: metas_jsonl/v0 or metas/v0, and clips

    Splits: clips in folders `train`, `val` (or `validation`, `valid`, `dev`) and `test` of SOURCE become OUT/train,
    OUT/val and OUT/test; all other clips become OUT/train. To validate on some clips, move them into SOURCE/val.

    Every clip is opened, except one in an object store whose record states its size and length. Skipped clips are
    counted and listed.
    """

    places: ClassVar[tuple[str, ...]] = ("source",)
    aliases = {"-o": "out", "--output": "out"}
    needs_gpu = False

    class Config(PoolAction.Config):
        source: str
        """Folder of the clips, or the .csv or .jsonl file that lists them. A LeRobot dataset may be in an object store,
        such as s3://bucket/pusht."""
        out: str
        """Folder of the dataset."""
        layout: Literal["auto", "sidecar", "lines", "table", "captions", "sat_shards", "lerobot", "curator"] = "auto"
        """Layout of the source; auto: detected and reported."""
        caption: str | None = None
        """Caption of clips that have none; null: such clips are skipped."""
        cut: Literal["none", "scenes"] = "none"
        """scenes: start a new clip window at every cut, found with PySceneDetect."""
        scene_threshold: PositiveFactor = THRESHOLD
        """Threshold of the frame-to-frame change at which a new scene begins."""
        window_frames: Count | None = None
        """Window length in frames; null: the full clip or scene."""
        window_seconds: PositiveFactor | None = None
        """Window length in seconds, at the frame rate of each clip."""
        overlap: Annotated[float, Range(ge=0, lt=1)] = 0.0
        """Fraction by which consecutive windows overlap."""
        min_frames: Count = 1
        """Windows with fewer frames are skipped; training has its own limit."""
        camera: list[str] = field(default_factory=list)
        """Camera (video key) to import from a LeRobot dataset; may be repeated. None: all except depth videos."""
        path_column: str | None = None
        """Table column with the paths; null: file_name, path, video or another common name."""
        caption_column: str | None = None
        """Table column with the captions; null: caption_json, and caption, text or prompt. With the layout curator: key
        of the preferred captions, such as qwen_caption."""
        force: bool = False
        """Replace a dataset that an earlier import created."""
        _alternatives: ClassVar = (("window_frames", "window_seconds"),)

        def check(self) -> None:
            super().check()
            if self.caption is not None and not self.caption.strip():
                raise wrong(self, "caption", why="it is blank", remedy="give a caption, or omit the flag")
            if self.overlap and self.window_frames is None and self.window_seconds is None:
                raise wrong(self, "overlap", why="there are no windows that could overlap", remedy="set window_frames")
            if self.scene_threshold != THRESHOLD and self.cut != "scenes":
                raise wrong(self, "scene_threshold", why="scenes are not detected", remedy="set cut to scenes")

    config: Config

    def plan(self) -> Iterator[str]:
        layout, why, made = self.gather()
        yield from self.describe(layout, why, made)
        yield f"would write {self.config.out}"

    def run(self) -> Result:
        config, out = self.config, Path(self.config.out)
        if (out / "dataset.json").exists() and not config.force:
            raise FileExistsError(
                f"{out} already contains a dataset: choose another folder, or replace it with --force"
            )
        layout, why, made = self.gather()
        unused = ("out", "layout", "force", *field_names(PoolAction.Config))
        settings = {name: value for name, value in asdict(config).items() if name not in unused}
        header = {"dataset": "import", "format_version": 1, "layout": layout, "settings": settings}
        write_import(made, out, header, force=config.force)
        lines = [*self.describe(layout, why, made), *self.next_steps(layout, made)]
        return Result(lines, {"folder": str(out), "layout": layout, "why": why, **made.facts()})

    def gather(self) -> tuple[str, str, Import]:
        """Opens all clips and returns (layout name, reason why the source has this layout, records); writes no files.

        Raises DataError if no clip can be used.
        """
        config = self.config
        folder, out = Path(os.path.realpath(config.source)), Path(os.path.realpath(config.out))
        source: Path | str = config.source if is_remote(config.source) else folder
        if source == folder and not folder.exists():
            raise FileNotFoundError(f"{config.source} does not exist")
        if source == folder and out.is_relative_to(folder):
            raise ValueError(f"{config.out} lies inside the source {config.source}: choose a folder outside it")
        layout, why = find_layout(source, config.layout)
        for name in ("camera", "path_column", "caption_column"):
            if getattr(config, name) and name not in CHOICES.get(layout, ()):
                raise ValueError(f"--{name.replace('_', '-')} has no effect on the layout {layout} ({why})")
        found = LAYOUTS[layout].read(source, Choices(config.camera, config.path_column, config.caption_column))
        lengths = config.window_frames, config.window_seconds, config.overlap, config.min_frames
        cut = Cut(config.cut == "scenes", config.scene_threshold, *lengths)
        folder = folder if folder.is_dir() else folder.parent
        made = gather(folder, found, out, cut, partial(self.open_files, cut), caption=config.caption)
        if not made.records:
            raise DataError("\n".join([f"{config.source}: no clip can be used", *self.left_out(made)]))
        return layout, why, made

    def open_files(self, cut: Cut, files: Sequence[ClipsOfFile]) -> Iterator[OpenedFile | FailedItem]:
        """Yields the opened media files; raises UserError if more than `max_failures` cause an unexpected error."""
        failed, report = 0, make_progress_reporter("import")
        for number, file in enumerate(self.apply(partial(make_opener, cut), files), start=1):
            if isinstance(file, FailedItem):
                failed += 1
                logger.warning("%s: %s", file.item[0], file.reason)
                self.require_few_failures(failed, "imported", what="file", continues=False)
            report(number, len(files))
            yield file

    def describe(self, layout: str, why: str, made: Import) -> Iterator[str]:
        """Yields output lines for the user that describe the records to write.

        Args:
            layout: Name of the layout.
            why: Text that states why the source has this layout.
            made: The records to write, and the skipped clips.
        """
        yield f"layout: {layout} ({why})"
        yield from made.remarks
        for split, records in made.records.items():
            windows = sum(len(record["t2w_windows"]) for record in records)
            what = f"{counted(len(records), 'clip')}, {counted(windows, 'window')}"
            yield f"{split}: {what} in {Path(self.config.out, split, NAME)}"
        lengths = made.lengths
        yield f"windows have {lengths[0]} to {lengths[-1]} frames, median {lengths[len(lengths) // 2]}"
        yield "frame rates (fps): " + ", ".join(
            f"{rate} ({counted(count, 'file')})" for rate, count in made.rates.items()
        )
        if made.constant_captions:
            yield f"caption from --caption for clips without one: {counted(made.constant_captions, 'clip')}"
        yield from self.left_out(made)

    def left_out(self, made: Import) -> Iterator[str]:
        """Yields output lines for the user with the number of skipped clips by reason, and examples of them."""
        yield "skipped: " + (", ".join(f"{reason} {count}" for reason, count in made.reasons.items()) or "nothing")
        for reason in made.reasons:
            for rejection in [r for r in made.left_out if r.reason == reason][:SHOWN]:
                yield f"  {rejection.key}: {reason}: {rejection.detail}"

    def next_steps(self, layout: str, made: Import) -> Iterator[str]:
        """Yields output lines for the user with the commands and settings that train on the imported dataset."""
        limits = VideoDataset.Config()
        if made.longest > limits.max_duration:
            yield (
                f"the longest file has a duration of {made.longest:.1f} s; training skips files over "
                f"{limits.max_duration:g} s unless you add -- "
                f"dataloader_train.dataset.max_duration={made.longest + 1:.0f}"
            )
        if made.left_out:
            yield f"skipped clips are listed in {Path(self.config.out, LEFT_OUT)}"
        if "train" in made.records:
            yield f"validate the clips before training: worldsmith check {self.config.out}"
            yield f"to train: export DATASET_PATH={self.config.out}"
        if "val" in made.records:
            val = Path(self.config.out, "val")
            yield f"check the validation clips: worldsmith check {val}"
            yield f"to validate: export VAL_DATASET_PATH={val}"
            yield "  and append to the training command: -- trainer.run_validation=true"
        elif layout not in ("lerobot", "sat_shards", "curator"):
            yield "no validation data: move some clips into a folder `val` of the source and import again with --force"


def make_opener(cut: Cut, number: int) -> Callable[[ClipsOfFile], OpenedFile]:
    """Returns the function that opens a file in process `number`."""
    return partial(open_file, cut)


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


@dataclass(frozen=True, slots=True)
class ImportLayout:
    """Layout of files that can be imported: how to recognize it and how to read its clips."""

    description: str
    recognise: Callable[[Path], str]
    """Function that recognizes the layout in a source: returns text that states why it fits; "" if it does not fit."""
    read: Callable[[Any, Choices], Iterator[Found]]
    """Function that yields the clips of a source. It raises ValueError if the source is incomplete, UserError if a
    library is missing."""


LAYOUTS = {
    "sidecar": ImportLayout(
        "A folder of videos or images, each with a .txt or .json file of the same name.",
        recognise_sidecars,
        read_sidecars,
    ),
    "lines": ImportLayout(
        (
            "`prompts.txt` and `videos.txt`: line n of `prompts.txt` is the caption of the path in line n of "
            "`videos.txt`."
        ),
        recognise_line_lists,
        read_line_lists,
    ),
    "table": ImportLayout(
        "`metadata.csv` or `metadata.jsonl` with one row per clip, as in Hugging Face's videofolder.",
        recognise_tables,
        read_tables,
    ),
    "captions": ImportLayout(
        "Captions in a folder next to `videos/NAME.mp4`: `captions/NAME/caption.json` and `caption.txt`, or "
        "`labels/NAME.txt`.",
        recognise_caption_folders,
        read_caption_folders,
    ),
    "sat_shards": ImportLayout(
        "Shards of CogVideo's SAT: `NAME.tar` with `KEY.id` and `KEY.mp4`, and `NAME.meta.jsonl` with the captions.",
        recognise_sat_shards,
        read_sat_shards,
    ),
    "lerobot": ImportLayout(
        (
            "A LeRobot dataset (v2.0, v2.1 or v3.0): each episode of each camera becomes a clip, captioned with its "
            "task."
        ),
        recognise_lerobot,
        read_lerobot,
    ),
    "curator": ImportLayout(
        "Output of cosmos-curate's splitting pipeline: `metas_jsonl/v0/*.jsonl` or `metas/v0/*.json`, and `clips/`.",
        recognise_curator,
        read_curator,
    ),
}
CHOICES = {
    "table": ("path_column", "caption_column"),
    "lerobot": ("camera",),
    "sat_shards": ("caption_column",),
    "curator": ("caption_column",),
}
"""Import options (fields of `Choices`) that have an effect, by name of the layout."""


def find_layout(source: Path | str, wanted: str) -> tuple[str, str]:
    """Returns (name of the layout of a source, text with the reason why the source has this layout).

    Args:
        source: A folder or a file; as text, the address of a folder in an object store.
        wanted: Name of a layout, or "auto" to detect it.

    Raises:
        ValueError: If the source does not have the wanted layout, or "auto" matches no layout or several.
    """
    if isinstance(source, str):
        if wanted in ("auto", "lerobot") and (why := recognise_lerobot(source)):
            return "lerobot", why
        raise ValueError(f"{source} is not a LeRobot dataset: sources with other layouts must be on this machine")
    found = {name: why for name, layout in LAYOUTS.items() if (why := layout.recognise(source))}
    ours = [name for name in FILE_NAMES if (source / name).is_file()]
    if wanted == "auto" and not found and ours:
        raise ValueError(f"{source} already has {ours[0]}, which training reads directly; no import is needed")
    if (wanted == "sidecar" or (wanted == "auto" and not found)) and media_files(source):
        found.setdefault("sidecar", "there are videos or images, but no captions")
    if wanted in found:
        return wanted, found[wanted]
    if wanted != "auto":
        raise ValueError(f"{source} does not have the layout {described(wanted)}")
    if len(found) > 1:
        candidates = "; ".join(f"{name}: {why}" for name, why in found.items())
        raise ValueError(f"{source} matches several layouts: {candidates}. Select one with --layout")
    if found:
        return next(iter(found.items()))
    raise ValueError("\n  ".join([f"{source} matches none of the supported layouts:", *map(described, LAYOUTS)]))


def described(layout: str) -> str:
    return f"{layout}: {LAYOUTS[layout].description}"
