"""Selects the caption of a clip window and builds the text for the model."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

CAPTION_KEYS = ["caption_json", "qwen3_32b_rewrite-dense", "caption"]
"""Caption keys in order of preference: the first one with a caption is used. If none has one: `LEGACY_STYLES`."""

LEGACY_STYLES = {
    f"{source}_{style}": weight
    for source in ("qwen3_235b", "qwen3_32b", "qwen3p5_397b")
    for style, weight in (("short", 0.1), ("descriptive", 0.2), ("dense", 0.7), ("temporal", 0.0))
}
"""Caption keys of older datasets and their sampling weights: one of the keys with a caption is sampled."""

EMPTY_JSON = ("{}", "[]", '""', "null")


@dataclass(frozen=True, slots=True)
class Caption:
    """Caption that was chosen for a clip window (a frame range of a clip that is one training sample).

    `render_caption` builds the text for the model from it: to a plain caption it adds the configured suffix and
    metadata sentences (duration, frame rate, size), but not to a structured caption (JSON).
    """

    key: str
    """Key of the caption in the window."""
    text: str
    structured: bool
    """Whether the text is JSON; False: a plain caption."""


def choose_caption(captions: dict[str, Any], keys: list[str], rng: random.Random) -> Caption | None:
    """Returns the caption of a window: that of the first key in `keys` that has one.

    If no key in `keys` has a caption, one of the keys of older datasets (`LEGACY_STYLES`) is sampled.

    Args:
        captions: Captions of the window by key.
        keys: Caption keys in order of preference.
        rng: Samples a key of `LEGACY_STYLES` by weight.

    Returns:
        The caption; None if the window has no caption.
    """
    for key in keys:
        if caption := read_caption(captions, key):
            return caption
    weights = {key: w for key, w in LEGACY_STYLES.items() if w > 0 and read_caption(captions, key)}
    if not weights:
        return None
    return read_caption(captions, rng.choices(list(weights), weights=list(weights.values()))[0])


def has_caption(captions: dict[str, Any], keys: list[str]) -> bool:
    """Returns whether `choose_caption` finds a caption."""
    return any(read_caption(captions, key) for key in (*keys, *(key for key, w in LEGACY_STYLES.items() if w > 0)))


def read_caption(captions: dict[str, Any], key: str) -> Caption | None:
    """Returns the caption under `key`; None if the value is missing, empty, or neither a string nor a JSON object."""
    value, structured = captions.get(key), key == "caption_json"
    if isinstance(value, dict) and value:
        return Caption(key, json.dumps(value, ensure_ascii=False), structured=True)
    if isinstance(value, str) and value.strip() and not (structured and value.strip() in EMPTY_JSON):
        return Caption(key, value, structured)
    return None


def render_caption(
    caption: Caption,
    *,
    suffix: str,
    append_duration_fps: bool,
    append_resolution: bool,
    dropout_rate: float,
    dropout_keeps_metadata: bool,
    num_frames: int,
    fps: float,
    size: tuple[int, int],
    rng: random.Random,
) -> str:
    """Builds the text of a training sample from a caption.

    A plain caption ends with exactly one period and is followed by the suffix and the metadata sentences. Whitespace
    around caption and suffix is removed. One frame is an image, which has no duration.

    Args:
        caption: Chosen caption.
        suffix: Text after every plain caption; "": no suffix.
        append_duration_fps: Append duration and frame rate to plain captions.
        append_resolution: Append the size to plain captions.
        dropout_rate: Probability of an empty text, for classifier-free guidance.
        dropout_keeps_metadata: Keep the metadata sentences of a plain caption in case of dropout.
        num_frames: Number of frames of the sample.
        fps: Frame rate of the sample.
        size: (H, W) in pixels.
        rng: Used for dropout; exactly one number is consumed.
    """
    dropped = rng.random() < dropout_rate
    if caption.structured or (dropped and not dropout_keeps_metadata):
        return "" if dropped else caption.text.strip()
    parts = []
    if not dropped:
        parts.append(caption.text.strip().rstrip(".") + ".")
        if suffix.strip():
            parts.append(suffix.strip())
    shown = append_duration_fps, append_resolution
    return " ".join(parts + metadata_sentences(*shown, num_frames=num_frames, fps=fps, size=size))


def metadata_sentences(
    duration_fps: bool, resolution: bool, *, num_frames: int, fps: float, size: tuple[int, int], inverse: bool = False
) -> list[str]:
    """Returns the metadata sentences of a caption: one on duration and frame rate, one on the frame size.

    Args:
        duration_fps: Include duration and frame rate; no effect for an image.
        resolution: Include the size.
        num_frames: Number of frames; 1 is an image.
        fps: Frame rate.
        size: (H, W) in pixels.
        inverse: Negate the sentences ("is not …"), for negative prompts.
    """
    is_image, is_ = num_frames == 1, "is not" if inverse else "is"
    sentences = []
    if duration_fps and not is_image:
        sentences.append(f"The video {is_} {num_frames / fps:.1f} seconds long and {is_} of {fps:.0f} FPS.")
    if resolution:
        sentences.append(f"This {'image' if is_image else 'video'} {is_} of {size[0]}x{size[1]} resolution.")
    return sentences
