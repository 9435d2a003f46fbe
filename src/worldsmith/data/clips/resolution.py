"""Sizes of clips: resolution buckets (tiers) with sizes per aspect ratio, or one size for all clips.

Tiers from 256 are a published table; 64, 96 and 128 were added here for small runs.
"""

from __future__ import annotations

import re
from itertools import chain

from worldsmith.config import WrongValueError

SIDE = 16
"""Width and height in pixels must be multiples of this number, as the video VAE with the largest stride requires."""

RESOLUTIONS: dict[str, dict[str, tuple[int, int]]] = {
    # tier: {aspect "W,H": (width, height) in pixels}
    "64": {"1,1": (64, 64), "4,3": (96, 64), "3,4": (64, 96), "16,9": (128, 64), "9,16": (64, 128)},
    "96": {"1,1": (96, 96), "4,3": (128, 96), "3,4": (96, 128), "16,9": (160, 96), "9,16": (96, 160)},
    "128": {"1,1": (128, 128), "4,3": (160, 128), "3,4": (128, 160), "16,9": (224, 128), "9,16": (128, 224)},
    "256": {"1,1": (256, 256), "4,3": (320, 256), "3,4": (256, 320), "16,9": (320, 192), "9,16": (192, 320)},
    "480": {
        "1,1": (640, 640),
        "4,3": (736, 544),
        "3,4": (544, 736),
        "16,9": (832, 480),
        "9,16": (480, 832),
        "2,3": (512, 768),  # published; no aspect leads to it
    },
    "704": {"1,1": (960, 960), "4,3": (1088, 832), "3,4": (832, 1088), "16,9": (1280, 704), "9,16": (704, 1280)},
    "720": {"1,1": (960, 960), "4,3": (1104, 832), "3,4": (832, 1104), "16,9": (1280, 720), "9,16": (720, 1280)},
    "768": {"1,1": (1024, 1024), "4,3": (1184, 880), "3,4": (880, 1184), "16,9": (1360, 768), "9,16": (768, 1360)},
    "1080": {"1,1": (1440, 1440), "4,3": (1664, 1248), "3,4": (1248, 1664), "16,9": (1920, 1080), "9,16": (1080, 1920)},
    "1280": {"1,1": (1712, 1712), "4,3": (1968, 1472), "3,4": (1472, 1968), "16,9": (2272, 1280), "9,16": (1280, 2272)},
    "2048": {"1,1": (2728, 2728), "4,3": (3160, 2368), "3,4": (2368, 3160), "16,9": (3640, 2048), "9,16": (2048, 3640)},
    "gt_2048": {
        "1,1": (5464, 5464),
        "4,3": (6304, 4728),
        "3,4": (4728, 6304),
        "16,9": (7280, 4096),
        "9,16": (4096, 7280),
    },
}


TIERS = [tier for tier, sizes in RESOLUTIONS.items() if all(side % SIDE == 0 for side in chain(*sizes.values()))]
"""Names of the resolution buckets for training. Some sizes of 1080, 2048 and gt_2048 are not multiples of `SIDE`, so
the VAE cannot encode them."""


def check_tier(tier: str, name: str = "resolution") -> None:
    """Raises WrongValueError if a resolution bucket does not exist or the VAE cannot encode its sizes.

    Args:
        tier: Name of the bucket, such as "256".
        name: Name of the config field for the message.
    """
    remedy = f"choose one of {', '.join(TIERS)}"
    if tier not in RESOLUTIONS:
        raise WrongValueError({name: tier}, why="it is not a resolution bucket", remedy=remedy)
    if tier not in TIERS:
        sizes = ", ".join(f"{w}x{h}" for w, h in RESOLUTIONS[tier].values())
        why = f"its sizes ({sizes}) are not all multiples of {SIDE} pixels, which the video VAE needs"
        raise WrongValueError({name: tier}, why=why, remedy=remedy)


def exact_size(resolution: str) -> tuple[int, int] | None:
    """Parses text such as "720x480" to (width, height) in pixels; None for other text."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", resolution)
    return (int(found[1]), int(found[2])) if found else None


def check_resolution(resolution: str) -> None:
    """Raises WrongValueError unless `resolution` is a bucket or a size (such as "720x480") that the VAE can encode."""
    size = exact_size(resolution)
    if size is None:
        check_tier(resolution)
    elif any(side % SIDE for side in size):
        nearest = "x".join(str(max(SIDE, side // SIDE * SIDE)) for side in size)
        why = f"width and height must be multiples of {SIDE} pixels, which the video VAE needs"
        raise WrongValueError({"resolution": resolution}, why=why, remedy=f"write e.g. '{nearest}'")


def aspect_bucket(width: int, height: int) -> str:
    """Returns the aspect ratio bucket "width,height" of a clip, such as "16,9": a key of each dict in `RESOLUTIONS`."""
    ratio = width / height
    for limit, name in ((0.65, "9,16"), (0.88, "3,4"), (1.16, "1,1"), (1.55, "4,3")):
        if ratio < limit:
            return name
    return "16,9"


def target_size(resolution: str, width: int, height: int) -> tuple[int, int]:
    """Returns the training size (width, height) in pixels of a clip.

    Args:
        resolution: Name of a resolution bucket, or exact size such as "720x480".
        width: Width of the source in pixels.
        height: Height of the source in pixels.
    """
    return exact_size(resolution) or RESOLUTIONS[resolution][aspect_bucket(width, height)]
