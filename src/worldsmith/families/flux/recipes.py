"""FLUX.1, text to image: the numbers of diffusers' examples, and a tiny variant for a CPU with the same code path."""

from __future__ import annotations

from typing import cast

from worldsmith.config import recipe
from worldsmith.config.sections import ActivationCheckpointingConfig
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.diffusers_pipeline.base_recipe import (
    clip_loader_settings,
    make_tiny_pipeline,
    pipeline_run,
    rename_run,
    train_adapters,
)
from worldsmith.families.flux.architecture import flux_dev as network_dev
from worldsmith.families.flux.architecture import flux_schnell as network_schnell
from worldsmith.families.flux.architecture import tiny
from worldsmith.families.flux.model import FluxGenerator
from worldsmith.families.flux.text_encoder import CLIP_TOKENS, FluxTextEncoder
from worldsmith.families.variables import CLIPS, hub_variable_advice
from worldsmith.models.ema import PowerEMA
from worldsmith.models.video_vae.posterior import ImageVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaLinear
from worldsmith.training.trainer import Trainer

PIPELINE = "${oc.env:FLUX_PATH}"
"""A diffusers pipeline with transformer, VAE, text encoders and tokenizers."""


def flux_weights_advice(name: str) -> dict[str, str]:
    """Returns {"FLUX_PATH": how to get the weights `name`}, shown if this environment variable is not set."""
    return hub_variable_advice("FLUX_PATH", f"black-forest-labs/{name}")


@recipe("flux_dev", variables={**CLIPS, **flux_weights_advice("FLUX.1-dev")})
def flux_dev() -> Trainer.Config:
    """Full fine-tuning of FLUX.1-dev on images of one megapixel."""
    return pipeline_run(
        "flux_dev",
        FluxGenerator.Config(
            network=network_dev(),
            tokenizer=ImageVAE.Config(vae_path=PIPELINE),
            text_encoder=FluxTextEncoder.Config(path=PIPELINE),
            activation_checkpointing=ActivationCheckpointingConfig(mode="selective"),
            ema=PowerEMA.Config(enabled=False),
        ),
        load_path=PIPELINE,
        steps=500,
        callbacks={"EveryNDrawSample": DrawVideos.Config(steps=28, guidance=[3.5])},
        objective=RectifiedFlow.Config(image_distribution="uniform", shift=1.0),
        optimizer=AdamW.Config(lr=1e-5, betas=[0.9, 0.999], eps=1e-8, weight_decay=1e-4),
        scheduler=LambdaLinear.Config(cycle_lengths=[500], warm_up_steps=[0], f_start=[1.0], f_max=[1.0], f_min=[1.0]),
        dataloader_train=VideoLoader.Config(
            max_samples_per_batch=4,
            **clip_loader_settings("768", 1, max_caption_tokens=CLIP_TOKENS + 512, cfg_dropout_rate=0.0),
        ),
    )


@recipe("flux_dev_lora", starts_from="flux_dev")
def flux_dev_lora(config: Trainer.Config) -> Trainer.Config:
    """LoRA of rank 16 in all blocks of FLUX.1-dev, on images of 512x512 px."""
    train_adapters(config, "flux_dev_lora", rank=16, alpha=16, lr=1e-4)
    cast(VideoLoader.Config, config.dataloader_train).dataset.resolution = "512x512"
    return config


@recipe("flux_schnell_lora", starts_from="flux_dev_lora", variables=flux_weights_advice("FLUX.1-schnell"))
def flux_schnell_lora(config: Trainer.Config) -> Trainer.Config:
    """LoRA of rank 16 in all blocks of FLUX.1-schnell, on images of 512x512 px and captions of up to 256 T5 tokens."""
    rename_run(config, "flux_schnell_lora")
    model = cast(FluxGenerator.Config, config.model.config)
    model.network, model.text_encoder.max_length = network_schnell(), 256
    config.dataloader_train.max_caption_tokens = CLIP_TOKENS + 256
    config.trainer.callbacks["EveryNDrawSample"] = DrawVideos.Config(steps=4, guidance=[1.0])
    return config


@recipe("flux_tiny", starts_from="flux_dev")
def flux_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of flux_dev: 81 thousand parameters, on a CPU."""
    make_tiny_pipeline(config, "flux_tiny", tiny())
    model = cast(FluxGenerator.Config, config.model.config)
    model.tokenizer.vae_path = model.text_encoder.path = "${asset:tiny_flux}"
    model.training_guidance, model.text_encoder.max_length = 3.5, 16
    config.dataloader_train.max_caption_tokens = CLIP_TOKENS + 16
    return config
