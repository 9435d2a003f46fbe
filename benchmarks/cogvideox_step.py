"""How fast are training steps of CogVideoX here, beside the same steps after diffusers' documented recipe?

Forward, backward, clipping and AdamW (float32) over 16 moving-shapes clips of 9 frames of 64 × 64, two in a batch, with
a transformer of width 256 and 6 layers, a T5 of width 256 and 4 layers and a VAE of 32 to 128 channels, all random and
saved as a pipeline that both sides load. Four ways take turns:

- ours: `Trainer.training_step` over a full cache of latents and text states;
- encoding: the same without a cache, which decodes, encodes and reads captions in every step;
- recipe: diffusers' recipe for CogVideoX, whose clips are encoded before the first step and captions in every step;
- recipe, texts kept: the same with the captions' states kept as well.

The sides see other noise, so losses are not compared here: `tests/oracles/test_cogvideox_diffusers.py` does that.

    python benchmarks/cogvideox_step.py [--rounds 5] [--threads 1] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from side_by_side import medians
from torch import Tensor

from worldsmith.assets import asset_path
from worldsmith.config import get_recipe
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import resolve
from worldsmith.demo.moving_shapes import MovingShapes
from worldsmith.tools.encode.encode import Encode
from worldsmith.training.trainer import Trainer

CLIPS, FRAMES, SIZE, BATCH = 16, 9, 64, 2
WIDTH, LATENT, TEXT = 256, 8, 16
STEPS = 4
"""Steps of a turn."""


def make_pipeline(folder: Path, layers: int) -> None:
    """A text-to-video pipeline with random weights in the sizes above."""
    import diffusers
    from transformers import AutoTokenizer, T5Config, T5EncoderModel

    library: Any = diffusers
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(str(asset_path("tiny_t5")))
    text = T5Config(
        vocab_size=len(tokenizer), d_model=WIDTH, d_kv=64, d_ff=2 * WIDTH, num_layers=4, num_heads=4,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    vae = library.AutoencoderKLCogVideoX(
        block_out_channels=(32, 64, 64, 128), latent_channels=LATENT, layers_per_block=1, sample_height=SIZE,
        sample_width=SIZE, scaling_factor=0.7,
    )  # fmt: skip
    transformer = library.CogVideoXTransformer3DModel(
        num_attention_heads=WIDTH // 64, attention_head_dim=64, in_channels=LATENT, out_channels=LATENT,
        num_layers=layers, time_embed_dim=WIDTH, text_embed_dim=WIDTH, max_text_seq_length=TEXT,
        sample_width=SIZE // 8, sample_height=SIZE // 8, sample_frames=FRAMES, use_rotary_positional_embeddings=True,
    )  # fmt: skip
    scheduler = library.CogVideoXDPMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type="v_prediction",
        rescale_betas_zero_snr=True, snr_shift_scale=1.0, timestep_spacing="trailing", clip_sample=False,
    )  # fmt: skip
    library.CogVideoXPipeline(tokenizer, T5EncoderModel(text).eval(), vae, transformer, scheduler).save_pretrained(
        folder
    )


def our_config(folder: Path, layers: int, cache: str) -> Trainer.Config:
    config = cast(Trainer.Config, get_recipe("cogvideox_5b_tiny"))
    model = cast(Any, config.model.config)
    model.tokenizer.vae_path = model.text_encoder.path = str(folder / "pipeline")
    model.network.num_attention_heads, model.network.attention_head_dim = WIDTH // 64, 64
    model.network.in_channels = model.network.out_channels = LATENT
    model.network.time_embed_dim = model.network.text_embed_dim = WIDTH
    model.network.num_layers, model.network.max_text_seq_length = layers, TEXT
    config.checkpoint.load_path, config.checkpoint.init = str(folder / "pipeline"), "pretrained"
    data = cast(Any, config.dataloader_train)
    data.dataset.path, data.latent_cache, data.num_workers = str(folder / "data"), cache, 0
    data.max_samples_per_batch, data.dataset.caption_keys = BATCH, ["caption"]
    config.trainer.callbacks = {name: c for name, c in config.trainer.callbacks.items() if name == "grad_clip"}
    return cast(Trainer.Config, resolve(config))


def ours(config: Trainer.Config, folder: Path) -> Callable[[], None]:
    """Some steps of a run in `folder`."""
    trainer = Trainer(config, run_folder=folder)
    batches = iter(trainer.state.loader)

    def steps() -> None:
        for _ in range(STEPS):
            trainer.training_step(batches)

    return steps


class Recipe:
    """diffusers' recipe for CogVideoX: posteriors kept in memory, captions encoded in each step unless `keep_texts`."""

    def __init__(self, config: Trainer.Config, folder: Path, *, keep_texts: bool) -> None:
        import diffusers
        from diffusers.optimization import get_scheduler

        library: Any = diffusers
        pipeline = library.CogVideoXPipeline.from_pretrained(folder / "pipeline")
        self.pipeline, self.transformer, self.scheduler = pipeline, pipeline.transformer.train(), pipeline.scheduler
        for part in (pipeline.vae, pipeline.text_encoder):
            part.requires_grad_(False)
        self.clips = list(self.encoded(config))
        self.texts: dict[str, Tensor] | None = {} if keep_texts else None
        self.optimizer = torch.optim.AdamW(self.transformer.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=1e-4)
        self.rates = get_scheduler("constant", optimizer=self.optimizer)
        self.at = 0

    def encoded(self, config: Trainer.Config) -> Iterator[tuple[Any, str]]:
        """Each clip's posterior and caption, as our loader reads them."""
        from worldsmith.distributed.world import World
        from worldsmith.tasks.registry import task_of

        run = cast(Any, config)
        model = run.model.config.build(device="meta")
        model.device = torch.device("cpu")
        task = task_of("cogvideox")(
            model=model, objective=run.objective, data=run.dataloader_train, world=World(), split="train"
        )
        for sample in task.loader(dry=True).first_samples(1):
            pixels = sample.video[None].float() / 127.5 - 1
            with torch.no_grad():
                yield self.pipeline.vae.encode(pixels).latent_dist, sample.caption

    def text(self, caption: str) -> Tensor:
        if self.texts is not None and caption in self.texts:
            return self.texts[caption]
        with torch.no_grad():
            states, _ = self.pipeline.encode_prompt(
                caption, do_classifier_free_guidance=False, max_sequence_length=TEXT, device="cpu"
            )
        if self.texts is not None:
            self.texts[caption] = states
        return cast(Tensor, states)

    def __call__(self) -> None:
        for _ in range(STEPS):
            self.step()

    def step(self) -> None:
        chosen = [self.clips[(self.at + place) % len(self.clips)] for place in range(BATCH)]
        self.at += BATCH
        scale = self.pipeline.vae.config.scaling_factor
        latents = torch.cat([posterior.sample() for posterior, _ in chosen]) * scale
        latents = latents.permute(0, 2, 1, 3, 4)
        texts = torch.cat([self.text(caption) for _, caption in chosen])
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, self.scheduler.config.num_train_timesteps, (BATCH,))
        rotary = self.pipeline._prepare_rotary_positional_embeddings(SIZE, SIZE, latents.shape[1], torch.device("cpu"))
        noisy = self.scheduler.add_noise(latents, noise, timesteps)
        answer = self.transformer(
            hidden_states=noisy, encoder_hidden_states=texts, timestep=timesteps, image_rotary_emb=rotary,
            return_dict=False,
        )[0]  # fmt: skip
        clean = self.scheduler.get_velocity(answer, noisy, timesteps)
        weights = 1 / (1 - self.scheduler.alphas_cumprod[timesteps])
        while weights.ndim < clean.ndim:
            weights = weights[..., None]
        loss = (weights * (clean - latents) ** 2).reshape(BATCH, -1).mean(dim=1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.transformer.parameters(), 1.0)
        self.optimizer.step()
        self.rates.step()
        self.optimizer.zero_grad()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="1 layer, 2 clips, 1 turn: checks the program only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    layers, rounds, clips = (1, 1, BATCH) if arguments.quick else (6, arguments.rounds, CLIPS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        MovingShapes(clips=clips, val_clips=0, size=SIZE).make(folder / "data")
        make_pipeline(folder / "pipeline", layers)
        cached, encoding = (our_config(folder, layers, cache) for cache in (str(folder / "cache"), ""))
        Encode.Config().build(run=Loaded(cached)).run()
        ways = {
            "ours": ours(cached, folder / "cached"),
            "encoding": ours(encoding, folder / "encoding"),
            "recipe": Recipe(encoding, folder, keep_texts=False),
            "recipe, texts kept": Recipe(encoding, folder, keep_texts=True),
        }
        seconds = medians(ways, rounds=rounds)
    print(f"{layers} layers of width {WIDTH}, clips of {FRAMES} frames of {SIZE} × {SIZE}, {arguments.threads} threads")
    for kind, taken in seconds.items():
        rate, share = STEPS * BATCH / taken, seconds["ours"] / taken
        print(f"{kind:>20}: {rate:6.2f} samples/s, {share:5.2f} of ours (median of {rounds})")
    print(f"a step that encodes takes {seconds['encoding'] / seconds['ours']:.2f} times as long as one over caches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
