"""Trains the tiny video VAE for natural video that ships with Worldsmith, on procedural clips only.

    python scripts/make_natural_vae.py [--out src/worldsmith/assets/tiny_vae_natural]
        [--checkpoint outputs/tiny_vae_natural.pt] [--export-only]

The result is a folder that `diffusers.AutoencoderKLWan` loads. A run that was stopped goes on from its checkpoint, with
freshly rendered clips. It trains in one thread, in bfloat16 with float32 weights; without bfloat16 units it is slower.
"""

from __future__ import annotations

import math
import time
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from block_code import BlockCode
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify
from make_tiny_vae import ARCHITECTURE, State, initialise, new_vae, trained
from natural_vae_clips import Scenes, training_clip
from torch import Tensor
from vae_stages import decode, encode, features, prepare

# (what is trained, steps, frames, clips, side, rate, its end): the decoder learns to read a fixed linear code, from
# coarse to fine (1 to 3 up-blocks, then all); the encoder's linear skeleton learns to write it; then both go on alone.
PHASES = (
    ("1", 500, 9, 8, 64, 1.0, 0.1),
    ("2", 400, 9, 6, 64, 1.0, 0.1),
    ("decoder", 500, 9, 4, 64, 1.0, 0.3),
    ("encoder", 500, 9, 6, 64, 1.0, 0.05),
    ("all", 100, 9, 4, 64, 0.7, 0.7),
    ("coarse", 500, 9, 4, 64, 0.6, 0.6),
    ("all", 800, 9, 3, 64, 0.5, 0.0),
    ("all", 200, 9, 2, 96, 0.25, 0.146),
    ("all", 230, 17, 2, 64, 0.174, 0.0),
    ("all", 770, 17, 2, 96, 0.5, 0.468),
    ("all", 800, 17, 1, 96, 0.33, 0.2),
    ("all", 999, 17, 1, 96, 0.19, 0.0),
    ("all", 2001, 17, 1, 96, 0.3, 0.18),
    ("all", 1100, 17, 1, 96, 0.18, 0.0),
)
TOTAL_STEPS = sum(steps for _, steps, *_ in PHASES)
SCENES, CODE_CLIPS, RING = 120, 1000, 256
TRAIN_STREAM, HELD_OUT_STREAM, STATISTICS_STREAM, SCENE_STREAM, CODE_STREAM, RING_STREAM = range(6)
KL_WEIGHT = 1e-6
# Noise on the latents, relative to their size: a decoder that bears it also bears some errors of a generator.
NOISE_LEVEL = 0.06

CARD = """# Tiny video VAE for natural video

A very small `AutoencoderKLWan` (diffusers format) with the layout of the Wan 2.2 VAE: 48 latent channels, 16x16 pixels
and 4 frames per latent patch, causal in time. It has {parameters:.2f} M parameters, stored as float16.

It allows examples on real clips to run the real code path on a CPU. It reconstructs the large structure and the motion
of natural video; fine texture becomes soft, edges show slight ringing, colors become somewhat dull. For serious work
use the VAE of the model that you fine-tune.

`scripts/make_natural_vae.py` trained it for {steps} steps on clips that the script renders itself: dead leaves with
power-law sizes, textures, moving cameras and objects. No recorded image or clip was used.

| on {clips} procedural clips with other motions, 17 frames at 64x64 | |
|---|---|
| PSNR, mean | {psnr_mean:.2f} dB |
| PSNR, worst clip | {psnr_min:.2f} dB |

`benchmarks/vae_real_clips.py DIR` measures it on real clips.

License: Apache-2.0, like Worldsmith.
"""


class Training(State):
    """One clip is rendered for every two that are used: the clips of a step come from a ring of older ones."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, new_vae(seed), start)
        self.scenes = Scenes(np.random.default_rng([seed, SCENE_STREAM]), SCENES)
        self.ring = torch.zeros(0)
        self.readout: Tensor | None = None

    @cached_property
    def codes(self) -> tuple[BlockCode, BlockCode]:
        """The linear code that is the teacher, and one of smaller blocks for the decoder's first up-block."""
        clips = self.render(np.random.default_rng([self.seed, CODE_STREAM]), CODE_CLIPS, 5, 64)
        return BlockCode(clips), BlockCode(clips, frames=2, side=8, channels=64)

    def render(self, rng: np.random.Generator, count: int, frames: int, side: int) -> Tensor:
        return torch.stack([training_clip(rng, self.scenes, frames, side) for _ in range(count)])

    def batch(self, rng: np.random.Generator, frames: int, clips: int, side: int) -> Tensor:
        if self.ring.shape[2:4] != (frames, side):
            self.ring = self.render(np.random.default_rng([self.seed, RING_STREAM, self.step]), RING, frames, side)
        if rng.random() < clips / 2:  # at most one
            self.ring[int(rng.integers(RING))] = self.render(rng, 1, frames, side)[0]
        video = self.ring[torch.from_numpy(rng.choice(RING, clips, replace=False))]
        return video.flip([axis for axis in (3, 4) if rng.random() < 0.5])

    def train_step(self) -> dict[str, float]:
        part, rate, (frames, clips, side) = phase_of(self.step)
        rng = np.random.default_rng([self.seed, TRAIN_STREAM, self.step])
        began = time.process_time()
        video = self.batch(rng, frames, clips, side)
        rendering = time.process_time() - began
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self.vae.encoder.requires_grad_(part in ("encoder", "coarse", "all"))
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            errors, kl = self.errors(part, video, generator)
        # Between the mean error, which only sees the hardest clips, and its logarithm, which only sees the easiest.
        ((errors + 1e-5).sqrt().mean() + KL_WEIGHT * kl).backward()
        with torch.autocast("cpu", torch.bfloat16):  # for the products of matrices inside Muon
            self.update(rate)
        return {
            "rmse": errors.detach().sqrt().mean().item(),
            "psnr": 10 * torch.log10(4 / errors.detach().clamp_min(1e-6)).mean().item(),
            "kl": torch.as_tensor(kl).item(),
            "rendering": rendering,
            "cpu": time.process_time() - began,
        }

    def errors(self, part: str, video: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor | float]:
        """(mean squared error of every clip in pixel values, divergence of the latents)"""
        if part == "all":
            mean, logvar = encode(self.vae, video).float().chunk(2, dim=1)
            output = decode(self.vae, noisy(mean, generator)).clamp(-1, 1)
            return squares(output, video), 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar).mean()
        if part == "coarse":
            latents = encode(self.vae, video, plain=2)[:, :48]
            read = features(self.vae, noisy(latents, generator), 2).float()
            if self.readout is None:
                self.readout = regression(read.detach(), patchify(video, 4))
            found = torch.einsum("oc,bcthw->bothw", self.readout, with_ones(read))
            return squares(found, patchify(video, 4)), 0.5 * latents.float().square().mean()
        code, middle = self.codes
        target = code.encode(video)
        if part == "encoder":
            found = encode(self.vae, video, plain=5)[:, :48].float()
            single, group = ((1 / scale.square()).view(-1, 1, 1, 1) for scale in code.scales)
            error = (found - target).square()
            error = torch.cat([error[:, :, :1] * single, error[:, :, 1:] * group], 2)
            return error.flatten(1).sum(1) / video[0].numel(), 0.0
        target = noisy(target, generator)
        if part == "decoder":
            return squares(decode(self.vae, target).clamp(-1, 1), video), 0.0
        read = features(self.vae, target, int(part)).float()
        if part == "1":
            return (read - middle.coefficients(video)).square().flatten(1).sum(1) / video[0].numel(), 0.0
        wanted = patchify(video, 4)
        return squares(read[:, : wanted.shape[1]], wanted), 0.0


