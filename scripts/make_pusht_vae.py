"""Fine-tunes the tiny VAE for natural video on demonstrations of PushT, for `make demo-actions`.

    python scripts/make_pusht_vae.py [--data examples/data/pusht_demo] [--out examples/pusht/vae]
        [--checkpoint outputs/pusht_vae.pt]

The data are those of `examples/pusht/make_dataset.py --episodes 320 --size 64`. A run that was stopped continues from
its checkpoint. It trains in one thread, in bfloat16 with float32 weights; without bfloat16 units it is slower.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import av
import numpy as np
import torch
from diffusers import AutoencoderKLWan
from make_natural_vae import noisy
from make_tiny_vae import State, new_vae, train
from torch import Tensor
from vae_stages import decode, encode

STEPS, CLIPS, FRAMES = 3000, 4, 9
TRAIN_EPISODES = 284
PEAK, WARM_UP, DECAY_PART = 0.25, 50, 0.7
FOREGROUND, FOREGROUND_WEIGHT = 24 / 127.5, 4.0
"""Pixels that differ by over FOREGROUND from the empty scene (block and robot) count 1 + FOREGROUND_WEIGHT times."""
KL_WEIGHT = 1e-6
STRONGEST, WEAKEST = 2.0, 0.1
"""Standard deviation of the latent channel with the largest effect on pixels; smallest one, relative to that."""


class Training(State):
    def __init__(self, seed: int, videos: list[np.ndarray]) -> None:
        natural = AutoencoderKLWan.from_pretrained("src/worldsmith/assets/tiny_vae_natural", torch_dtype=torch.float32)
        super().__init__(seed, new_vae(seed), lambda vae: vae.load_state_dict(natural.state_dict()))
        self.videos = videos
        scene = np.median(np.concatenate([video[::10] for video in videos]), 0)
        self.scene = torch.from_numpy(scene).permute(2, 0, 1).float()[:, None] / 127.5 - 1

    def batch(self, rng: np.random.Generator, clips: int) -> Tensor:
        """Returns random clips of the episodes: float [clips, 3, FRAMES, H, W] in [-1, 1]."""
        found = []
        for _ in range(clips):
            video = self.videos[rng.integers(len(self.videos))]
            start = rng.integers(len(video) - FRAMES + 1)
            found.append(video[start : start + FRAMES])
        return torch.from_numpy(np.stack(found)).permute(0, 4, 1, 2, 3).float() / 127.5 - 1

    def train_step(self) -> dict[str, float]:
        rng = np.random.default_rng([self.seed, self.step])
        video = self.batch(rng, CLIPS)
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            mean, logvar = encode(self.vae, video).float().chunk(2, dim=1)
            difference = decode(self.vae, noisy(mean, generator)).float() - video
        weight = 1 + FOREGROUND_WEIGHT * ((video - self.scene).abs().amax(1, keepdim=True) > FOREGROUND).float()
        share = weight / (3 * weight.sum())
        squares, distances = (share * difference.square()).sum(), (share * difference.abs()).sum()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        ((squares + 1e-6).sqrt() + distances + KL_WEIGHT * kl).backward()
        with torch.autocast("cpu", torch.bfloat16):  # for the products of matrices inside Muon
            self.update(PEAK * min(1, (self.step + 1) / WARM_UP, (STEPS - self.step) / (DECAY_PART * STEPS)))
        return {"psnr": 10 * torch.log10(4 / difference.detach().square().mean()).item(), "l1": distances.item()}


def read_video(path: Path) -> np.ndarray:
    """Returns the frames of a video: uint8 [T, H, W, 3]."""
    with av.open(str(path)) as opened:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)])


@torch.no_grad()
def export(training: Training, out: Path) -> None:
    """Writes the averaged weights, rounded to float16, with the latent statistics of 100 clips in the config.

    The config divides each latent channel by its standard deviation and multiplies it by its effect on the pixels,
    because a generator's loss counts all channels alike, also those that change almost no pixel.
    """
    vae = training.vae.eval()
    vae.load_state_dict({name: value.half().float() for name, value in training.average.items()})
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    latents = torch.cat([vae.encode(training.batch(rng, 1)).latent_dist.mode() for _ in range(100)])
    values = latents.transpose(0, 1).flatten(1)
    mean, std = values.mean(1), values.std(1)
    some, effects = latents[:6], []
    pixels = vae.decode(some).sample
    for channel in range(len(std)):
        changed = some.clone()
        noise = torch.randn(changed[:, channel].shape, generator=generator)
        changed[:, channel] += 0.5 * std[channel] * noise
        effects.append((vae.decode(changed).sample - pixels).square().mean().sqrt())
    effect = torch.stack(effects)
    scale = STRONGEST * (effect / effect.max()).clamp_min(WEAKEST)
    vae.register_to_config(
        latents_mean=[round(value, 5) for value in mean.tolist()],
        latents_std=[round(value, 5) for value in (std / scale).tolist()],
    )
    vae.half().save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("examples/data/pusht_demo"))
    parser.add_argument("--out", type=Path, default=Path("examples/pusht/vae"))
    parser.add_argument("--checkpoint", type=Path, default=Path("outputs/pusht_vae.pt"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = sorted(options.data.glob("videos/**/*.mp4"))[:TRAIN_EPISODES]
    training = Training(0, [video for video in map(read_video, files) if len(video) >= FRAMES])
    if options.checkpoint.exists():
        training.load_state_dict(torch.load(options.checkpoint, weights_only=True))
        print(f"continues from step {training.step}", flush=True)
    train(training, options.checkpoint, STEPS)
    export(training, options.out)


if __name__ == "__main__":
    main()
