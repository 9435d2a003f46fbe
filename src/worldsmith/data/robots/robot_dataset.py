"""`RobotDataset`: windows of the episodes of a LeRobot dataset, with the rows of the robot's actions."""

from __future__ import annotations

import hashlib
import json
import random
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.config import WrongValueError, wrong
from worldsmith.config.declare.ranges import Count, Factor, NotNegative, Share
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.clips.clip_dataset import ASSUMED_FPS, ClipDataset
from worldsmith.data.clips.resolution import check_resolution
from worldsmith.data.clips.video_sample import RobotActions
from worldsmith.data.content_fingerprint import file_fingerprints
from worldsmith.data.data_report import DataFlag, flag_records
from worldsmith.data.robots.augmentation import AugmentationConfig
from worldsmith.data.robots.lerobot import SOURCE, Episode, open_dataset, read_episodes, video_of, width_of
from worldsmith.data.robots.normalizer import build_normalizer, check_convention
from worldsmith.data.robots.robot import DOMAINS, POLICY_FILE, Robot
from worldsmith.data.shards.addresses import absolute_path
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import digest
from worldsmith.files.errors import UserError
from worldsmith.files.lines import read_bytes

if TYPE_CHECKING:
    import numpy as np

MODES = ("wam", "forward_dynamics", "inverse_dynamics", "policy")
"""Tasks on a window. wam: the first frame is given, later frames and the actions are predicted; forward_dynamics: the
actions are given, too; inverse_dynamics: all frames are given and the actions predicted; policy: as wam, without a
state row."""

POLICY_SETTINGS = ("robot", "resolution", "steps", "modes", "prompt")
"""Fields of `RobotDataset.Config` in `POLICY_FILE`."""
READERS = 8
"""Number of tables that are read at a time."""
FLAGGED_EPISODES = 200
"""Max number of episodes whose values are inspected for warnings."""
OUTLIER = 10.0
"""Distance of an outlier, as a multiple of the half width of the range of 98 % of the values."""
ASSUMED_CHANNELS = 10
"""Channels of the dummy action rows of a plan, if the embodiment does not state their number."""


