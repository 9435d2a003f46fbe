"""A dataset of captioned windows of clips, read from a file with one JSON object per clip, or from shards."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import cached_property, partial
from itertools import chain, groupby, islice
from typing import Annotated, Any, Literal

from worldsmith.config import WrongValueError, wrong
from worldsmith.config.declare.ranges import Count, Factor, NotNegative, Range, Share
from worldsmith.data.clips.captions import CAPTION_KEYS, has_caption
from worldsmith.data.clips.clip_dataset import ASSUMED_FPS, ClipDataset
from worldsmith.data.clips.clip_records import LAST, ClipRecord, find_file, find_in, line_records, shard_records
from worldsmith.data.clips.resolution import check_resolution
from worldsmith.data.clips.window_index import MANY, Window, WindowIndex, build_index, index_folder, open_index
from worldsmith.data.content_fingerprint import READERS, file_fingerprints
from worldsmith.data.shards.addresses import absolute_path, find_shards, shard_pattern
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import ALL
from worldsmith.files.remote import is_remote, read_facts

WINDOW_NUMBERS = ("start_frame", "end_frame", "temporal_interval")


class VideoDataset(ClipDataset):
    """Dataset of captioned windows of clips, read from a dataset file or from shards; opens no video.

    Unusable records are in `rejections`. `windows` are ordered by a hash of the uuid, so their order does not depend on
    the order of the lines. More than `MANY` windows are kept in an index on disk, which is built once.
    """

    class Config(ClipDataset.Config):
        path: str = ""
        """The .jsonl[.gz] file, its folder (or the folder above train/), or .tar shards: clips-{000..003}.tar; each
        may be remote (s3://bucket/folder)."""
        resolution: str = "256"
        """A resolution bucket, where the size follows from the aspect ratio of each clip; or "720x480", width and
        height of every clip."""
        sample_by_window: bool = True
        """Whether an epoch has every window of every clip; False = one window per clip, chosen at random in every
        epoch."""
        num_video_frames: Annotated[int, Range(ge=1, also=-1)] = -1
        """Frames per sample; -1 = the complete window at its own temporal_interval, or frame_buckets."""
        frame_buckets: list[Count] = field(default_factory=list)
        """Possible numbers of frames per sample: a window gets the largest one for which it is long enough at the
        frame rate of temporal_interval_mode, else the smallest one; empty = num_video_frames."""
        temporal_interval_mode: Literal["force_one", "max_30fps", "entire_chunk", "target_fps", "sat"] = "max_30fps"
        """Interval of the used frames if num_video_frames is set. force_one: 1; max_30fps: at most 30 fps;
        entire_chunk: spread over the window; target_fps: at that rate, or closer in short windows; sat: target_fps as
        in CogVideo's SAT."""
        target_fps: Annotated[float, Range(gt=0)] = 8.0
        """Frame rate of the temporal_interval_mode target_fps and sat; no frame of a clip is used twice."""
        skip_frames: NotNegative = 0
        """Number of frames that are not used at the start, and at the end, of each window."""
        frame_selection_mode: Literal["first", "center", "random"] = "first"
        """Position of the selected frames in the window if num_video_frames is set."""
        conditioning_fps: Annotated[float, Range(gt=0, lt=1000, also=-1)] = -1.0
        """Frame rate that the model gets and the caption states; -1 = frame rate of the selected frames."""
        conditioning_config: dict[str, Factor] = field(default_factory=lambda: {"0": 0.7, "1": 0.2, "2": 0.1})
        """Sampling weight by number of clean leading latent frames; empty = always 0 (text-to-video)."""
        cfg_dropout_rate: Share = 0.1
        """Probability that the caption is replaced by an empty one, for classifier-free guidance."""
        cfg_dropout_keep_metadata: bool = False
        """Keep the metadata sentences of a plain caption when the caption is dropped."""
        append_duration_fps_timestamps: bool = True
        """Append the duration and frame rate to plain captions."""
        append_resolution_info: bool = True
        """Append the size to plain captions."""
        caption_suffix: str = ""
        """Text after every plain caption; "" = none."""
        caption_keys: list[str] = field(default_factory=lambda: list(CAPTION_KEYS))
        """Caption keys of a window in order of preference; the weighted legacy styles come after them."""
        min_frames: Count = 61
        """Windows with fewer frames are skipped."""
        max_duration: Annotated[float, Range(gt=0)] = 61.0
        """Longer clips (in seconds) are skipped."""
        min_short_edge: NotNegative = 0
        """Clips whose shorter side is below this, in pixels, are skipped; 0 = off."""

        def check(self) -> None:
            check_resolution(self.resolution)
            check_conditioning(self.conditioning_config)
            if self.frame_buckets and self.num_video_frames != -1:
                why, remedy = "both set the number of frames", "set one of them"
                raise wrong(self, "frame_buckets", "num_video_frames", why=why, remedy=remedy)
            if sorted(set(self.frame_buckets)) != self.frame_buckets:
                raise wrong(self, "frame_buckets", why="the numbers must be different and in ascending order")
            whole = self.num_video_frames == -1 and not self.frame_buckets
            if whole and (self.temporal_interval_mode, self.frame_selection_mode) != ("max_30fps", "first"):
                raise wrong(
                    self,
                    *("temporal_interval_mode", "frame_selection_mode", "num_video_frames"),
                    why="the modes have no effect if samples are complete windows (num_video_frames = -1)",
                    remedy="set num_video_frames, or keep 'max_30fps' and 'first'",
                )
            if self.target_fps != 8.0 and self.temporal_interval_mode not in ("target_fps", "sat"):
                why, remedy = "this mode does not use target_fps", "set temporal_interval_mode to target_fps or sat"
                raise wrong(self, "target_fps", "temporal_interval_mode", why=why, remedy=remedy)
            if self.temporal_interval_mode == "sat" and self.frame_selection_mode != "first":
                names = "frame_selection_mode", "temporal_interval_mode"
                raise wrong(self, *names, why="the mode sat always starts at the first frame")

        def resolutions(self) -> list[str]:
            return [self.resolution]

        def assumed_clip(self) -> tuple[str, int, float, None]:
            frames = self.num_video_frames
            if frames < 0:
                frames = max(self.frame_buckets) if self.frame_buckets else self.min_frames
            fps = self.conditioning_fps if self.conditioning_fps > 0 else ASSUMED_FPS
            return self.resolution, frames, fps, None

    def __init__(self, config: Config) -> None:
        """Reads all records; raises DataError if the dataset file or a shard cannot be read."""
        self.config = config
        self.limits = f"min_frames is {config.min_frames}, max_duration {config.max_duration} s."
        file = find_in(config.path) if config.path else None
        self.pattern = None if file else shard_pattern(config.path)
        self.name = self.pattern or file or find_file(config.path)
        self.num_records = 0
        self.rejections: list[Rejection] = []
        self.windows: Sequence[Window]
        self.clips: list[list[Window]] = []
        """Windows of each clip; empty if `windows` is an index."""
        limits = config.max_duration, config.min_short_edge, config.min_frames, config.caption_keys
        folder = index_folder(self.name, *limits)
        index = open_index(folder / self.find_version()) if folder.exists() else None
        if index is None:
            clips = self.read_clips(check_uuids=True)
            found = list(islice(chain.from_iterable(windows for _, windows in clips), MANY + 1))
            if len(found) > MANY:
                del found
                index = build_index(self, folder / self.find_version())
        if index is not None:
            self.windows, self.num_records, self.rejections = index, index.num_records, index.rejections
            return
        self.windows = sorted(found, key=lambda w: (hashlib.sha256(uuid_of(w).encode()).digest(), w.key))
        self.clips = [list(clip) for _, clip in groupby(self.windows, key=uuid_of)]

    def __len__(self) -> int:
        """Number of samples of an epoch, including clips that turn out to be unusable when they are opened."""
        if self.config.sample_by_window:
            return len(self.windows)
        return self.windows.num_clips if isinstance(self.windows, WindowIndex) else len(self.clips)

    @cached_property
    def num_samples(self) -> int:
        return len(self.windows)

    def choices(self, index: int) -> Sequence[Window]:
        """Returns the windows (one, or all windows of a clip) of which an epoch uses one as its sample `index`."""
        if self.config.sample_by_window:
            return [self.windows[index]]
        return self.windows.clip(index) if isinstance(self.windows, WindowIndex) else self.clips[index]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all windows: paths, frame ranges, captions, and fingerprints of the contents of clips."""
        digest = hashlib.sha256()
        for key, facts in self.listing():
            digest.update(json.dumps([key, *facts]).encode())
        return digest.hexdigest()

    def listing(self) -> Iterator[tuple[str, list[Any]]]:
        if isinstance(self.windows, WindowIndex):
            yield ALL, [len(self.windows), self.windows.content, list(self._marks.values())]
            return
        for w in self.windows:
            facts = [w.relative_path, w.start_frame, w.end_frame, w.temporal_interval, w.captions]
            yield w.key, [*facts, w.mark or self._marks.get(w.path)]

    def contents(self) -> Iterator[tuple[str, list[Any]]]:
        """Yields (key, content) of each window, to find duplicates: copies of a clip have equal content.

        The content is a list of the clip's fingerprint, start and end frame, interval and captions.
        """
        for w in self.windows:
            marked = w.mark or self._marks.get(w.path) or absolute_path(w.path)
            yield w.key, [marked, w.start_frame, w.end_frame, w.temporal_interval, w.captions]

    def traces(self) -> Iterator[str]:
        return (absolute_path(window.path) for window in self.windows)

    def find_traces(self, wanted: Iterable[str]) -> set[str]:
        if isinstance(self.windows, WindowIndex):
            return self.windows.find_paths(wanted)
        return super().find_traces(wanted)

    @cached_property
    def _marks(self) -> dict[str, str]:
        return {} if self.pattern else file_fingerprints(window.path for window in self.windows)

    def find_version(self) -> str:
        """Returns a hash of size and time of the dataset file or its shards. Raises DataError if one is missing."""

        def describe(file: str) -> Any:
            if is_remote(file):
                return read_facts(file)
            status = os.stat(file.removeprefix("file://"))  # without ctime, which differs on each machine
            return status.st_size, status.st_mtime_ns

        try:
            with ThreadPoolExecutor(READERS) as pool:
                facts = pool.map(describe, find_shards(self.pattern) if self.pattern else [self.name])
                return hashlib.sha256(repr([*facts]).encode()).hexdigest()[:16]
        except OSError as error:
            raise DataError(str(error)) from None

    def read_clips(self, *, check_uuids: bool = False) -> Iterator[tuple[ClipRecord, list[Window]]]:
        """Yields each valid record and its usable windows; counts the records, and lists the others in `rejections`.

        Args:
            check_uuids: Whether records of a dataset file whose uuid has occurred before are rejected.
        """
        self.num_records, self.rejections = 0, []
        by_line = partial(line_records, self.name, check_uuids=check_uuids)
        for record in shard_records(self.pattern) if self.pattern else by_line():
            self.num_records += 1
            if isinstance(record, Rejection):
                self.rejections.append(record)
            else:
                yield record, list(self._windows(record))

    def _windows(self, record: ClipRecord) -> Iterator[Window]:
        """Yields the usable windows of the clip in `record`; adds the other windows to `self.rejections`."""
        facts, path, line = record.facts, record.path, record.line
        try:
            self._check_clip(facts)
        except SampleError as error:
            self.rejections.append(Rejection(facts["uuid"], error.reason, error.detail, path, line))
            return
        for index, raw in enumerate(facts["t2w_windows"]):
            key = f"{facts['uuid']}_w{index}"
            try:
                start, end, interval = self._check_window(raw, facts.get("nb_frames"))
            except SampleError as error:
                self.rejections.append(Rejection(key, error.reason, error.detail, path, line))
                continue
            captions = {k: v for k, v in raw.items() if k not in WINDOW_NUMBERS}
            yield Window(key, path, record.relative_path, start, end, interval, captions, line, record.mark)

    def _check_clip(self, record: dict[str, Any]) -> None:
        duration, short_edge = record.get("duration"), min(record.get("width", 1 << 30), record.get("height", 1 << 30))
        if duration is not None and duration > self.config.max_duration:
            raise SampleError("too_long", f"{duration} s; max_duration is {self.config.max_duration} s")
        if short_edge < self.config.min_short_edge:
            raise SampleError(
                "too_small", f"shorter side {short_edge} px; min_short_edge is {self.config.min_short_edge}"
            )

    def _check_window(self, raw: Any, nb_frames: int | None) -> tuple[int, int, int]:
        if not isinstance(raw, dict):
            raise SampleError("bad_record", f"a window must be an object, found {raw!r}")
        start, end, interval = raw.get("start_frame"), raw.get("end_frame"), raw.get("temporal_interval", 1)
        if not (type(start) is int and type(end) is int and type(interval) is int):
            raise SampleError(
                "bad_record",
                f"a window's {', '.join(WINDOW_NUMBERS)} must be integers, found {start!r}, {end!r}, {interval!r}",
            )
        backwards = end < start and end != LAST
        if start < 0 or backwards or interval < 1 or (nb_frames is not None and start >= nb_frames):
            of = f" of {nb_frames} frames" if nb_frames is not None else ""
            raise SampleError("window_out_of_range", f"window {start}..{end}, interval {interval}{of}")
        if end != LAST and end - start + 1 < self.config.min_frames:
            raise SampleError(
                "too_short",
                f"window {start}..{end} has {end - start + 1} frames; min_frames is {self.config.min_frames}",
            )
        if not has_caption(raw, self.config.caption_keys):
            found = ", ".join(key for key in raw if key not in WINDOW_NUMBERS) or "no further key"
            raise SampleError(
                "no_caption",
                f"neither the caption keys {', '.join(self.config.caption_keys)} nor those of older datasets contain "
                f"text; found {found}",
            )
        return start, end, interval


def uuid_of(window: Window) -> str:
    return window.key.rpartition("_w")[0]


def check_conditioning(weights: dict[str, float]) -> None:
    """Raises WrongValueError unless `weights` maps numbers of frames ("0", "1", …) to finite weights >= 0.

    The frames are conditioning frames, counted in latent frames. At least one weight must be positive, unless
    `weights` is empty.
    """
    for frames, weight in weights.items():
        if not (frames.isascii() and frames.isdigit()):
            raise WrongValueError(
                {"conditioning_config": weights},
                why=f"the key '{frames}' is not a number of frames",
                remedy="write e.g. {'0': 0.7, '1': 0.3}",
            )
        if not (math.isfinite(weight) and weight >= 0):
            raise WrongValueError({f"conditioning_config.{frames}": weight}, why="a weight must be zero or more")
    if weights and sum(weights.values()) <= 0:
        remedy = "set at least one positive weight, or set conditioning_config to {}"
        raise WrongValueError({"conditioning_config": weights}, why="all weights are zero", remedy=remedy)
