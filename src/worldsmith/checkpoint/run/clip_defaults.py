"""Defaults for generation, from the config of a run that trains on clips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def clip_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields of `GenerationDefaults` from a run's config; sizes that depend on its data are None."""
    loader = tree["dataloader_train"]
    dataset = loader["dataset"]
    return {
        "num_frames": dataset["num_video_frames"] if dataset["num_video_frames"] > 0 else None,
        "fps": dataset["conditioning_fps"] if dataset["conditioning_fps"] > 0 else None,
        "append_duration_fps": dataset["append_duration_fps_timestamps"],
        "append_resolution": dataset["append_resolution_info"],
        "caption_suffix": dataset["caption_suffix"],
        "unconditional_keeps_metadata": dataset["cfg_dropout_keep_metadata"],
        "max_caption_tokens": loader["max_caption_tokens"],
        **sample_guidance(tree),
    }


def sample_guidance(tree: Mapping[str, Any]) -> dict[str, float]:
    """Returns the guidance scale of the samples that a run generates while it trains.

    Empty if the run generates no samples, or at several scales: then the default of the model family applies.
    """
    scales = tree.get("trainer", {}).get("callbacks", {}).get("EveryNDrawSample", {}).get("guidance", [])
    return {"guidance": float(scales[0])} if len(scales) == 1 else {}


def shift_of(tree: Mapping[str, Any]) -> float | None:
    """Returns the shift of the noise of a run's videos; None where it depends on each clip's size: a table without
    its tier."""
    shift = tree["objective"]["shift"]
    if isinstance(shift, dict):
        shift = shift.get(tree["dataloader_train"]["dataset"]["resolution"])
    return None if shift is None else float(shift)
