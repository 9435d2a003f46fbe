"""How many tokens a sample costs in a pack, and the shape of its latents."""

from __future__ import annotations

SPATIAL_COMPRESSION = 16
TEMPORAL_COMPRESSION = 4
PATCH = 2


def usable_frames(num_frames: int) -> int:
    """Largest 4k + 1 that is not above `num_frames`: what a causal video VAE can encode."""
    return (num_frames - 1) // TEMPORAL_COMPRESSION * TEMPORAL_COMPRESSION + 1


def latent_shape(num_frames: int, height: int, width: int) -> tuple[int, int, int]:
    """(t, h, w) of the latents of [num_frames, height, width] pixels; the first latent frame covers one pixel frame."""
    return 1 + (num_frames - 1) // TEMPORAL_COMPRESSION, height // SPATIAL_COMPRESSION, width // SPATIAL_COMPRESSION


def vision_tokens(num_frames: int, height: int, width: int) -> int:
    """Tokens of a clip: 2x2 latent patches, an odd side padded up (ceil)."""
    t, h, w = latent_shape(num_frames, height, width)
    return t * -(-h // PATCH) * -(-w // PATCH)


def sample_tokens(num_text_ids: int, num_frames: int, height: int, width: int) -> int:
    """Tokens that the packer counts: text + 1 + (vision + 2). It is one above the packed length, as published."""
    return num_text_ids + 1 + vision_tokens(num_frames, height, width) + 2
