"""Trains the tiny CogVideoX VAE that ships with Worldsmith, from procedural clips, and measures it on held-out ones.

    python scripts/make_tiny_cogvideox_vae.py [--out src/worldsmith/assets/tiny_cogvideox_vae]
        [--checkpoint outputs/tiny_cogvideox_vae.pt] [--export-only]

The result is a folder that `diffusers.AutoencoderKLCogVideoX` loads. It trains in one thread for about half an hour; a
run that was stopped goes on from its checkpoint. With the same seed the weights come out the same.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLCogVideoX
from make_tiny_vae import State, measure, trained
from tiny_vae_clips import to_tensor, training_clip
from torch import Tensor

from worldsmith.demo.moving_shapes import TRAIN_COMBINATIONS, render_moving_shape, sample_scene

CHANNELS = 8
ARCHITECTURE = dict(
    block_out_channels=(8, 16, 32, 32),
    latent_channels=CHANNELS,
    layers_per_block=1,
    norm_num_groups=4,
    sample_height=64,
    sample_width=64,
)
# (steps, frames, clips, share of other pictures): stills of plain shapes first, whole clips last. The decoder of this
# class makes 8k+1 frames and no other number.
PHASES = ((600, 1, 8, 0.1), (1400, 9, 2, 0.1), (300, 17, 2, 0.05))
TOTAL_STEPS = sum(steps for steps, *_ in PHASES)
DECAY_STEPS = 500
TRAIN_STREAM, STATISTICS_STREAM = 0, 2
KL_WEIGHT, MOMENTS_WEIGHT = 1e-6, 1e-2
# Noise on the latents: a decoder that bears it also bears the errors of a generator.
NOISE_LEVEL = 0.2

CARD = """# Tiny CogVideoX VAE

A very small `AutoencoderKLCogVideoX` (diffusers format): {channels} latent channels, 8x8 pixels and 4 frames per
latent patch, causal in time. It has {parameters:.2f} M parameters, stored as float16.

It allows the demo and the tests of Worldsmith to run the real code path on a CPU. It reconstructs moving colored shapes
of 64x64 pixels and no other videos. For real videos use the VAE of the model that you fine-tune.

`scripts/make_tiny_cogvideox_vae.py` trained it from random weights for {steps} steps, on clips that the script renders
itself.

| on {clips} held-out clips of 17 frames at 64x64 | |
|---|---|
| PSNR, mean | {psnr_mean:.2f} dB |
| PSNR, worst clip | {psnr_min:.2f} dB |
| reconstructions whose color, shape and direction are recognized correctly | {detector_share:.1%} |

License: Apache-2.0, like Worldsmith.
"""


class Training(State):
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        super().__init__(seed, AutoencoderKLCogVideoX(**ARCHITECTURE), initialise)

    def train_step(self) -> dict[str, float]:
        frames, clips, others = phase_of(self.step)
        rng = np.random.default_rng([self.seed, TRAIN_STREAM, self.step])
        video = to_tensor(np.stack([training_clip(rng, frames, others) for _ in range(clips)]))
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self.vae.zero_grad(set_to_none=True)
        posterior = self.vae.encode(video).latent_dist
        level = NOISE_LEVEL * torch.rand(len(video), 1, 1, 1, 1, generator=generator)
        latents = posterior.sample(generator=generator)
        noisy = latents + level * torch.randn(latents.shape, generator=generator)
        difference = self.vae.decode(noisy).sample - video
        l1, mse = difference.abs().mean(), difference.square().mean()
        kl = 0.5 * (posterior.mean.square() + posterior.var - 1.0 - posterior.logvar).mean()
        moments = distance_from_standard(posterior.mean)
        (l1 + mse + KL_WEIGHT * kl + MOMENTS_WEIGHT * moments).backward()
        self.update(min(1.0, (TOTAL_STEPS - self.step) / DECAY_STEPS))
        psnr = 10 * math.log10(4.0 / mse.item())
        return {"l1": l1.item(), "psnr": psnr, "kl": kl.item(), "moments": moments.item()}


def distance_from_standard(latents: Tensor) -> Tensor:
    """How far the channels are from mean 0 and deviation 1: one factor then scales them all."""
    values = latents.transpose(0, 1).flatten(1)
    return (values.mean(1).square() + (values.std(1) - 1).square()).mean()


@torch.no_grad()
def initialise(vae: AutoencoderKLCogVideoX) -> None:
    """Unit-gain weights in place of the framework's third, norms that pass what comes in, a posterior that starts
    narrow, so that means count."""
    for name, parameter in vae.named_parameters():
        if ".conv_y." in name or ".conv_b." in name:
            parameter.fill_(1.0) if name.endswith("conv_y.conv.bias") else parameter.mul_(0.3)
        elif parameter.ndim >= 4 and name.endswith("weight"):
            parameter.mul_(3**0.5)
    vae.encoder.conv_out.conv.bias[CHANNELS:].fill_(-4.0)


def phase_of(step: int) -> tuple[int, int, float]:
    """(frames, clips, share of other pictures) of a step."""
    for steps, *phase in PHASES:
        if step < steps:
            return tuple(phase)
        step -= steps
    raise ValueError("the schedule has ended")


@torch.no_grad()
def export(training: Training, out: Path) -> AutoencoderKLCogVideoX:
    """Writes the averaged weights, rounded to float16, with the scale of training clips in the config."""
    vae = AutoencoderKLCogVideoX(**ARCHITECTURE).eval()
    vae.load_state_dict({name: value.half().float() for name, value in training.average.items()})
    rng = np.random.default_rng([training.seed, STATISTICS_STREAM])
    scenes = [sample_scene(rng, c) for _ in range(4) for c in TRAIN_COMBINATIONS]
    latents = torch.cat(
        [vae.encode(to_tensor(render_moving_shape(scene)[None])).latent_dist.mode() for scene in scenes]
    )
    for channel, values in enumerate(latents.transpose(0, 1).flatten(1)):
        print(f"channel {channel}: mean {values.mean():.3f}, deviation {values.std():.3f}")
    vae.register_to_config(scaling_factor=round(1 / latents.std().item(), 5))
    vae.half().save_pretrained(out)
    return vae.float()


def main() -> None:
    training, out = trained(Training, __doc__, "tiny_cogvideox_vae", TOTAL_STEPS)
    vae = export(training, out)
    figures = measure(vae, training.seed)
    about = dict(channels=CHANNELS, steps=training.step, parameters=vae.num_parameters() / 1e6)
    (out / "README.md").write_text(CARD.format(**about, **figures))
    for name, value in figures.items():
        print(f"{name} {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
