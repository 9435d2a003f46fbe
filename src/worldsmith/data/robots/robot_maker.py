"""`RobotMaker` builds the sample of an episode window: frames or latents, action rows, prompt. `MixMaker`: of a mix."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import av
import numpy as np
import torch

from worldsmith.data.clips.clip_frames import Framing
from worldsmith.data.clips.clip_maker import ClipMaker
from worldsmith.data.clips.inspect_clips import features_of
from worldsmith.data.clips.resolution import RESOLUTIONS, exact_size
from worldsmith.data.clips.video_sample import RobotActions, VideoSample
from worldsmith.data.latent_cache import file_identity
from worldsmith.data.robots.augmentation import Augmentation
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.lerobot import SAME_TIME, Episode
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_prompt import choose_phrasing, robot_prompt
from worldsmith.data.stream.errors import SampleError, check_text, prefixing
from worldsmith.data.stream.positions import sample_index, sample_rng
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import Features, SampleMaker, SampleResult, StreamSettings
from worldsmith.data.video_decoder import FileStatus, VideoInfo, examine, pick_times

VideoFiles = dict[str, tuple[str, FileStatus, VideoInfo]]
"""Camera → path, status and properties of its video."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Sizes (W, H) in pixels of an image that shows several cameras, and of the padded image that contains it."""

    cells: list[list[tuple[int, int]]]
    """Size of each camera, by row."""
    content: tuple[int, int]
    """Size of all cameras together, after it was scaled down."""
    canvas: tuple[int, int]
    """Size with padding at the right and at the bottom."""

    @property
    def composed(self) -> tuple[int, int]:
        """Size of all cameras together, before it is scaled down."""
        return sum(width for width, _ in self.cells[0]), sum(row[0][1] for row in self.cells)


