"""What diffusers and transformers hold of CogVideoX beside its transformer, in 16 bits, simulated without memory.

python benchmarks/diffusers_beside.py
"""

from __future__ import annotations

from functools import cache

import torch

from worldsmith.families.diffusers_pipeline.published import T5_XXL
from worldsmith.planning.simulation.fake_world import fake_tensor_mode
from worldsmith.planning.simulation.memory_tracker import MemoryTracker

CLIP, LONG_CLIP = (49, 480, 720), (81, 768, 1360)
"""Frames, height and width that CogVideoX and CogVideoX 1.5 are fine-tuned on."""
TOKENS = 226


@cache
def held_beside(clip: tuple[int, int, int], work: str, *, tiles: bool) -> int:
    """Bytes at the worst moment of T5-XXL and the VAE while one caption and one clip are encoded, or a clip decoded.

    `work`: "encode" or "decode". `tiles`: with the VAE's tiles and slices.
    """
    from diffusers import AutoencoderKLCogVideoX
    from transformers import T5Config, T5EncoderModel

    frames, height, width = clip
    with torch.device("meta"):
        vae = AutoencoderKLCogVideoX().requires_grad_(False).half()
        text_encoder = T5EncoderModel(T5Config(**T5_XXL)).requires_grad_(False).half()
    if tiles:
        vae.enable_slicing()
        vae.enable_tiling()
    mode = fake_tensor_mode()
    tracker = MemoryTracker(mode)
    with mode, tracker:
        vae.to_empty(device="cpu")
        text_encoder.to_empty(device="cpu")
        with tracker.phase(work):
            if work == "encode":
                text_encoder(torch.zeros(1, TOKENS, dtype=torch.long))
                vae.encode(torch.zeros(1, 3, frames, height, width, dtype=torch.half)).latent_dist.sample()
            else:
                latent = (1, vae.config.latent_channels, (frames - 1) // 4 + 1, height // 8, width // 8)
                vae.decode(torch.zeros(latent, dtype=torch.half))
    return next(phase.peak for phase in tracker.phases() if phase.name == work)


if __name__ == "__main__":
    for clip in (CLIP, LONG_CLIP):
        for work in ("encode", "decode"):
            for tiles in (True, False):
                print(
                    clip,
                    work,
                    "with tiles" if tiles else "whole",
                    f"{held_beside(clip, work, tiles=tiles) / 1e9:.1f} GB",
                )
