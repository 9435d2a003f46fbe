"""Requests for generated videos, and their inputs before the first step: texts, conditioning frames and noise."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from worldsmith.data.clip_limits import require_clip
from worldsmith.data.clips.captions import Caption, metadata_sentences, render_caption
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.resolution import aspect_bucket
from worldsmith.data.clips.video_sample import RobotActions
from worldsmith.data.stream.errors import check_text
from worldsmith.models.real_values import real_values
from worldsmith.models.video_model import ActionLayout, GenerationDefaults, InitialState, SampleLayout, VideoSampler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Description of one video or image to generate: prompt, size, seed and conditioning frames."""

    prompt: str
    """A caption, or a structured caption as a JSON object, which is used unchanged."""
    height: int
    """Height in pixels, a multiple of the pixels per latent."""
    width: int
    """Width in pixels, a multiple of the pixels per latent."""
    num_frames: int
    """Number of frames; rounded up to complete latent frames, with a warning."""
    fps: float
    """Frames per second."""
    seed: int = 0
    """Seed of the noise."""
    condition: Tensor | None = None
    """Conditioning frames, uint8 [3, T, H, W] of any size: one frame for image-to-video, the first frames of a video to
    continue, or all frames of a video to regenerate. None: text-to-video."""
    condition_frames: int = 0
    """Number of latent frames that are kept from `condition`: 0 for text-to-video and for a video to regenerate, 1 for
    image-to-video, 2 for a video to continue."""
    negative_prompt: str | None = None
    """Negative prompt of classifier-free guidance. None: the empty caption, as in training."""
    negative_metadata: Literal["none", "same", "inverse"] | None = None
    """Sentences on duration, frame rate and size after the negative prompt: "none", "same" as after the prompt, or
    "inverse" for their negations. None: "none" if `negative_prompt` is given, else as in training after the empty
    caption."""
    structured_metadata: bool | None = None
    """Whether duration, frame rate, size and aspect ratio are added to a structured prompt. None: as in training."""
    actions: RobotActions | None = None
    """Robot actions during the video, in the units of training; the values of rows after the first `clean_rows` are
    ignored and generated. With actions, `prompt` and `condition` are used unchanged: the frames may be larger than the
    video, with padding at the bottom and right, and there may be all of them (inverse dynamics)."""

    def check(self, grid: LatentGrid, *, whole: bool = False) -> None:
        """Raises ValueError, with the prompt in the message, if the request is invalid.

        Args:
            grid: Number of frames and pixels per latent of the model.
            whole: Whether `condition` contains all frames of a video to regenerate. False: the first frames to keep.
        """
        where = f"request {self.prompt[:60]!r}"
        for name, side in (("height", self.height), ("width", self.width)):
            if side < 1 or side % grid.pixels:
                raise ValueError(
                    f"{where}: {name} must be a multiple of {grid.pixels}, found {side}; "
                    f"the nearest is {max(1, round(side / grid.pixels)) * grid.pixels}"
                )
        if self.num_frames < 1:
            raise ValueError(f"{where}: num_frames must be positive, found {self.num_frames}")
        try:
            require_clip(self.num_frames, self.height, self.width, self.fps)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        for text in (self.prompt, self.negative_prompt or ""):
            check_text(text, f"{where}: the prompt")
            if not text.isascii() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
                raise ValueError(f"{where}: {text[:60]!r} contains half of a surrogate pair, which is not a character")
        if self.seed < 0:
            raise ValueError(f"{where}: the seed must not be negative, found {self.seed}")
        if whole and self.condition_frames:
            raise ValueError(f"{where}: video-to-video regenerates a complete video, so condition_frames must be 0")
        if (self.condition is None) != (self.condition_frames == 0 and not whole):
            raise ValueError(
                f"{where}: condition_frames is {self.condition_frames} but there is "
                f"{'no condition' if self.condition is None else 'a condition'}; set both or neither"
            )
        if self.condition is not None:
            needed = self.num_frames if whole else grid.pixel_frames(self.condition_frames)
            check_condition(self.condition, needed, where)
            if self.actions is not None:
                _, _, height, width = self.condition.shape
                if height < self.height or width < self.width or height % grid.pixels or width % grid.pixels:
                    raise ValueError(
                        f"{where}: conditioning frames of {width}x{height} do not fit a video of {self.width}x"
                        f"{self.height} with robot actions: they must be as large or larger, and multiples of "
                        f"{grid.pixels}"
                    )
            predicts_actions = self.actions is not None and self.actions.clean_rows < len(self.actions.rows)
            if needed >= self.num_frames and not whole and not predicts_actions:
                raise ValueError(
                    f"{where}: {needed} conditioning frames leave no frame to generate (num_frames={self.num_frames})"
                )


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A checked request with tokenized texts: one layout (tokens and latent shape) per guidance branch."""

    request: GenerationRequest
    conditional: SampleLayout
    unconditional: SampleLayout


def read_request(sampler: VideoSampler, request: GenerationRequest) -> ReadRequest:
    """Checks a request and tokenizes the texts of both guidance branches.

    Args:
        sampler: Sampler of the model.
        request: The request; its number of frames is rounded up to complete latent frames, with a warning.

    Raises:
        ValueError: If the request is invalid, or a text has too many tokens.
    """
    model = sampler.model
    grid = LatentGrid(*model.latent_grid)
    request.check(grid, whole=sampler.sampling.strength is not None)
    request = with_whole_latent_frames(request, grid)
    is_dropped = request.negative_prompt is None and request.negative_metadata is None
    texts = (
        (conditional_text(request, model.defaults), not request.prompt.strip()),
        (unconditional_text(request, model.defaults), is_dropped),
    )
    layouts = [
        SampleLayout(
            text_ids=text_ids(sampler, text, dropped=dropped and not text),
            latent_shape=grid.latent_shape(request.num_frames, request.height, request.width),
            fps=request.fps,
            condition_frames=request.condition_frames,
            actions=ActionLayout.of(request.actions),
        )
        for text, dropped in texts
    ]
    return ReadRequest(request, *layouts)


def begin(sampler: VideoSampler, request_layouts: ReadRequest) -> InitialState:
    """Returns the initial state of the solver for one request: noise, and the resized conditioning frames.

    Args:
        sampler: Sampler of the model.
        request_layouts: The checked request.
    """
    request = request_layouts.request
    condition = request.condition
    if condition is not None:
        grid = LatentGrid(*sampler.model.latent_grid)
        frames = grid.pixel_frames(request.condition_frames) if request.condition_frames else request.num_frames
        with real_values():
            condition = condition[:, :frames]
            if request.actions is None:
                condition = fit(condition, request.height, request.width)
    found = sampler.begin(
        request_layouts.conditional, request_layouts.unconditional, seed=request.seed, condition=condition
    )
    if request.actions is None:
        return found
    return sampler.add_actions(found, request.actions.rows, seed=request.seed)


def text_ids(sampler: VideoSampler, text: str, *, dropped: bool) -> Sequence[int]:
    """Tokenizes a text for the model.

    Args:
        sampler: Sampler of the model.
        text: Prompt or negative prompt.
        dropped: Whether the text is the one that training uses instead of a dropped caption.

    Raises:
        ValueError: If the text has more tokens than captions in training, where longer captions were cut.
    """
    ids, most = sampler.text_ids(text, dropped=dropped), sampler.model.defaults.max_caption_tokens
    if most is not None and len(ids) > most:
        raise ValueError(
            f"the prompt {text[:60]!r} has {len(ids)} tokens, but the model was trained with at most {most} "
            "(dataloader_train.max_caption_tokens); shorten it"
        )
    return ids


def fit(video: Tensor, height: int, width: int) -> Tensor:
    """Resizes and center-crops conditioning frames to a size, as the sampling code of `cosmos_framework` does.

    Args:
        video: The frames, uint8 [3, T, H, W].
        height: New height in pixels.
        width: New width in pixels.

    Returns:
        uint8 [3, T, height, width] on the CPU.
    """
    from av.video.frame import VideoFrame

    from worldsmith.data.clips.clip_frames import Framing

    framing = Framing((width, height), "inference")
    pictures = video.permute(1, 2, 3, 0).contiguous().cpu().numpy()
    frames = [framing(VideoFrame.from_ndarray(picture, format="rgb24")) for picture in pictures]
    return torch.from_numpy(np.stack(frames, axis=1))


def with_whole_latent_frames(request: GenerationRequest, grid: LatentGrid) -> GenerationRequest:
    frames = grid.pixel_frames(grid.latent_frames(request.num_frames))
    if frames != request.num_frames:
        logger.warning(
            "num_frames %d is not %dk+1; %d frames are generated instead", request.num_frames, grid.step, frames
        )
    return replace(request, num_frames=frames)


def check_condition(condition: Tensor, needed: int, where: str) -> None:
    shape = list(condition.shape)
    if condition.dtype != torch.uint8 or len(shape) != 4 or shape[0] != 3:
        raise ValueError(f"{where}: expected uint8 conditioning frames [3, T, H, W], found {condition.dtype} {shape}")
    if shape[1] < needed:
        raise ValueError(f"{where}: the conditioning latent frames need {needed} frames of video, found {shape[1]}")


def conditional_text(request: GenerationRequest, defaults: GenerationDefaults) -> str:
    """Returns the text of the conditional guidance branch: the prompt in the format of the training captions.

    Args:
        request: The request.
        defaults: Settings of the model's training, such as which metadata sentences end a caption.
    """
    wanted = request.structured_metadata
    if (defaults.structured_metadata if wanted is None else wanted) and is_structured(request.prompt):
        return add_metadata(request)
    if not defaults.ends_captions or request.actions is not None:
        return request.prompt
    return training_text(request, defaults, dropped=not request.prompt.strip())


def unconditional_text(request: GenerationRequest, defaults: GenerationDefaults) -> str:
    """Returns the text of the unconditional guidance branch: the negative prompt, else a dropped caption's text.

    Args:
        request: The request.
        defaults: Settings of the model's training, such as the text of dropped captions.

    Raises:
        ValueError: If metadata sentences are requested that the model was not trained with.
    """
    mode, text = request.negative_metadata, request.negative_prompt
    if mode in (None, "none") and text is None and not defaults.ends_captions:
        return ""
    if mode is None and text is None:
        return training_text(request, defaults, dropped=True)
    text = text or ""
    if mode in (None, "none"):
        return text
    shown = defaults.append_duration_fps, defaults.append_resolution
    if not any(shown):
        raise ValueError(
            f"metadata sentences ('{mode}') are requested for the negative prompt, but the captions in training "
            "had no such sentences; omit negative_metadata_mode, or set it to none"
        )
    size = request.height, request.width
    sentences = metadata_sentences(
        *shown, num_frames=request.num_frames, fps=request.fps, size=size, inverse=mode == "inverse"
    )
    own = [text.strip().rstrip(".") + "."] if text.strip().rstrip(".") else []
    return " ".join(own + sentences)


def add_metadata(request: GenerationRequest) -> str:
    """Returns a structured prompt, a JSON object, with duration, frame rate, size and aspect ratio of the request.

    The format is that of `cosmos_framework`: existing keys keep their order, new ones are appended, an image
    has neither duration nor frame rate, and non-ASCII characters are escaped.
    """
    caption: dict[str, Any] = json.loads(request.prompt)
    temporal = {"duration": f"{int(request.num_frames / request.fps)}s", "fps": float(request.fps)}
    if request.num_frames == 1:
        caption = {key: value for key, value in caption.items() if key not in temporal}
        temporal = {}
    size = {"H": request.height, "W": request.width}
    aspect = aspect_bucket(request.width, request.height)
    return json.dumps({**caption, **temporal, "resolution": size, "aspect_ratio": aspect})


def training_text(request: GenerationRequest, defaults: GenerationDefaults, *, dropped: bool) -> str:
    return render_caption(
        Caption("prompt", request.prompt, structured=is_structured(request.prompt)),
        suffix=defaults.caption_suffix,
        append_duration_fps=defaults.append_duration_fps,
        append_resolution=defaults.append_resolution,
        dropout_rate=1.0 if dropped else 0.0,
        dropout_keeps_metadata=defaults.unconditional_keeps_metadata,
        num_frames=request.num_frames,
        fps=request.fps,
        size=(request.height, request.width),
        rng=random.Random(0),
    )


def is_structured(prompt: str) -> bool:
    """Returns whether a prompt is a JSON object; raises ValueError if it is nested too deeply to be parsed."""
    if not prompt.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(prompt), dict)
    except RecursionError:
        raise ValueError(f"the prompt {prompt[:60]!r} is JSON that is nested too deeply") from None
    except ValueError:
        return False
