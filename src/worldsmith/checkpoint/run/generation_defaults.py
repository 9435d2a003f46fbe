"""Generation defaults from the config of a run that trains on clips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def clip_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns default generation settings from the config of a run that trains on clips.

    Args:
        tree: Config of the run as plain data.

    Returns:
        Field of `GenerationDefaults` -> value; None if the value depends on each clip. Fields that the config does not
        determine are missing.
    """
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
    """Returns {"guidance": scale} with the guidance scale of the samples that a run generates during training.

    The dict is empty if the run (config as plain data) generates no samples or uses several scales; the default of the
    model family applies then.
    """
    scales = tree.get("trainer", {}).get("callbacks", {}).get("EveryNDrawSample", {}).get("guidance", [])
    return {"guidance": float(scales[0])} if len(scales) == 1 else {}


def shift_of(tree: Mapping[str, Any]) -> float | None:
    """Returns the noise schedule shift of a run (config as plain data); None if it depends on the size of each clip."""
    shift = tree["objective"]["shift"]
    if isinstance(shift, dict):
        shift = shift.get(tree["dataloader_train"]["dataset"]["resolution"])
    return None if shift is None else float(shift)
