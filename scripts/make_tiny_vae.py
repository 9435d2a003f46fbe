"""Trains the tiny video VAE that ships with Worldsmith, from procedural clips, and measures it on held-out ones.

    python scripts/make_tiny_vae.py [--out src/worldsmith/assets/tiny_vae] [--checkpoint outputs/tiny_vae.pt]

The result is a folder that `diffusers.AutoencoderKLWan` loads. A run that was stopped goes on from its checkpoint. With
the same seed the weights come out the same.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan, ModelMixin
from muon import Muon
from tiny_vae_clips import to_tensor, training_clip

from worldsmith.demo.adherence import detect
from worldsmith.demo.moving_shapes import COMBINATIONS, TRAIN_COMBINATIONS, render_moving_shape, sample_scene

ARCHITECTURE = dict(
    base_dim=16,
    decoder_base_dim=16,
    z_dim=48,
    dim_mult=[1, 2, 4, 4],
    num_res_blocks=1,
    attn_scales=[],
    temperal_downsample=[False, True, True],
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
    scale_factor_temporal=4,
    scale_factor_spatial=16,
)
# (steps, frames, clips, share of other pictures): stills of plain shapes first, they are cheap and teach the most;
# whole clips last, so that the last frames of a clip come out as well as the first.
PHASES = (
    (400, 1, 8, 0.05),
    (500, 5, 6, 0.2),
    (200, 9, 4, 0.2),
    (60, 17, 2, 0.2),
    (900, 17, 2, 0.1),
    (300, 17, 4, 0.1),
)
TOTAL_STEPS = sum(steps for steps, *_ in PHASES)
FIRST_CYCLE, FIRST_DECAY = 1160, 350
MUON_RATE, ADAM_RATE, SECOND_PEAK = 2e-2, 2e-3, 0.6
TRAIN_STREAM, HELD_OUT_STREAM, STATISTICS_STREAM = 0, 1, 2
EMA_DECAY = 0.995
KL_WEIGHT = 1e-6
SHARES = 2

CARD = """# Tiny video VAE

A very small `AutoencoderKLWan` (diffusers format) with the layout of the Wan 2.2 VAE: 48 latent channels, 16x16 pixels
and 4 frames per latent patch, causal in time. It has {parameters:.2f} M parameters, stored as float16.

It allows the demo and the tests of Worldsmith to run the real code path on a CPU. It reconstructs moving colored shapes
of 64x64 pixels well and other videos only roughly. For real videos use the VAE of the model that you fine-tune.

`scripts/make_tiny_vae.py` trained it from random weights for {steps} steps, on clips that the script renders itself.

| on {clips} held-out clips of 17 frames at 64x64 | |
|---|---|
| PSNR, mean | {psnr_mean:.2f} dB |
| PSNR, worst clip | {psnr_min:.2f} dB |
| reconstructions whose color, shape and direction are recognized correctly | {detector_share:.1%} |

