"""Requests for videos, and what becomes of them before the first step: text ids, clean frames and noise."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from worldsmith.data.clip_limits import require_clip
from worldsmith.data.clips.captions import Caption, render_caption
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.models.video_model import SampleLayout

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.models.video_model import GenerationDefaults, VideoModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One video to generate."""

    prompt: str
    """A caption, or a structured caption as a JSON object, which is used as it stands."""
    height: int
    """Pixels, whole latent cells."""
    width: int
    """Pixels, whole latent cells."""
    num_frames: int
    """Rounded up to whole latent frames, with a warning."""
    fps: float
    """Frames per second."""
    seed: int = 0
    """Fixes the noise."""
    condition: Tensor | None = None
    """uint8 [3, T, H, W] of any size: one frame for image-to-video, the opening frames for video-to-video."""
    condition_frames: int = 0
    """Clean leading latent frames: 0 text-to-video, 1 image-to-video, 2 video-to-video."""
    negative_prompt: str | None = None
    """What guidance moves away from. None: the empty caption, as in training."""

    def check(self, grid: LatentGrid) -> None:
        """Raises ValueError, naming the prompt, for sizes and conditions that no video can have."""
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
            if not text.isascii() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
                raise ValueError(f"{where}: {text[:60]!r} holds half of a surrogate pair, which is no character")
        if self.seed < 0:
            raise ValueError(f"{where}: the seed must not be negative, found {self.seed}")
        if (self.condition is None) != (self.condition_frames == 0):
            raise ValueError(
                f"{where}: condition_frames is {self.condition_frames} and there is "
                f"{'no condition' if self.condition is None else 'a condition'}; give both or neither"
            )
        if self.condition is not None:
            check_condition(self.condition, grid.pixel_frames(self.condition_frames), self.num_frames, where)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request in the network's terms."""

    start: Tensor
    """State at the highest noise level: noise, with clean frames in their place; float32 [C, t, h, w] on the device."""
    conditional: SampleLayout
    unconditional: SampleLayout


def prepare(model: VideoModel, request: GenerationRequest) -> PreparedRequest:
    """Text ids of both branches of guidance, and the start of sampling. Raises ValueError for an impossible request."""
    grid = LatentGrid(*model.latent_grid)
    request.check(grid)
    request = with_whole_latent_frames(request, grid)
    shape = grid.latent_shape(request.num_frames, request.height, request.width)
    texts = conditional_text(request, model.defaults), unconditional_text(request, model.defaults)
    layouts = [
        SampleLayout(
            text_ids=text_ids(model, text),
            latent_shape=shape,
            fps=request.fps,
            condition_frames=request.condition_frames,
        )
        for text in texts
    ]
    start = seeded_noise(request.seed, (model.latent_channels, *shape)).to(model.device)
    if request.condition is not None:
        # The first latents of any clip that begins so: the VAE is causal, what follows does not change them.
        opening = request.condition[:, : grid.pixel_frames(request.condition_frames)]
        start[:, : request.condition_frames] = model.encode(fit(opening, request.height, request.width))
    return PreparedRequest(start, *layouts)


def text_ids(model: VideoModel, text: str) -> list[int]:
    """The ids of a text. Raises ValueError for more than training ever showed: cut, it would lack its end."""
    ids, most = model.tokenize(text), model.defaults.max_caption_tokens
    if most is not None and len(ids) > most:
        raise ValueError(
            f"the prompt {text[:60]!r} has {len(ids)} tokens, and the model was trained with at most {most} "
            "(dataloader_train.max_caption_tokens); shorten it"
        )
    return ids


def conditional_text(request: GenerationRequest, defaults: GenerationDefaults) -> str:
    """The prompt as training would have written it."""
    return training_text(request, defaults, dropped=not request.prompt.strip())


def unconditional_text(request: GenerationRequest, defaults: GenerationDefaults) -> str:
    """The negative prompt as it is, or else what training showed for a dropped caption."""
    return (
        training_text(request, defaults, dropped=True) if request.negative_prompt is None else request.negative_prompt
    )


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
    """Whether a prompt is a JSON object. Raises ValueError for one that is nested too deep to be read."""
    if not prompt.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(prompt), dict)
    except RecursionError:
        raise ValueError(f"the prompt {prompt[:60]!r} is JSON that is nested too deep to be read") from None
    except ValueError:
        return False


def fit(video: Tensor, height: int, width: int) -> Tensor:
    """uint8 [3, T, H, W] of any size to the given one, as the published sampling treats conditions."""
    from av.video.frame import VideoFrame

    from worldsmith.data.clips.framing import Framing

    framing = Framing((width, height), "inference")
    pictures = video.permute(1, 2, 3, 0).contiguous().cpu().numpy()
    frames = [framing(VideoFrame.from_ndarray(picture, format="rgb24")) for picture in pictures]
    return torch.from_numpy(np.stack(frames, axis=1))


def seeded_noise(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise, float32, that depends on nothing but seed and shape: Philox is the same everywhere."""
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    return torch.from_numpy(stream.standard_normal(shape, dtype=np.float32))


def with_whole_latent_frames(request: GenerationRequest, grid: LatentGrid) -> GenerationRequest:
    frames = grid.pixel_frames(grid.latent_frames(request.num_frames))
    if frames != request.num_frames:
        logger.warning(
            "num_frames %d is not %dk+1; %d frames are generated instead", request.num_frames, grid.frames, frames
        )
    return replace(request, num_frames=frames)


def check_condition(condition: Tensor, needed: int, num_frames: int, where: str) -> None:
    shape = list(condition.shape)
    if condition.dtype != torch.uint8 or len(shape) != 4 or shape[0] != 3:
        raise ValueError(f"{where}: expected a uint8 condition [3, T, H, W], found {condition.dtype} {shape}")
    if shape[1] < needed:
        raise ValueError(
            f"{where}: its clean latent frames need {needed} frames of video, the condition has {shape[1]}"
        )
    if needed >= num_frames:
        raise ValueError(f"{where}: {needed} clean frames leave nothing to generate of num_frames={num_frames}")
