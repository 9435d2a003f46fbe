"""Frames, loading, and names of a training spec."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from worldsmith.dialects.cosmos_rl.rules import BOUNDS, PIXELS, RESIZED, drop_overruled
from worldsmith.dialects.cosmos_rl.train.sources import TRAIN, put_caps
from worldsmith.dialects.translation import SpecTranslation, computed, format_value

VISION = "custom.vision"
FALLBACK = {"fps": 1.0, "max_pixels": 81_920}
"""Settings of videos of the data script of TAO and Cosmos-Reason1."""
LOADERS = ("dataloader_train", "dataloader_val")


@computed("policy.model_max_length")
def longest(t: SpecTranslation) -> None:
    """The cap of a sample; a pack stays below its own, in which as many samples of that length have room."""
    source, mini = "policy.model_max_length", t.get("train.train_policy.mini_batch")
    longest = t.get(source)
    put_caps(t, "dataloader_train", mini, source)
    text = f"dataloader_train.max_sample_tokens = {longest}; a longer sample is left out, never cut"
    if mini > 1:
        text += f"; a pack of {mini} may have {mini * longest} tokens, as there"
    t.report(source, "renamed", text)


@computed(VISION)
def training_frames(t: SpecTranslation) -> None:
    given = {name: t.get(f"{VISION}.{name}") for name in FRAMES if t.get(f"{VISION}.{name}") is not None}
    for name in ("video_start", "video_end"):
        if t.get(f"{VISION}.{name}") is not None:
            why = "every video is shown from its first frame to its last"
            t.refuse(f"{VISION}.{name}", why, "cut the clips beforehand")
    drop_overruled(t, f"{VISION}.", given, by_fps="nframes" not in given)
    if "fps" in given and "nframes" in given:
        why = "fps and nframes both say how many frames are taken"
        t.refuse(f"{VISION}.nframes", why, f"~{VISION}.nframes or ~{VISION}.fps")
        return
    put_frames(t, {"video_limits": "qwen_vl_utils"})
    script, default = default_frames(t)
    if not t.is_stated(VISION):
        put_frames(t, default)
        text = f"left out: {format_value(default)}, as the data script of {script} has it"
        t.report(VISION, "approximated", text, warn=True)
    elif "total_pixels" in default and not given.keys() & {"total_pixels", "resized_height"}:
        put_frames(t, {"total_pixels": default["total_pixels"]})
        text = (
            f"left out: dataloader_train.processor.media.total_pixels = {default['total_pixels']}, as {script} has it"
        )
        t.report(f"{VISION}.total_pixels", "approximated", text)
    elif "total_pixels" in default and "total_pixels" in given:
        text = f"kept, where {script} replaces it by {default['total_pixels'] // 2} (0.9 x model_max_length x 1024)"
        t.report(VISION, "approximated", text, warn=True)
    if "total_pixels" in given:
        given["total_pixels"] *= 2
    put_frames(t, given)
    for name, value in given.items():
        text = "; there two frames count once, here each" if name == "total_pixels" else ""
        t.report(
            f"{VISION}.{name}", "renamed", f"dataloader_train.processor.media.{name} = {format_value(value)}{text}"
        )


def default_frames(t: SpecTranslation) -> tuple[str, dict[str, Any]]:
    """The data script that belongs to a spec, and its settings of videos.

    That of Cosmos-Reason2 reads `custom.dataset` too and knows no limit of a frame, but one of a video: 0.9 x
    model_max_length tokens of 32 x 32 pixels in two frames.
    """
    name = t.get("policy.model_name_or_path") or ""
    if t.get(TRAIN) is None and is_reason2(name):
        return "Cosmos-Reason2", {"fps": 1.0, "total_pixels": 2 * int(t.get("policy.model_max_length") * 1024 * 0.9)}
    return "TAO and Cosmos-Reason1", FALLBACK


def is_reason2(name: str) -> bool:
    """Whether a model is a Cosmos-Reason2, or a Qwen3-VL, as far as its name or its folder tells."""
    with suppress(OSError, ValueError, AttributeError):
        config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
        return str(config.get("model_type")).startswith("qwen3_vl")
    return re.search(r"reason-?2|qwen3-vl", name.rstrip("/").rpartition("/")[2].lower()) is not None


def put_frames(t: SpecTranslation, values: dict[str, Any]) -> None:
    for loader in LOADERS if t.get("validation.enable") else LOADERS[:1]:
        for name, value in values.items():
            t.put(f"{loader}.processor.media.{name}", value, source=f"{VISION}.{name}")


@computed(
    *(f"train.train_policy.dataloader_{name}" for name in ("num_workers", "prefetch_factor")),
    *(f"validation.dataloader_{name}" for name in ("num_workers", "prefetch_factor")),
)
def readers(t: SpecTranslation) -> None:
    for loader, above in zip(LOADERS, ("train.train_policy.", "validation.")):
        workers, ready = f"{above}dataloader_num_workers", f"{above}dataloader_prefetch_factor"
        t.move(workers, f"{loader}.num_workers", "renamed")
        if t.get(workers):
            t.move(ready, f"{loader}.prefetch_factor", "renamed")
        elif t.is_stated(ready):
            t.report(ready, "dead", f"{workers} is 0: nobody reads ahead")


FRAMES = ("fps", "nframes", *BOUNDS, *PIXELS, *RESIZED)