License: Apache-2.0, like Worldsmith.
"""
# Noise on the latents, relative to their size: a decoder that bears it also bears the errors of a generator.
NOISE_LEVEL = 0.2


def main() -> None:
    training, out = trained(Training, __doc__, "tiny_vae", TOTAL_STEPS)
    vae = export(training, out, training.seed)
    figures = measure(vae, training.seed)
    (out / "README.md").write_text(CARD.format(steps=training.step, parameters=vae.num_parameters() / 1e6, **figures))
    for name, value in figures.items():
        print(f"{name} {value:.4f}", flush=True)


class State:
    """Model, averaged copy and optimisers of a training; data and noise of a step follow from the seed and the step."""

    def __init__(self, seed: int, vae: ModelMixin, start: Callable[[ModelMixin], None]) -> None:
        self.seed = seed
        self.step = 0
        self.vae = vae
        start(self.vae)
        self.average = {k: v.clone() for k, v in self.vae.state_dict().items()}
        inner = [p for n, p in self.vae.named_parameters() if is_inner_matrix(n, p)]
        chosen = {id(p) for p in inner}
        outer = [p for p in self.vae.parameters() if id(p) not in chosen]
        self.optimizers = [
            Muon(inner, MUON_RATE),
            torch.optim.AdamW(outer, ADAM_RATE, betas=(0.9, 0.99), weight_decay=0.0),
        ]

    def state_dict(self) -> dict:
        optimizers = [o.state_dict() for o in self.optimizers]
        return {"step": self.step, "vae": self.vae.state_dict(), "average": self.average, "optimizers": optimizers}

    def load_state_dict(self, state: dict) -> None:
        self.step, self.average = state["step"], state["average"]
        self.vae.load_state_dict(state["vae"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)

    def update(self, factor: float) -> None:
        """One step of the optimisers, with `factor` times their rates, and of the average."""
        for optimizer, rate in zip(self.optimizers, (MUON_RATE, ADAM_RATE)):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.vae.state_dict().items():
                self.average[name].lerp_(value, 1 - decay)
        self.step += 1


class Training(State):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, new_vae(seed), initialise)
        # Copies that share the parameters but not the feature caches: each works on its share of the batch in a thread
        # of its own. That is faster than threads inside each small operation, and its bits do not depend on them.
        self.copies = [copy.deepcopy(self.vae, {id(p): p for p in self.vae.parameters()}) for _ in range(SHARES)]
        self.threads = ThreadPoolExecutor(SHARES)

    def train_step(self) -> dict[str, float]:
        frames, clips, others = phase_of(self.step)
        rng = np.random.default_rng([self.seed, TRAIN_STREAM, self.step])
        shares = []
        for _ in self.copies:
            video = to_tensor(np.stack([training_clip(rng, frames, others) for _ in range(clips // len(self.copies))]))
            shares.append((video, torch.Generator().manual_seed(int(rng.integers(2**62)))))
        parts = list(self.threads.map(gradients, self.copies, *zip(*shares)))
        for parameter, *grads in zip(self.vae.parameters(), *(grads for grads, _ in parts)):
            found = [g for g in grads if g is not None]
            parameter.grad = sum(found) / len(found) if found else None
        self.update(rate_factor(self.step))
        return {name: float(np.mean([figures[name] for _, figures in parts])) for name in parts[0][1]}


def new_vae(seed: int) -> AutoencoderKLWan:
    torch.manual_seed(seed)
    return AutoencoderKLWan(**ARCHITECTURE, latents_mean=[0.0] * 48, latents_std=[1.0] * 48)


def gradients(
    vae: AutoencoderKLWan, video: torch.Tensor, generator: torch.Generator
) -> tuple[list[torch.Tensor | None], dict[str, float]]:
    """Gradients of the loss over one share of the batch, in the order of the parameters, and figures to show."""
    posterior = vae.encode(video).latent_dist
    latents = posterior.sample(generator=generator)
    level = NOISE_LEVEL * torch.rand(len(video), 1, 1, 1, 1, generator=generator)
    size = latents.detach().square().mean(dim=(0, 2, 3, 4), keepdim=True).sqrt()
    noisy = latents + level * size * torch.randn(latents.shape, generator=generator)
    difference = vae.decode(noisy).sample - video
    l1, mse = difference.abs().mean(), difference.square().mean()
    kl = 0.5 * (posterior.mean.square() + posterior.var - 1.0 - posterior.logvar).mean()
    grads = torch.autograd.grad(l1 + mse + KL_WEIGHT * kl, list(vae.parameters()), allow_unused=True)
    psnr = 10 * math.log10(4.0 / mse.item())
    return list(grads), {"l1": l1.item(), "psnr": psnr, "kl": kl.item(), "latent_std": posterior.mean.std().item()}


def trained(kind: type[State], about: str, name: str, total_steps: int) -> tuple[State, Path]:
    """The command line that the scripts share: a training at its end, and the folder to export to."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("src/worldsmith/assets", name))
    parser.add_argument("--checkpoint", type=Path, default=Path("outputs", f"{name}.pt"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export-only", action="store_true", help="write the newest checkpoint as it is, do not train")
    args = parser.parse_args()
    torch.set_num_threads(1)
    training = kind(args.seed)
    if args.checkpoint.exists():
        training.load_state_dict(torch.load(args.checkpoint, weights_only=True))
        print(f"going on from step {training.step}", flush=True)
    if not args.export_only:
        train(training, args.checkpoint, total_steps)
    return training, args.out


def train(training: State, checkpoint: Path, total_steps: int) -> None:
    """Trains from where it stands, shows the means of every 25 steps, saves every 100."""
    start, shown = time.monotonic(), []
    while training.step < total_steps:
        shown.append(training.train_step())
        if training.step % 25 == 0:
            line = "  ".join(f"{name} {np.mean([s[name] for s in shown]):.4f}" for name in shown[0])
            print(f"step {training.step}/{total_steps}  {line}  {time.monotonic() - start:.0f} s", flush=True)
            shown = []
        if training.step % 100 == 0 or training.step == total_steps:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            torch.save(training.state_dict(), checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)


def is_inner_matrix(name: str, parameter: torch.Tensor) -> bool:
    """A weight between two hidden layers; the first and last layers, biases and gains are better left to AdamW."""
    outer = "conv_in", "decoder.conv_out", "conv_y", "conv_b"
    return name.endswith("weight") and parameter.ndim >= 4 and not any(part in name for part in outer)


@torch.no_grad()
def initialise(vae: AutoencoderKLWan) -> None:
    """Unit-gain weights in place of the framework's third, and a posterior that starts narrow, so that means count."""
    for name, parameter in vae.named_parameters():
        if parameter.ndim >= 4 and name.endswith("weight"):
            parameter.mul_(3**0.5)
    vae.quant_conv.bias[48:].fill_(-4.0)


def phase_of(step: int) -> tuple[int, int, float]:
    """(frames, clips, share of other pictures) of a step."""
    for steps, *phase in PHASES:
        if step < steps:
            return tuple(phase)
        step -= steps
    raise ValueError("the schedule has ended")


def rate_factor(step: int) -> float:
    """Two cycles: constant with a linear end, then linear from SECOND_PEAK to almost zero."""
    if step < FIRST_CYCLE:
        return min(1.0, (FIRST_CYCLE - step) / FIRST_DECAY)
    return SECOND_PEAK * (TOTAL_STEPS - step) / (TOTAL_STEPS - FIRST_CYCLE)


@torch.no_grad()
def export(training: Training, out: Path, seed: int) -> AutoencoderKLWan:
    """Writes the averaged weights, rounded to float16, with the latent statistics of training clips in the config."""
    vae = AutoencoderKLWan(**ARCHITECTURE, latents_mean=[0.0] * 48, latents_std=[1.0] * 48).eval()
    vae.load_state_dict({name: value.half().float() for name, value in training.average.items()})
    rng = np.random.default_rng([seed, STATISTICS_STREAM])
    scenes = [sample_scene(rng, c) for _ in range(4) for c in TRAIN_COMBINATIONS]
    means = [vae.encode(to_tensor(render_moving_shape(scene)[None])).latent_dist.mode()[0] for scene in scenes]
    values = torch.stack(means).transpose(0, 1).flatten(1)
    vae.register_to_config(
        latents_mean=[round(v, 5) for v in values.mean(1).tolist()],
        latents_std=[round(v, 5) for v in values.std(1).tolist()],
    )
    vae.half().save_pretrained(out)
    return vae.float()


@torch.no_grad()
def measure(vae: AutoencoderKLWan, seed: int, rounds: int = 4) -> dict[str, float]:
    """PSNR in dB and the share of reconstructions with all three attributes read right, over clips never trained on."""
    rng = np.random.default_rng([seed, HELD_OUT_STREAM])
    errors, right = [], 0
    scenes = [sample_scene(rng, c) for _ in range(rounds) for c in COMBINATIONS]
    for scene in scenes:
        clip = render_moving_shape(scene)
        output = vae.decode(vae.encode(to_tensor(clip[None])).latent_dist.mode()).sample[0]
        again = output.add(1).mul(127.5).round().clamp(0, 255).byte().permute(1, 2, 3, 0).numpy()
        errors.append(np.mean((again.astype(np.float64) - clip) ** 2))
        found = detect(again)
        right += (found.colour, found.shape, found.direction) == scene.attributes
    psnr = [10 * math.log10(255**2 / e) for e in errors]
    return {
        "psnr_mean": float(np.mean(psnr)),
        "psnr_min": min(psnr),
        "detector_share": right / len(scenes),
        "clips": len(scenes),
    }


if __name__ == "__main__":
    main()