def start(vae: AutoencoderKLWan) -> None:
    initialise(vae)
    prepare(vae)


def squares(output: Tensor, video: Tensor) -> Tensor:
    return (output.float() - video).square().flatten(1).mean(1)


def with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones_like(features[:, :1])], 1)


def regression(features: Tensor, wanted: Tensor) -> Tensor:
    """The matrix [outputs, channels + 1] that best reads `wanted` out of the channels of every position."""
    inputs = with_ones(features).transpose(0, 1).flatten(1).double()
    square = inputs @ inputs.T
    square += 1e-4 * square.diagonal().mean() * torch.eye(len(square), dtype=torch.double)
    return torch.linalg.solve(square, inputs @ wanted.transpose(0, 1).flatten(1).double().T).T.float()


def noisy(latents: Tensor, generator: torch.Generator) -> Tensor:
    level = NOISE_LEVEL * torch.rand(len(latents), 1, 1, 1, 1, generator=generator)
    size = latents.detach().float().square().mean(dim=(0, 2, 3, 4), keepdim=True).sqrt()
    return latents + level * size * torch.randn(latents.shape, generator=generator)


def phase_of(step: int) -> tuple[str, float, tuple[int, int, int]]:
    """(what is trained, rate, (frames, clips, side)) of a step."""
    for part, steps, frames, clips, side, first, last in PHASES:
        if step < steps:
            done = step / steps
            falling = first + (last - first) * done if part == "all" else max(last, first * min(1.0, 2 - 2 * done))
            return part, min(falling, (step + 1) / 30), (frames, clips, side)
        step -= steps
    raise ValueError("the schedule has ended")


@torch.no_grad()
def export(training: Training, out: Path) -> AutoencoderKLWan:
    """Writes the averaged weights, rounded to float16, with the latent statistics of training clips in the config."""
    vae = AutoencoderKLWan(**ARCHITECTURE, latents_mean=[0.0] * 48, latents_std=[1.0] * 48).eval()
    vae.load_state_dict({name: value.half().float() for name, value in training.average.items()})
    clips = training.render(np.random.default_rng([training.seed, STATISTICS_STREAM]), 48, 17, 64)
    means = torch.cat([vae.encode(clip[None]).latent_dist.mode() for clip in clips])
    values = means.transpose(0, 1).flatten(1)
    vae.register_to_config(
        latents_mean=[round(v, 5) for v in values.mean(1).tolist()],
        latents_std=[round(v, 5) for v in values.std(1).tolist()],
    )
    vae.half().save_pretrained(out)
    return vae.float()


@torch.no_grad()
def measure(vae: AutoencoderKLWan, clips: Tensor) -> list[float]:
    """PSNR in dB of clips that were never trained on."""
    outputs = (vae.decode(vae.encode(clip[None]).latent_dist.mode()).sample for clip in clips)
    return [10 * math.log10(4 / squares(output, clip[None]).item()) for output, clip in zip(outputs, clips)]


def main() -> None:
    training, out = trained(Training, __doc__, "tiny_vae_natural", TOTAL_STEPS)
    vae = export(training, out)
    held_out = training.render(np.random.default_rng([training.seed, HELD_OUT_STREAM]), 32, 17, 64)
    psnr = measure(vae, held_out)
    figures = {"psnr_mean": np.mean(psnr), "psnr_min": min(psnr), "clips": len(psnr)}
    (out / "README.md").write_text(CARD.format(steps=training.step, parameters=vae.num_parameters() / 1e6, **figures))
    for name, value in figures.items():
        print(f"{name} {value:.2f}", flush=True)


if __name__ == "__main__":
    main()
