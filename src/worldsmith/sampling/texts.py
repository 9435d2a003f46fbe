"""The texts of a request: what the prompt and the negative prompt become before the model reads them."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from worldsmith.data.clips.captions import Caption, metadata_sentences, render_caption
from worldsmith.data.clips.resolution import aspect_bucket

if TYPE_CHECKING:
    from worldsmith.models.video_model import GenerationDefaults
    from worldsmith.sampling.requests import GenerationRequest


def conditional_text(request: GenerationRequest, defaults: GenerationDefaults) -> str:
    """The prompt as training would have written it."""
    wanted = request.structured_metadata
    if (defaults.structured_metadata if wanted is None else wanted) and is_structured(request.prompt):
        return filled(request)
    if not defaults.ends_captions:
        return request.prompt
    return training_text(request, defaults, dropped=not request.prompt.strip())


def unconditional_text(request: GenerationRequest, defaults: GenerationDefaults) -> str:
    """The negative prompt, or else what training showed for a dropped caption.

    Raises ValueError when it is to get sentences of metadata that the model does not know.
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
            f"the negative prompt is to get metadata ('{mode}'), and the captions of the model's training had no "
            "sentences of them; leave negative_metadata_mode out, or write none"
        )
    size = request.height, request.width
    sentences = metadata_sentences(
        *shown, num_frames=request.num_frames, fps=request.fps, size=size, inverse=mode == "inverse"
    )
    own = [text.strip().rstrip(".") + "."] if text.strip().rstrip(".") else []
    return " ".join(own + sentences)


def filled(request: GenerationRequest) -> str:
    """A structured prompt with the metadata of what is generated, as published sampling writes it.

    Keys that are there keep their place, new ones go last; an image has no duration and no frame rate. Letters beyond
    ASCII are escaped.
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
    """Whether a prompt is a JSON object. Raises ValueError for one that is nested too deep to be read."""
    if not prompt.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(prompt), dict)
    except RecursionError:
        raise ValueError(f"the prompt {prompt[:60]!r} is JSON that is nested too deep to be read") from None
    except ValueError:
        return False
