"""Makes the tiny parts of a FLUX pipeline that ship with Worldsmith: trains the image VAE, and draws a CLIP at random.

    python scripts/make_tiny_flux.py [--out src/worldsmith/assets/tiny_flux]
        [--checkpoint outputs/tiny_flux.pt] [--export-only]

The result has vae/, text_encoder/ and tokenizer/ (CLIP), text_encoder_2/ and tokenizer_2/ (the shipped tiny T5). It
trains in one thread for a few minutes; a run that was stopped goes on from its checkpoint.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from make_tiny_cogvideox_vae import distance_from_standard
from make_tiny_vae import State, trained
from tiny_vae_clips import to_tensor, training_clip
from torch import Tensor
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5EncoderModel

from worldsmith.assets import asset_path
from worldsmith.demo.moving_shapes import COMBINATIONS, TRAIN_COMBINATIONS, render_moving_shape, sample_scene

CHANNELS, CLIP_TOKENS = 4, 77
ARCHITECTURE = dict(
    block_out_channels=(8, 16, 32, 32),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    latent_channels=CHANNELS,
    layers_per_block=1,
    norm_num_groups=4,
    sample_size=64,
    use_quant_conv=False,
    use_post_quant_conv=False,
)
TOTAL_STEPS, DECAY_STEPS, IMAGES, OTHERS = 1200, 400, 8, 0.1
TRAIN_STREAM, STATISTICS_STREAM, HELD_OUT_STREAM = 0, 2, 3
KL_WEIGHT, MOMENTS_WEIGHT, NOISE_LEVEL = 1e-6, 1e-2, 0.2

CARD = """# Tiny components of FLUX

Very small versions of the components of a FLUX pipeline other than its transformer: an `AutoencoderKL` with {channels}
latent channels of 8x8 pixels ({parameters:.2f} M parameters), a `CLIPTextModel` with random weights, which tokenizes
letters, and the shipped tiny T5. They are stored as float16.

They allow the tiny recipe and the tests of Worldsmith to run the real code path on a CPU. The VAE reconstructs colored
shapes of 64x64 pixels and no other images: the mean PSNR of {images} held-out images is {psnr_mean:.2f} dB, the worst
{psnr_min:.2f} dB. For real images use the components of the model that you fine-tune.

`scripts/make_tiny_flux.py` created them; the VAE was trained from random weights for {steps} steps.

License: Apache-2.0, like Worldsmith.
"""


class Training(State):
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        super().__init__(seed, AutoencoderKL(**ARCHITECTURE), initialise)

    def train_step(self) -> dict[str, float]:
        rng = np.random.default_rng([self.seed, TRAIN_STREAM, self.step])
        images = to_tensor(np.stack([training_clip(rng, 1, OTHERS) for _ in range(IMAGES)]))[:, :, 0]
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        self.vae.zero_grad(set_to_none=True)
        posterior = self.vae.encode(images).latent_dist
        level = NOISE_LEVEL * torch.rand(len(images), 1, 1, 1, generator=generator)
        latents = posterior.sample(generator=generator)
        noisy = latents + level * torch.randn(latents.shape, generator=generator)
        difference = self.vae.decode(noisy).sample - images
        l1, mse = difference.abs().mean(), difference.square().mean()
        kl = 0.5 * (posterior.mean.square() + posterior.var - 1.0 - posterior.logvar).mean()
        moments = distance_from_standard(posterior.mean)
        (l1 + mse + KL_WEIGHT * kl + MOMENTS_WEIGHT * moments).backward()
        self.update(min(1.0, (TOTAL_STEPS - self.step) / DECAY_STEPS))
        return {"l1": l1.item(), "psnr": 10 * math.log10(4.0 / mse.item()), "kl": kl.item(), "moments": moments.item()}


@torch.no_grad()
def initialise(vae: AutoencoderKL) -> None:
    """Unit-gain weights in place of the framework's third, a posterior that starts narrow, so that means count."""
    for name, parameter in vae.named_parameters():
        if parameter.ndim >= 4 and name.endswith("weight"):
            parameter.mul_(3**0.5)
    vae.encoder.conv_out.bias[CHANNELS:].fill_(-4.0)


def stills(seed: int, stream: int, combinations: list) -> Tensor:
    """An image of each scene, float32 [n, 3, 64, 64]."""
    rng = np.random.default_rng([seed, stream])
    frames = [render_moving_shape(sample_scene(rng, each), frames=slice(8, 9)) for each in combinations]
    return to_tensor(np.stack(frames))[:, :, 0]


@torch.no_grad()
def export_vae(training: Training, out: Path) -> AutoencoderKL:
    """Writes the averaged weights, rounded to float16, with shift and scale of training images in the config."""
    vae = AutoencoderKL(**ARCHITECTURE).eval()
    vae.load_state_dict({name: value.half().float() for name, value in training.average.items()})
    latents = vae.encode(stills(training.seed, STATISTICS_STREAM, 4 * list(TRAIN_COMBINATIONS))).latent_dist.mode()
    shift, scale = round(latents.mean().item(), 5), round(1 / latents.std().item(), 5)
    vae.register_to_config(shift_factor=shift, scaling_factor=scale)
    vae.half().save_pretrained(out / "vae")
    return vae.float()


@torch.no_grad()
def measure(vae: AutoencoderKL, seed: int) -> dict[str, float]:
    """PSNR in dB over images never trained on."""
    images = stills(seed, HELD_OUT_STREAM, 2 * list(COMBINATIONS))
    again = vae.decode(vae.encode(images).latent_dist.mode()).sample.clamp(-1, 1)
    psnr = 10 * torch.log10(4 / (again - images).square().mean(dim=(1, 2, 3)))
    return {"psnr_mean": psnr.mean().item(), "psnr_min": psnr.min().item(), "images": len(images)}


def make_texts(out: Path, seed: int) -> None:
    """A CLIP of random weights, which reads letters, and the shipped T5."""
    signs = [*map(chr, range(33, 127))]
    pieces = ["<|startoftext|>", "<|endoftext|>", *signs, *(f"{sign}</w>" for sign in signs)]
    tokenizer = CLIPTokenizer(vocab={piece: place for place, piece in enumerate(pieces)}, merges=[])
    tokenizer.model_max_length = CLIP_TOKENS
    tokenizer.save_pretrained(out / "tokenizer")
    torch.manual_seed(seed)
    config = CLIPTextConfig(
        vocab_size=len(pieces), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=CLIP_TOKENS, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    CLIPTextModel(config).half().save_pretrained(out / "text_encoder")
    AutoTokenizer.from_pretrained(asset_path("tiny_t5")).save_pretrained(out / "tokenizer_2")
    T5EncoderModel.from_pretrained(asset_path("tiny_t5"), dtype=torch.float16).save_pretrained(out / "text_encoder_2")


def main() -> None:
    training, out = trained(Training, __doc__, "tiny_flux", TOTAL_STEPS)
    vae = export_vae(training, out)
    make_texts(out, training.seed)
    figures = measure(vae, training.seed)
    about = dict(channels=CHANNELS, steps=training.step, parameters=vae.num_parameters() / 1e6)
    (out / "README.md").write_text(CARD.format(**about, **figures))
    for name, value in figures.items():
        print(f"{name} {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