class RobotDataset(ClipDataset):
    """Windows of `steps` + 1 frames and `steps` actions, from the episodes of a LeRobot dataset (v2.0, v2.1, v3.0).

    A window lies in one episode. The tables are read into memory, the videos are not opened. Episodes that cannot be
    used are in `rejections`. Needs the library pyarrow (`pip install 'worldsmith[lerobot]'`).
    """

    class Config(ClipDataset.Config):
        path: str = ""
        """Folder of the LeRobot dataset, which contains meta/info.json; also in an object store, such as
        s3://bucket/pusht."""
        robot: Robot.Config = field(default_factory=Robot.Config)
        """Columns that form the action rows, and cameras: Robot, or a known dataset (LiberoRobot, DroidJoints,
        DroidPoses, BridgeRobot, PushTRobot)."""
        resolution: str = "256"
        """Resolution bucket, where the image is scaled down to fit into the size of the nearest aspect ratio and is
        padded; or such a size, such as "320x192"."""
        steps: Count = 16
        """Actions of a window, which has one more frame; a multiple of the frames per latent frame of the VAE."""
        window_stride: Count = 1
        """Number of frames between the first frames of two windows."""
        episodes: str = ""
        """Range of episode numbers, such as "0:100" (exclusive end); "" = all."""
        split: Literal["all", "train", "val"] = "all"
        """Part of the episodes: all, those for training, or those for validation."""
        val_fraction: Share = 0.0
        """Fraction of the episodes that are for validation, at least one episode; chosen by split_seed."""
        split_seed: int = 0
        """Seed of the choice of validation episodes."""
        keep_ranges: str = ""
        """JSON file {key: [[first, end], …]} with the frame ranges of each episode in which windows lie; "" = all
        frames."""
        keep_key: str = "{episode_index}"
        """Key of an episode in keep_ranges, with the names of columns of the episodes' metadata in braces."""
        max_idle: Share = 1.0
        """Windows with a larger fraction of idle rows are skipped."""
        modes: dict[str, Factor] = field(default_factory=lambda: {"wam": 1.0})
        """Sampling weight of each mode: wam (frames and actions are predicted), forward_dynamics (frames),
        inverse_dynamics (actions), policy (as wam, without a state row)."""
        history: NotNegative = 0
        """Max number of rows before the window, which are given: with probability 1/2 all that the episode has, else a
        random number."""
        history_of: Literal["actions", "states"] = "actions"
        """Content of the rows before the window: the actions that lead from those frames, or the states at them."""
        prompt: Literal["json", "task", "none"] = "json"
        """Text for the model: the JSON prompt with viewpoint, duration and size; only the task; or none, for data with
        one task: then the policy ignores instructions."""
        augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
        """Random changes of the images, for training data only: the same for all cameras and frames of a window, and
        other ones in each epoch."""
        cfg_dropout_rate: Share = 0.1
        """Probability that the text is replaced by an empty one, for classifier-free guidance."""

        @property
        def num_video_frames(self) -> int:
            """Frames of a window."""
            return self.steps + 1

        def resolutions(self) -> list[str]:
            return [self.resolution]

        def assumed_clip(self) -> tuple[str, int, float, RobotActions]:
            import torch

            given = self.history + bool(self.robot.state)
            width = DOMAINS.get(self.robot.embodiment, (0, None))[1] or ASSUMED_CHANNELS
            rows = torch.zeros(given + self.steps, width)
            actions = RobotActions(rows, given, 1 - given, self.robot.domain, ASSUMED_FPS)
            return self.resolution, self.num_video_frames, ASSUMED_FPS, actions

        def check(self) -> None:
            check_resolution(self.resolution)
            if unknown := sorted({*self.modes} - {*MODES}):
                raise WrongValueError({"modes": self.modes}, why=f"unknown: {unknown}", remedy=f"use {MODES}")
            if sum(self.modes.values()) <= 0:
                raise wrong(self, "modes", why="at least one mode needs a positive weight")
            if self.modes.get("policy") and self.robot.state:
                why = "in this mode the state row would be predicted, one frame late"
                raise wrong(self, "modes", "robot.state", why=why, remedy="use wam, or omit the state row")
            if self.history_of == "states" and not (self.history and self.robot.state):
                raise wrong(self, "history_of", "history", "robot.state", why="it needs a state row and a history")
            if self.history and self.robot.pose_delta == "anchored":
                why = "anchored motions begin at the first frame of the window"
                raise wrong(self, "history", "robot.pose_delta", why=why)
            if self.max_idle < 1 and self.robot.pose_delta == "anchored":
                raise wrong(self, "max_idle", "robot.pose_delta", why="anchored motions have no idle rows")
            if (self.split != "all") != (self.val_fraction > 0):
                raise wrong(self, "split", "val_fraction", why="only together they divide the episodes")
            if self.keep_key != "{episode_index}" and not self.keep_ranges:
                raise wrong(self, "keep_key", "keep_ranges", why="without a file the key is not used")
            for name in ("viewpoint", "view_description"):
                if self.prompt != "json" and getattr(self.robot, name) != getattr(type(self.robot), name):
                    raise wrong(self, f"robot.{name}", "prompt", why="only the JSON prompt contains it")
            if self.prompt == "none" and self.cfg_dropout_rate not in (0, type(self).cfg_dropout_rate):
                raise wrong(self, "cfg_dropout_rate", "prompt", why="there is no text that it could replace")
            parse_range(self.episodes)

    def __init__(self, config: Config) -> None:
        """Reads the tables of all chosen episodes; raises DataError if the folder is not a dataset for the robot."""
        import numpy as np

        self.config = config
        self.name = config.path
        self.limits = f"steps is {config.steps}."
        try:
            self.source = open_dataset(config.path, cameras_of(config.robot.cameras))
        except KeyError as error:
            raise DataError(f"{config.path}: {error} is missing in the meta folder of the LeRobot dataset") from None
        except (ValueError, OSError) as error:
            raise DataError(str(error)) from None
        self.views = self._views()
        features = self.source.info["features"]
        widths = {name: width for name, feature in features.items() if (width := width_of(feature))}
        self.robot: Robot = config.robot.build(widths=widths)
        method, where, clamp = config.robot.normalization, config.robot.statistics, config.robot.clamp
        self.normalizer = build_normalizer(method, self.statistics, self.robot.width, where=where, clamp=clamp)
        if self.statistics:
            check_convention(self.statistics, config.robot.convention(self.fps), where)
        self.rejections: list[Rejection] = []
        self.flagged: list[DataFlag] = []
        _, released = DOMAINS.get(config.robot.embodiment, (0, None))
        if released not in (None, self.robot.width):
            said = (
                f"episodes have {self.robot.width} channels; released weights of the domain {config.robot.embodiment} "
                f"have {released}, so initialize the action heads again"
            )
            count = len(self.source.episodes)
            self.flagged.append(DataFlag("other_width", count, count, said))
        members = choose_episodes(config, self.source.episodes)
        self.num_records = len(members)
        self.skipped = 0
        """Number of windows outside `keep_ranges` or above `max_idle`."""
        read = self._read(members, {name: widths[name] for name in self.robot.columns})
        self.episodes: list[Episode] = []
        starts: list[np.ndarray] = []
        for metadata, episode in read:
            found = self._window_starts(metadata, episode)
            if len(found):
                self.episodes.append(episode)
                starts.append(found)
        self.starts = np.concatenate(starts) if starts else np.zeros(0, np.int32)
        """First frame of each window in its episode, int32 [windows]."""
        self.ends = np.cumsum([len(found) for found in starts]).tolist()
        """Number of windows up to each episode, including it."""
        if self.skipped:
            said = "windows are skipped by keep_ranges or max_idle"
            self.flagged.append(DataFlag("idle", self.skipped, self.skipped + len(self), said))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def fps(self) -> float:
        """Frames and rows per second."""
        return float(self.source.info["fps"])

    def task(self, episode: Episode, frame: int) -> str:
        """Returns the task at a frame of an episode; it may contain several phrasings."""
        return self.source.tasks[int(episode.tasks[frame])]

    def window(self, index: int) -> tuple[Episode, int]:
        """Returns (episode, its first frame) of a window."""
        return self.episodes[bisect_right(self.ends, index)], int(self.starts[index])

    def run_files(self) -> dict[str, str]:
        """Returns what a policy needs besides the model: `POLICY_FILE`, and the statistics of the normalization."""
        from worldsmith.data.video_decoder import examine  # imports PyAV

        files = {"robot_statistics.json": self.statistics} if self.statistics else {}
        for episode in self.episodes:
            with suppress(SampleError):
                infos = [(camera, examine(path)[1]) for camera, (path, _) in episode.videos.items()]
                found = {
                    "dataset": {name: to_dict(self.config)[name] for name in POLICY_SETTINGS},
                    "fps": self.fps,
                    "columns": {name: values.shape[1] for name, values in episode.columns.items()},
                    "views": self.views,
                    "sizes": {camera: [info.width, info.height] for camera, info in infos},
                    "statistics": json.loads(self.statistics or "{}"),
                }
                return files | {POLICY_FILE: json.dumps(found, indent=1) + "\n"}
        return files

    @cached_property
    def statistics(self) -> str:
        """Content of the statistics file; "" without normalization. Raises UserError if it cannot be read."""
        try:
            return read_bytes(file).decode() if (file := self.config.robot.statistics) else ""
        except OSError as error:
            raise UserError(
                f"{file} cannot be read: {error.strerror or error}. `worldsmith dataset statistics` writes it"
            ) from None

    def listing(self) -> Iterator[tuple[str, Any]]:
        """Yields (key, content) of each episode: paths, fingerprints, values, tasks, windows and normalization."""
        statistics = digest(self.statistics)
        for episode, content in self._contents():
            videos = [[self.source.relative_path(path), start] for path, start in episode.videos.values()]
            yield episode.key, [videos, *content, statistics]

    def contents(self) -> Iterator[tuple[str, Any]]:
        """Yields (key, content) of each episode; copies of an episode have equal content."""
        return ((episode.key, content) for episode, content in self._contents())

    def traces(self) -> Iterable[str]:
        return (f"{absolute_path(episode.data)}#{episode.index}" for episode in self.episodes)

    def flags(self) -> Iterator[DataFlag]:
        """Yields warnings: skipped windows, another width of released heads, constant channels and outliers.

        The values are those of at most `FLAGGED_EPISODES` evenly spaced episodes.
        """
        import numpy as np

        yield from self.flagged
        rows = self._inspected_rows()
        values = np.concatenate([*rows.values(), np.zeros((0, self.robot.width))])
        if len(values) < 2:
            return
        low, high = np.quantile(values, (0.01, 0.99), axis=0)
        half = (high - low) / 2
        constant = np.flatnonzero(np.ptp(values, axis=0) == 0)
        named = ({"index": int(channel), "key": self.robot.kinds[channel]} for channel in constant)
        yield from flag_records("constant", named, self.robot.width, "channels of the actions are constant")
        far = [
            {"index": int(row), "key": key, "detail": f"channels {np.flatnonzero(is_far[row]).tolist()}"}
            for key, found in rows.items()
            for is_far in [np.abs(found - (low + half)) > OUTLIER * np.where(half > 0, half, np.inf)]
            for row in np.flatnonzero(is_far.any(1))
        ]
        said = f"actions are more than {OUTLIER:g} times the range of 98 % of the values away from its middle"
        yield from flag_records("outlier", far, len(values), said)

    def channels(self) -> dict[str, dict[str, float]]:
        import numpy as np

        rows = [*self._inspected_rows().values()]
        bounds = np.quantile(np.concatenate(rows), (0, 0.01, 0.99, 1), axis=0).T.tolist() if rows else []
        named = enumerate(zip(self.robot.kinds, bounds))
        return {f"{index} {kind}": dict(zip(("min", "q01", "q99", "max"), found)) for index, (kind, found) in named}

    def _inspected_rows(self) -> dict[str, np.ndarray]:
        """Returns episode key → action rows, not normalized, of evenly spaced episodes."""
        chosen = self.episodes[:: max(1, -(-len(self.episodes) // FLAGGED_EPISODES))]
        return {episode.key: self.action_rows(episode) for episode in chosen}

    def action_rows(self, episode: Episode) -> np.ndarray:
        """Returns the action rows of an episode [rows, channels], not normalized; anchored ones of each `steps` frames.

        Rows that lead from the last frames of an episode to no complete window are included if they are not anchored.
        """
        import numpy as np

        steps, length = self.config.steps, len(episode.times)
        if self.config.robot.pose_delta == "frame_wise":
            return self.robot.action_rows(episode.columns)
        starts = range(0, length - steps, steps)
        parts = ({name: rows[one : one + steps + 1] for name, rows in episode.columns.items()} for one in starts)
        return np.concatenate([self.robot.action_rows(part) for part in parts])

    def _contents(self) -> Iterator[tuple[Episode, list[Any]]]:
        first = 0
        for episode, end in zip(self.episodes, self.ends):
            marks = [self._marks.get(path) for path, _ in episode.videos.values()]
            starts = hashlib.sha256(self.starts[first:end].tobytes()).hexdigest()[:16]
            tasks = [self.source.tasks[task] for task in sorted({*episode.tasks.tolist()})]
            yield episode, [episode.digest(), tasks, marks, starts]
            first = end

    @cached_property
    def _marks(self) -> dict[str, str]:
        paths = (path for episode in self.episodes for path, _ in episode.videos.values())
        return file_fingerprints(dict.fromkeys(paths))

    def _views(self) -> list[list[str]]:
        """Returns the cameras in each row of the image. Raises DataError without cameras in a dataset with several."""
        rows = [cameras_of([row]) for row in self.config.robot.cameras]
        if not rows and len(self.source.cameras) != 1:
            raise DataError(
                f"{self.name} has the cameras {', '.join(self.source.cameras)}: choose those to use and their "
                "arrangement with robot.cameras"
            )
        return rows or [list(self.source.cameras)]

    def _read(self, members: list[dict[str, Any]], widths: dict[str, int]) -> Iterator[tuple[dict[str, Any], Episode]]:
        """Yields (metadata, episode) of all usable episodes, in order; adds the others to `rejections`."""
        files: dict[str, list[tuple[dict[str, Any], dict[str, tuple[str, float]]]]] = defaultdict(list)
        for metadata in members:
            try:
                videos = {camera: video_of(self.source, metadata, camera) for camera in chain(*self.views)}
                files[self.source.file("data_path", metadata, "data")].append((metadata, videos))
            except KeyError as error:
                raise DataError(f"{self.name}: the metadata of an episode have no {error}") from None
            except SampleError as error:
                key, (path, row) = f"episode_{metadata['episode_index']:06d}", metadata[SOURCE]
                self.rejections.append(Rejection(key, error.reason, error.detail, path, index=row))
        with ThreadPoolExecutor(READERS) as pool:
            wanted = {file: [metadata for metadata, _ in group] for file, group in files.items()}
            tables = pool.map(lambda file: list(read_episodes(self.source, file, wanted[file], widths)), files)
            for file, group, found in zip(files, files.values(), tables):
                for (metadata, videos), rows in zip(group, found):
                    index = metadata["episode_index"]
                    if isinstance(rows, SampleError):
                        self.rejections.append(Rejection(f"episode_{index:06d}", rows.reason, rows.detail, file))
                        continue
                    yield metadata, Episode(index, file, *rows, videos)

    def _window_starts(self, metadata: dict[str, Any], episode: Episode) -> np.ndarray:
        """Returns the first frames of the windows of an episode, int32; records why an episode has none."""
        import numpy as np

        config, count = self.config, len(episode.times) - self.config.steps
        if count <= 0:
            detail = f"{len(episode.times)} frames; a window has {config.steps + 1}"
            self.rejections.append(Rejection(episode.key, "too_short", detail, episode.data))
        kept = np.zeros(max(0, count), bool)
        kept[:: config.window_stride] = True
        total = int(kept.sum())
        if self.ranges is not None and count > 0:
            inside = np.zeros_like(kept)
            try:
                key = config.keep_key.format(**metadata)
            except (KeyError, ValueError, IndexError) as error:
                raise DataError(
                    f"{self.name}: keep_key '{config.keep_key}' does not fit the metadata: {error}"
                ) from None
            for first, end in self.ranges.get(key, []):
                inside[max(first, 0) : max(0, end - config.steps)] = True
            kept &= inside
        if config.max_idle < 1 and kept.any():
            if not self.robot.has_idle_rows:
                raise DataError(f"{self.name}: max_idle needs actions that are not of the kind 'values'")
            rows = self.robot.action_rows(episode.columns)
            windows = np.lib.stride_tricks.sliding_window_view(rows, config.steps, axis=0).swapaxes(-1, -2)
            kept &= self.robot.count_idle(windows, self.fps) <= config.max_idle * config.steps
        self.skipped += total - int(kept.sum())
        if count > 0 and not kept.any():
            detail = "no window lies in keep_ranges, or below max_idle"
            self.rejections.append(Rejection(episode.key, "idle", detail, episode.data))
        return np.flatnonzero(kept).astype(np.int32)

    @cached_property
    def ranges(self) -> dict[str, list[list[int]]] | None:
        """Frame ranges of each key in `keep_ranges`; None without a file. Raises DataError if it is invalid."""
        if not self.config.keep_ranges:
            return None
        try:
            content = json.loads(read_bytes(self.config.keep_ranges))
            return {key: [[int(first), int(end)] for first, end in ranges] for key, ranges in content.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{self.config.keep_ranges}: expected {{key: [[first, end], …]}}: {error}") from None


def cameras_of(rows: list[str]) -> list[str]:
    """Returns the cameras in the rows of an image, in order."""
    return [name.strip() for row in rows for name in row.split(" | ")]


def parse_range(text: str) -> range:
    """Returns the range of "FIRST:END", in which both may be omitted. Raises WrongValueError for other text."""
    found = re.fullmatch(r"(\d*):(\d*)", text or ":")
    if found is None:
        raise WrongValueError({"episodes": text}, why="it is not a range", remedy="write e.g. '0:100'")
    return range(int(found[1] or 0), int(found[2] or 1 << 31))


def choose_episodes(config: RobotDataset.Config, episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the metadata of the episodes in the range and the split of the config."""
    chosen = parse_range(config.episodes)
    members = [episode for episode in episodes if episode["episode_index"] in chosen]
    if config.split == "all" or not members:
        return members
    count = max(1, round(len(members) * config.val_fraction))
    indices = [episode["episode_index"] for episode in members]
    val = set(random.Random(config.split_seed).sample(indices, count))
    return [episode for episode in members if (episode["episode_index"] in val) == (config.split == "val")]
