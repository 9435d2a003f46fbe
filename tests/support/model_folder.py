"""Preprocessor files like those that lie beside a published model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SIDES = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
LEVELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
IMAGES = {**SIDES, **LEVELS, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}
VIDEOS = {**SIDES, **LEVELS, "size": {"shortest_edge": 4096, "longest_edge": 25165824}}
"""The limits of the published Qwen3-VL models."""


def write_limits(folder: Path, images: dict[str, Any] | None = None, videos: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps({**IMAGES, **(images or {})}))
    (folder / "video_preprocessor_config.json").write_text(json.dumps({**VIDEOS, **(videos or {})}))
    return folder
