"""Generation defaults from the config of a run that trains on clips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldsmith.data.clips.video_loader import clips_of_run


def clip_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns default generation settings from the config of a run that trains on clips.

    Args:
        tree: Config of the run as plain data.

    Returns:
        Field of `GenerationDefaults` -> value; None if the value depends on each clip. Fields that the config does not
        determine are missing.
    """
    loader = tree["dataloader_train"]
    found = {"max_caption_tokens": loader["max_caption_tokens"], **sample_guidance(tree)}
    clips = clips_of_run(tree)
    if clips is None:
        return found | ({"num_frames": loader["dataset"]["steps"] + 1} if "steps" in loader["dataset"] else {})
    return found | {
        "num_frames": clips.num_video_frames if clips.num_video_frames > 0 else None,
        "fps": clips.conditioning_fps if clips.conditioning_fps > 0 else None,
        "append_duration_fps": clips.append_duration_fps_timestamps,
        "append_resolution": clips.append_resolution_info,
        "caption_suffix": clips.caption_suffix,
        "unconditional_keeps_metadata": clips.cfg_dropout_keep_metadata,
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
        dataset = tree["dataloader_train"]["dataset"]
        members = dataset.get("datasets", {"": dataset}).values()
        shifts = {shift.get(member["resolution"]) for member in members}
        shift = shifts.pop() if len(shifts) == 1 else None
    return None if shift is None else float(shift)
