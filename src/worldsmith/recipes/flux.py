"""FLUX.1, text to image: the numbers of diffusers' examples, and a twin for a CPU with the same code path."""

from __future__ import annotations

from typing import cast

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import recipe
from worldsmith.config.sections import ActivationCheckpointingConfig, JobConfig
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.models.ema import PowerEMA
from worldsmith.models.flux.architecture import flux_dev as network_dev
from worldsmith.models.flux.architecture import flux_schnell as network_schnell
from worldsmith.models.flux.architecture import tiny
from worldsmith.models.flux.generator import FluxGenerator
from worldsmith.models.flux.text_encoder import CLIP_TOKENS, FluxTextEncoder
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_vae.moments import ImageVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.loop_config import LoopConfig, monitors
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaLinear
from worldsmith.training.trainer import Trainer

PIPELINE = "${oc.env:FLUX_PATH}"
"""A diffusers pipeline: its transformer, VAE, text encoders and tokenizers."""


@recipe("flux_dev")
def flux_dev() -> Trainer.Config:
    """FLUX.1-dev, all weights; images of a megapixel."""
    return Trainer.Config(
        job=JobConfig(experiment="flux_dev", project="flux", group="sft", name="flux_dev"),
        model=ModelSpec(
            name="flux",
            config=FluxGenerator.Config(
                network=network_dev(),
                tokenizer=ImageVAE.Config(vae_path=PIPELINE),
                text_encoder=FluxTextEncoder.Config(path=PIPELINE),
                activation_checkpointing=ActivationCheckpointingConfig(mode="full"),
                ema=PowerEMA.Config(enabled=False),
            ),
        ),
        objective=RectifiedFlow.Config(image_distribution="uniform", shift=1.0),
        optimizer=AdamW.Config(lr=1e-5, betas=[0.9, 0.999], eps=1e-8, weight_decay=1e-4),
        scheduler=LambdaLinear.Config(cycle_lengths=[500], warm_up_steps=[0], f_start=[1.0], f_max=[1.0], f_min=[1.0]),
        trainer=LoopConfig(
            max_iter=500, logging_iter=10, callbacks={"grad_clip": GradClip.Config(clip_norm=1.0), **monitors()}
        ),
        checkpoint=Checkpointer.Config(load_path=PIPELINE, save_iter=250),
        dataloader_train=VideoLoader.Config(
            dataset=VideoDataset.Config(
                path="${oc.env:DATASET_PATH}",
                resolution="768",
                num_video_frames=1,
                min_frames=1,
                conditioning_config={},
                cfg_dropout_rate=0.0,
                append_duration_fps_timestamps=False,
                append_resolution_info=False,
            ),
            packer="alike",
            max_samples_per_batch=4,
            max_caption_tokens=CLIP_TOKENS + 512,
            num_workers=4,
            latent_cache="${oc.env:WORLDSMITH_LATENT_CACHE,outputs/latent_cache}",
        ),
    )


@recipe("flux_dev_lora", starts_from="flux_dev")
def flux_dev_lora(config: Trainer.Config) -> Trainer.Config:
    """FLUX.1-dev, adapters of rank 16 in all blocks, on smaller images."""
    config.job.experiment = config.job.name = "flux_dev_lora"
    model = cast(FluxGenerator.Config, config.model.config)
    model.lora_enabled, model.lora_rank, model.lora_alpha = True, 16, 16
    config.optimizer.lr = 1e-4
    cast(VideoLoader.Config, config.dataloader_train).dataset.resolution = "512x512"
    return config


@recipe("flux_schnell_lora", starts_from="flux_dev_lora")
def flux_schnell_lora(config: Trainer.Config) -> Trainer.Config:
    """FLUX.1-schnell, which is told no guidance and shorter captions, adapters of rank 16 in all blocks."""
    config.job.experiment = config.job.name = "flux_schnell_lora"
    model = cast(FluxGenerator.Config, config.model.config)
    model.network, model.text_encoder.max_length = network_schnell(), 256
    config.dataloader_train.max_caption_tokens = CLIP_TOKENS + 256
    return config


@recipe("flux_tiny", starts_from="flux_dev")
def flux_tiny(config: Trainer.Config) -> Trainer.Config:
    """The tiny twin of flux_dev: a network of 79 thousand parameters on images of 64 pixels, on a CPU.

    VAE and text encoders stay a pipeline's, of 4 latent channels and 32 channels of text.
    """
    config.job.experiment, config.job.project, config.job.name = "flux_tiny", "worldsmith", "flux_tiny"
    model = cast(FluxGenerator.Config, config.model.config)
    model.precision = model.tokenizer.precision = model.text_encoder.precision = "float32"
    model.network, model.training_guidance = tiny(), 3.5
    model.text_encoder.max_length = 16
    model.activation_checkpointing.mode = "none"
    config.checkpoint.load_path, config.checkpoint.init = None, "scratch"
    config.optimizer.lr = 3e-3
    loader = cast(VideoLoader.Config, config.dataloader_train)
    loader.dataset.resolution, loader.max_caption_tokens, loader.num_workers = "64", CLIP_TOKENS + 16, 0
    return config
