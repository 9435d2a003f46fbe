"""`MediaProcessor`: converts images and videos to the uint8 patches of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from worldsmith.config import Configurable, wrong
from worldsmith.config.declare.ranges import Count, PositiveFactor
from worldsmith.config.declare.search import Popular, Search
from worldsmith.data.conversations.media.limits import Limits, VideoLimits, read_limits
from worldsmith.data.stream.errors import SampleError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from worldsmith.data.video_decoder import VideoInfo


Size = tuple[int, int]
"""(height, width) in pixels."""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """Size, patches and tokens of an image after preprocessing, determined from its header."""

    source: str | bytes
    """Path, bytes or data URI."""
    size: Size
    """Size after resizing."""
    grid: tuple[int, int, int]
    """Number of patches in time, rows and columns."""
    tokens: int


@dataclass(frozen=True, slots=True)
class VideoPlan:
    """Used frames, size, patches and tokens of a video after preprocessing, determined before it is decoded."""

    source: str
    info: VideoInfo
    indices: list[int]
    """Indices of the used frames."""
    times: list[float]
    """Time of each temporal patch in seconds after the first frame of the video, or of its used part."""
    size: Size
    grid: tuple[int, int, int]
    frame_tokens: int
    """Number of tokens per temporal patch."""
    seconds: float
    """Seconds between two consecutive temporal patches, computed from the mean rate of the selected frames."""
    fps: float | None = None
    """Frame rate that the dataset states; None = that of the container."""

    @property
    def tokens(self) -> int:
        """Number of tokens of the video."""
        return self.grid[0] * self.frame_tokens


class MediaProcessor(Configurable):
    """Converts images and videos to patches as the Hugging Face processor of a model folder does, without torchvision.

    Size and number of tokens are planned from the headers, so that tokens can be counted before the media are decoded.
    Images are scaled by PIL and videos by torch, on uint8, as the PIL and torchvision backends of transformers do.
    """

    class Config(Configurable.Config):
        _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("fps", "nframes"),)

        fps: Annotated[PositiveFactor, Search(choices=(1.0, 2.0, 3.0), when="nframes=null"), Popular()] | None = None
        """Sampled frames per second of video; unset = as in the model folder (2). Cannot be combined with nframes."""
        nframes: Annotated[Count, Search(low=4, high=32, power_of_two=True, when="fps=null"), Popular()] | None = None
        """Number of frames sampled from every video; of a shorter video, all frames are used."""
        min_frames: Count | None = None
        """Min sampled frames with fps, if the video has them; unset: as in the model folder (4)."""
        max_frames: Count | None = None
        """Max sampled frames with fps; unset: as in the model folder (768)."""
        min_pixels: Count | None = None
        """Min pixels of an image or of a frame; unset = as in the model folder."""
        max_pixels: Count | None = None
        """Max pixels of an image or of a frame; unset = as in the model folder."""
        total_pixels: Count | None = None
        """Max pixels of all frames of a video together; a token covers 2 x 32 x 32 pixels (Qwen2.5-VL: 2 x 28 x 28);
        unset = as in the model folder."""
        resized_height: Count | None = None
        """Height of every image and frame in pixels, rounded to a size that the model supports. The aspect ratio of the
        source is not kept."""
        resized_width: Count | None = None
        """Width of every image and frame in pixels. Set both or neither; pixel limits then have no effect."""
        video_limits: Literal["model", "qwen_vl_utils"] = "model"
        """Default limits of videos: `model`: those of the model folder, as in transformers; `qwen_vl_utils`: 128 to 768
        tokens per frame, 115,200 per video, and an even number of frames, as in that package and Cosmos-RL."""

        def check(self) -> None:
            if (self.resized_height is None) != (self.resized_width is None):
                why = "a size has a height and a width"
                raise wrong(self, "resized_height", "resized_width", why=why, remedy="set both or neither")
            for limit in ("min_pixels", "max_pixels", "total_pixels"):
                if self.resized_height is not None and getattr(self, limit) is not None:
                    why = "resized_height and resized_width set the size, so pixel limits have no effect"
                    raise wrong(self, "resized_height", limit, why=why, remedy=f"omit {limit}")
            if self.fps is not None and self.nframes is not None:
                raise wrong(self, "fps", "nframes", why="both set the number of frames", remedy="set one of them")
            if self.nframes is not None and (self.min_frames is not None or self.max_frames is not None):
                why = "min_frames and max_frames apply to fps; with nframes they have no effect"
                raise wrong(self, "min_frames", "max_frames", "nframes", why=why)
            for least, most in (
                ("min_frames", "max_frames"),
                ("min_pixels", "max_pixels"),
                ("min_pixels", "total_pixels"),
            ):
                low, high = getattr(self, least), getattr(self, most)
                if low is not None and high is not None and low > high:
                    raise wrong(self, least, most, why="no value is between them")

    def __init__(self, config: Config, *, folder: Path) -> None:
        """Reads the limits of a model folder; raises DataError if the processor files are missing."""
        self.config = config
        self.images: Limits
        self.videos: VideoLimits
        self.images, self.videos = read_limits(Path(folder), qwen_vl_utils=config.video_limits == "qwen_vl_utils")

    def plan_image(self, source: str | bytes, resized: Size | None = None) -> ImagePlan:
        """Returns the size, patches and tokens that an image will have; reads only its header.

        Args:
            source: Path, bytes or data URI of the image.
            resized: Requested (height, width) in pixels, before rounding; None: set by the config and the limits.

        Raises:
            SampleError: If the image is not readable.
        """
        from worldsmith.data.conversations.media.image_patches import image_shape

        limits = self.images
        size = self.image_size(*image_shape(source), resized)
        grid = (1, size[0] // limits.patch, size[1] // limits.patch)
        return ImagePlan(source, size, grid, grid[1] * grid[2] // limits.merge**2)

    def plan_video(
        self,
        path: str,
        fps: float | None = None,
        resized: Size | None = None,
        frames: tuple[int, int | None] | None = None,
    ) -> VideoPlan:
        """Returns the frames, times, size, patches and tokens that a video will have; decodes one frame.

        Args:
            path: Path of the video.
            fps: Frame rate that is used instead of that of the container; None: that of the container.
            resized: Requested (height, width) in pixels, before rounding; None: set by the config and the limits.
            frames: Index of the first frame to use, and of the frame after the last one (None: the end of the video);
                None: all frames.

        Raises:
            SampleError: If the video is not readable, or does not have these frames.
        """
        from worldsmith.data.conversations.media.frames_and_sizes import choose_frames, patch_times
        from worldsmith.data.video_decoder import examine

        limits, config = self.videos, self.config
        _, info = examine(path)
        rate = fps or info.fps
        first, last = frames or (0, None)
        end = info.num_frames if last is None else last
        if not 0 <= first < end <= info.num_frames:
            raise SampleError("bad_record", f"it has {info.num_frames} frames, not those from {first} to {end - 1}")
        chosen = choose_frames(
            end - first,
            rate,
            wanted_fps=config.fps or limits.fps,
            wanted=config.nframes,
            min_frames=config.min_frames or min(limits.min_frames, config.max_frames or limits.min_frames),
            max_frames=config.max_frames or max(limits.max_frames, config.min_frames or 0),
            even=config.video_limits == "qwen_vl_utils",
        )
        indices = [first + index for index in chosen]
        count = max(len(indices), limits.temporal)  # a single frame is shown twice
        size = self.video_size(count, info.height, info.width, resized)
        seen = self.frame_times(path, info, indices, fps)
        times = patch_times([time - seen[0] for time in seen], limits.temporal)
        grid = (len(times), size[0] // limits.patch, size[1] // limits.patch)
        seconds = limits.temporal * (end - first) / (rate * len(indices))
        return VideoPlan(path, info, indices, times, size, grid, grid[1] * grid[2] // limits.merge**2, seconds, fps)

    def image_size(self, height: int, width: int, resized: Size | None = None) -> Size:
        """Returns the resized (height, width) of an image in pixels.

        Args:
            height: Original height in pixels.
            width: Original width in pixels.
            resized: Requested (height, width) in pixels, before rounding; None: set by the config and the limits.

        Raises:
            SampleError: If the aspect ratio is extreme.
        """
        from worldsmith.data.conversations.media.frames_and_sizes import fixed_size, image_size

        limits, config = self.images, self.config
        if (wanted := resized or self.resized()) is not None:
            return fixed_size(*wanted, factor=limits.factor)
        least, most = config.min_pixels or limits.min_pixels, config.max_pixels or limits.max_pixels
        return image_size(height, width, factor=limits.factor, least=least, most=most)

    def video_size(self, frames: int, height: int, width: int, resized: Size | None = None) -> Size:
        """Returns the resized (height, width) of the frames of a video in pixels.

        Args:
            frames: Number of used frames.
            height: Original height in pixels.
            width: Original width in pixels.
            resized: Requested (height, width) in pixels, before rounding; None: set by the config and the limits.

        Raises:
            SampleError: If the aspect ratio is extreme.
        """
        from worldsmith.data.conversations.media.frames_and_sizes import fixed_size, image_size, video_size

        limits = self.videos
        if (wanted := resized or self.resized()) is not None:
            return fixed_size(*wanted, factor=limits.factor)
        least, most = self.video_pixels(frames)
        if limits.style.per_frame:
            return image_size(height, width, factor=limits.factor, least=least // frames, most=most // frames)
        return video_size(frames, height, width, factor=limits.factor, temporal=limits.temporal, least=least, most=most)

    def resized(self) -> Size | None:
        """Returns the fixed (height, width) of the config before rounding; None if it is not set."""
        height, width = self.config.resized_height, self.config.resized_width
        return None if height is None or width is None else (height, width)

    def video_pixels(self, frames: int) -> tuple[int, int]:
        """Returns the (min, max) number of pixels of all frames of a video together, if it has `frames` used frames."""
        limits, config = self.videos, self.config
        most = config.total_pixels or limits.max_pixels
        if limits.frame_pixels is not None:
            most = max(min(limits.frame_pixels, most // frames), limits.frame_floor) * frames
        if config.max_pixels is not None:
            most = min(most, config.max_pixels * frames)
        stated = limits.min_pixels * frames if limits.style.per_frame else limits.min_pixels
        return min(stated if config.min_pixels is None else config.min_pixels * frames, most), most

    def frame_times(self, path: str, info: VideoInfo, indices: list[int], fps: float | None) -> list[float]:
        """Returns the times of the selected frames of a video, in seconds after the first frame of the file.

        Args:
            path: Path of the video.
            info: Metadata of the video.
            indices: Indices of the selected frames, ascending.
            fps: Frame rate from which times are computed; None: that of the file, or the file's timestamps if the
                frames are unevenly spaced.

        Raises:
            SampleError: If the video is truncated.
        """
        from worldsmith.data.video_decoder import frame_times

        if fps is not None or not info.variable_rate:
            return [index / (fps or info.fps) for index in indices]
        times = frame_times(path)
        if len(times) <= indices[-1]:
            raise SampleError("truncated", f"only {len(times)} of {info.num_frames} frames have a timestamp")
        return [times[index] for index in indices]

    def read(self, plan: ImagePlan | VideoPlan) -> np.ndarray:
        """Decodes an image or video and returns its patches, uint8 [patches, values], see `patchify`.

        Args:
            plan: Plan of the image or video, from `plan_image` or `plan_video`.

        Raises:
            SampleError: If the image or video is not readable.
        """
        import numpy as np

        from worldsmith.data.conversations.media.image_patches import patchify, read_image, read_video

        if isinstance(plan, VideoPlan):
            limits: Limits = self.videos
            frames = read_video(plan.source, plan.info, plan.indices, plan.size)
        else:
            limits = self.images
            frames = read_image(plan.source, plan.size)[np.newaxis]
        return patchify(frames, patch=limits.patch, merge=limits.merge, temporal=limits.temporal)

    def normalize(self, patches: Tensor, kind: str) -> Tensor:
        """Normalizes patches for the vision encoder; returns float32 on the same device.

        Args:
            patches: uint8 [patches, values].
            kind: "image" or "video".
        """
        from worldsmith.data.conversations.media.image_patches import normalize

        limits = self.images if kind == "image" else self.videos
        return normalize(patches, limits.mean, limits.std)