def arrange(size: tuple[int, int], counts: Sequence[int], resolution: str) -> Arrangement:
    """Arranges cameras in rows: the first one keeps its size, each row has the width of the first row.

    The image is scaled down until it fits into the canvas, and is never scaled up. In a resolution bucket, the canvas
    is the size whose ratio H/W is nearest to that of the image, as in `cosmos_framework`.

    Args:
        size: (W, H) of the first camera.
        counts: Number of cameras in each row.
        resolution: Resolution bucket, or the size of the canvas, such as "320x192".
    """
    width, height = size
    total = width * counts[0]
    cells = [[(total // count, height * (total // count) // width)] * count for count in counts]
    composed = total, sum(row[0][1] for row in cells)
    ratio = composed[1] / composed[0]
    options = [exact_size(resolution)] if exact_size(resolution) else RESOLUTIONS[resolution].values()
    canvas = min((option for option in options if option), key=lambda one: abs(one[1] / one[0] - ratio))
    scale = min(canvas[0] / composed[0], canvas[1] / composed[1], 1.0)
    return Arrangement(cells, (int(scale * composed[0] + 0.5), int(scale * composed[1] + 0.5)), canvas)


class RobotMaker(ClipMaker):
    """Builds the `VideoSample` at a position of the data stream, with `actions`. Arguments as for `ClipMaker`.

    `size` is that of the padded image, `latent_shape` that of its content: the latents are cropped at the right and at
    the bottom after encoding, so that padding gives no tokens.
    """

    dataset: RobotDataset  # type: ignore[assignment]

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        episode, first = self.dataset.window(self.index(position))
        return Rejection(window_key(episode, first), reason, detail, episode.data)

    def features(self, sample: VideoSample) -> Features:
        episode, _ = self.dataset.window(self.index(sample.position))
        assert sample.actions is not None
        _, info = examine(next(iter(episode.videos.values()))[0])
        mode = draw_mode(self.dataset.config.modes, sample_rng(self.seed, sample.position, "mode"))
        found = features_of(info, sample.num_frames, sample.size, sample.fps)
        return {**found, "mode": [mode], "action rows": [len(sample.actions.rows)]}

    def make(self, position: int) -> SampleResult[VideoSample]:
        config, (episode, first) = self.dataset.config, self.dataset.window(self.index(position))
        key, notes, frames = window_key(episode, first), dict[str, str](), config.num_video_frames
        files: VideoFiles = {}
        for camera, (path, _) in episode.videos.items():
            with prefixing(path):
                files[camera] = path, *examine(path)
        info = files[self.dataset.views[0][0]][2]
        sizes = arrange((info.width, info.height), [len(row) for row in self.dataset.views], config.resolution)
        width, height = sizes.content
        shape = self.grid.latent_shape(frames, height, width)
        what = f"{width}x{height}, {frames} frames"
        if 0 in shape:
            raise SampleError("too_small", f"{what}: a latent has {self.grid.pixels}x{self.grid.pixels} px")
        self._check_shape(shape, what)
        mode = draw_mode(config.modes, sample_rng(self.seed, position, "mode"))
        actions, idle = self._actions(episode, first, mode, sample_rng(self.seed, position, "history"))
        caption = self._prompt(episode, first, position, sizes.canvas, None if mode == "inverse_dynamics" else idle)
        text_ids = self._text_ids(caption, key, notes)
        num_tokens = self.grid.sample_tokens(len(text_ids), shape) + len(actions.rows)
        self.check_size(num_tokens, f"{what}, {len(actions.rows)} action rows")
        times = {camera: start + episode.times[first : first + frames] for camera, (_, start) in episode.videos.items()}
        latents = cache_key = None
        if self.latent_cache is not None:
            relative = self.dataset.source.relative_path
            cache_key = self.latent_cache.key_for(
                files=[file_identity(status, path, relative(path)) for path, status, _ in files.values()],
                times=[values.tolist() for values in times.values()],
                sizes=[sizes.cells, sizes.content, sizes.canvas],
            )
            latents, outcome = self.latent_cache.look_up(cache_key, shape)
            notes[f"cache_{outcome}"] = ""
        sample = VideoSample(
            key=key,
            position=position,
            text_ids=text_ids,
            caption=caption,
            video=self._pixels(files, times, sizes, position) if latents is None and self.decodes else None,
            latents=latents,
            latent_shape=shape,
            size=sizes.canvas[::-1],
            num_frames=frames,
            fps=self.dataset.fps,
            condition_frames=shape[0] if mode == "inverse_dynamics" else 1,
            num_tokens=num_tokens,
            cache_key=cache_key,
            resolution=config.resolution,
            actions=actions,
        )
        return SampleResult(sample, notes)

    def _actions(
        self, episode: Episode, first: int, mode: str, rng: random.Random
    ) -> tuple[RobotActions, tuple[int, int] | None]:
        """Returns the rows of a window, and (number of idle rows, number of rows without history) if it is defined."""
        config, robot = self.dataset.config, self.dataset.robot
        history = min(config.history, first)
        if history and rng.random() < 0.5:
            history = rng.randint(0, history)
        data = {name: rows[first - history : first + config.steps + 1] for name, rows in episode.columns.items()}
        rows = robot.action_rows(data)
        before, rows = rows[:history], rows[history:]
        if robot.state:
            states = robot.state_rows(data)
            before = states[:history] if config.history_of == "states" else before
            rows = np.concatenate((states[history : history + 1], rows))
        idle = (int(robot.count_idle(rows, self.dataset.fps)), len(rows)) if robot.has_idle_rows else None
        values = torch.from_numpy(np.concatenate((before, rows)))
        given = history + bool(robot.state)
        actions = RobotActions(
            rows=self.dataset.normalizer.normalize(values),
            clean_rows=len(values) if mode == "forward_dynamics" else given,
            offset=1 - given,
            domain=robot.config.domain,
            fps=self.dataset.fps,
        )
        return actions, idle

    def _prompt(
        self, episode: Episode, first: int, position: int, canvas: tuple[int, int], idle: tuple[int, int] | None
    ) -> str:
        config = self.dataset.config
        task = choose_phrasing(self.dataset.task(episode, first), sample_rng(self.seed, position, "caption"))
        check_text(task, "the task")
        if sample_rng(self.seed, position, "dropout").random() < config.cfg_dropout_rate:
            return ""
        return robot_prompt(task, config, idle=idle, fps=self.dataset.fps, canvas=canvas)

    def _pixels(
        self, files: VideoFiles, times: dict[str, np.ndarray], sizes: Arrangement, position: int
    ) -> torch.Tensor:
        """Decodes and composes the frames of a window, and returns them as uint8 [3, T, H, W] with padding."""
        config, rng = self.dataset.config, sample_rng(self.seed, position, "augmentation")

        def decode(camera: str) -> Iterator[av.VideoFrame]:
            path, _, info = files[camera]
            with prefixing(path):
                yield from pick_times(path, info, times[camera].tolist(), SAME_TIME / self.dataset.fps)

        turns = {camera: info.rotation for camera, (_, _, info) in files.items()}
        augmentation = config.augmentation.draw(rng) if config.augmentation.is_active else None
        return compose_cameras(decode, self.dataset.views, sizes, config.num_video_frames, turns, augmentation)


class MixMaker(SampleMaker[VideoSample]):
    """Builds the sample at a position of a mix with the sample builder of its dataset.

    Args:
        dataset: The mix.
        config: Seed, shuffling and token limit of the data loader.
        makers: Sample builder of each dataset by name.
    """

    dataset: ClipMix

    def __init__(self, dataset: ClipMix, config: StreamSettings, makers: Mapping[str, ClipMaker]) -> None:
        super().__init__(dataset, config)
        self.makers = makers
        for name, maker in makers.items():
            maker.find_index = partial(self.index_in, name)

    def place(self, position: int) -> tuple[str, int]:
        """Returns (name of the dataset, index in that dataset) of the sample at a stream position."""
        index = sample_index(position, len(self.dataset), seed=self.seed, shuffle=self.shuffle)
        return self.dataset.member(index, position // len(self.dataset))

    def index_in(self, name: str, position: int) -> int:
        """Returns the index in the dataset `name` of the sample at a stream position, which is in this dataset."""
        found, index = self.place(position)
        assert found == name
        return index

    def maker(self, position: int) -> ClipMaker:
        """Returns the sample builder for a stream position."""
        return self.makers[self.place(position)[0]]

    def make(self, position: int) -> SampleResult[VideoSample]:
        name, _ = self.place(position)
        maker = self.makers[name]
        maker.decodes, maker.measured = self.decodes, None
        try:
            made = maker.make(position)
        finally:
            self.measured = maker.measured
        assert isinstance(made.item, VideoSample)
        made.item.key = f"{name}/{made.item.key}"
        return made

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        name, _ = self.place(position)
        found = self.makers[name].reject(position, reason, detail)
        return replace(found, key=f"{name}/{found.key}")

    def features(self, sample: VideoSample) -> Features:
        return self.maker(sample.position).features(sample)

    def shape(self, sample: VideoSample) -> object:
        return self.maker(sample.position).shape(sample)

    def cells(self, sample: VideoSample) -> int:
        return self.maker(sample.position).cells(sample)


def compose_cameras(
    frames: Callable[[str], Iterable[av.VideoFrame]],
    views: Sequence[Sequence[str]],
    sizes: Arrangement,
    count: int,
    turns: Mapping[str, int],
    augmentation: Augmentation | None = None,
) -> torch.Tensor:
    """Returns the images of several cameras as one video with padding, uint8 [3, count, H, W].

    Args:
        frames: Returns the `count` frames of a camera.
        views: Cameras in each row of the image.
        sizes: Sizes from `arrange`.
        count: Number of frames.
        turns: Camera → number of counterclockwise quarter turns that make its frames upright.
        augmentation: Changes of all images; None: none.
    """
    width, height = sizes.composed
    composed = np.empty((count, height, width, 3), np.uint8)
    top = 0
    for row, cells in zip(views, sizes.cells):
        left = 0
        for camera, size in zip(row, cells):
            framing = Framing(size, "training")
            stored = size[::-1] if turns[camera] % 2 else size
            for number, frame in enumerate(frames(camera)):
                if augmentation is not None and augmentation.crop < 1:
                    kept = augmentation.cropped(framing.scale(frame, frame.width, frame.height))
                    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(kept), format="rgb24")
                image = framing.scale(frame, *stored)
                image = np.rot90(image if augmentation is None else augmentation.recolored(image), turns[camera])
                composed[number, top : top + size[1], left : left + size[0]] = image
            left += size[0]
        composed[:, top : top + cells[0][1], left:] = 0  # columns that remain if the width cannot be divided
        top += cells[0][1]
    if sizes.content != sizes.composed:
        framing = Framing(sizes.content, "training")
        images = (av.VideoFrame.from_ndarray(image, format="rgb24") for image in composed)
        composed = np.stack([framing.scale(image, *sizes.content) for image in images])
    return torch.from_numpy(pad_to(composed.transpose(3, 0, 1, 2), sizes.canvas))


def pad_to(video: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns frames [3, T, h, w], padded at the right and at the bottom to (W, H).

    The padding reflects the content; if it is larger than that, it repeats the last pixels.
    """
    right, bottom = size[0] - video.shape[3], size[1] - video.shape[2]
    is_large = right >= video.shape[3] or bottom >= video.shape[2]
    mode: Literal["edge", "reflect"] = "edge" if is_large else "reflect"
    return np.ascontiguousarray(np.pad(video, ((0, 0), (0, 0), (0, bottom), (0, right)), mode=mode))


def draw_mode(modes: dict[str, float], rng: random.Random) -> str:
    """Returns a mode, chosen at random with the weights `modes`."""
    names = sorted(name for name, weight in modes.items() if weight > 0)
    return rng.choices(names, [modes[name] for name in names])[0]


def window_key(episode: Episode, first: int) -> str:
    """Returns the key of a window, such as "episode_000012_f34"."""
    return f"{episode.key}_f{first}"
