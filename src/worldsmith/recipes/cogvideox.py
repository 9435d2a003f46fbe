"""CogVideoX, text to video: the numbers of its published fine-tuning, and twins for a CPU with the same code path."""

from __future__ import annotations

from typing import cast

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import recipe, ref
from worldsmith.config.sections import ActivationCheckpointingConfig, JobConfig
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.models.cogvideox.architecture import cogvideox_2b as network_2b
from worldsmith.models.cogvideox.architecture import cogvideox_5b as network_5b
from worldsmith.models.cogvideox.architecture import tiny
from worldsmith.models.cogvideox.generator import CogVideoXGenerator
from worldsmith.models.pipeline.text_encoder import T5TextEncoder
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE
from worldsmith.objectives.v_prediction import VPrediction
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.loop_config import LoopConfig, monitors
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaLinear
from worldsmith.training.trainer import Trainer

PIPELINE = "${oc.env:COGVIDEOX_PATH}"
"""A diffusers pipeline: its transformer, VAE, text encoder and tokenizer."""


@recipe("cogvideox_2b")
def cogvideox_2b() -> Trainer.Config:
    """CogVideoX-2B, all weights; clips of 49 frames at tier 480."""
    return Trainer.Config(
        job=JobConfig(experiment="cogvideox_2b", project="cogvideox", group="sft", name="cogvideox_2b"),
        model=ModelSpec(
            name="cogvideox",
            config=CogVideoXGenerator.Config(
                network=network_2b(),
                tokenizer=CogVideoXVAE.Config(vae_path=PIPELINE),
                text_encoder=T5TextEncoder.Config(
                    path=PIPELINE, max_length=ref("model.config.network.max_text_seq_length")
                ),
                activation_checkpointing=ActivationCheckpointingConfig(mode="full"),
            ),
        ),
        objective=VPrediction.Config(shift_scale=3.0),
        optimizer=AdamW.Config(lr=1e-5, betas=[0.9, 0.95], eps=1e-8, weight_decay=1e-4),
        # A twentieth of the rate for 100 steps, then down to a hundredth.
        scheduler=LambdaLinear.Config(
            cycle_lengths=[99, 901], warm_up_steps=[0, 0], f_start=[0.05, 0.91], f_max=[0.05, 0.91], f_min=[0.05, 0.009]
        ),
        trainer=LoopConfig(
            max_iter=1000, logging_iter=20, callbacks={"grad_clip": GradClip.Config(clip_norm=0.1), **monitors()}
        ),
        checkpoint=Checkpointer.Config(load_path=PIPELINE, save_iter=500),
        dataloader_train=VideoLoader.Config(
            dataset=VideoDataset.Config(
                path="${oc.env:DATASET_PATH}",
                resolution="480",
                num_video_frames=49,
                min_frames=49,
                temporal_interval_mode="entire_chunk",
                conditioning_config={},
                append_duration_fps_timestamps=False,
                append_resolution_info=False,
            ),
            packer="alike",
            max_samples_per_batch=2,
            max_caption_tokens=ref("model.config.text_encoder.max_length"),
            num_workers=4,
            latent_cache="${oc.env:WORLDSMITH_LATENT_CACHE,outputs/latent_cache}",
        ),
    )


@recipe("cogvideox_5b", starts_from="cogvideox_2b")
def cogvideox_5b(config: Trainer.Config) -> Trainer.Config:
    """CogVideoX-5B, all weights."""
    config.job.experiment = config.job.name = "cogvideox_5b"
    cast(CogVideoXGenerator.Config, config.model.config).network = network_5b()
    config.objective.shift_scale = 1.0
    return config


@recipe("cogvideox_2b_lora", starts_from="cogvideox_2b")
def cogvideox_2b_lora(config: Trainer.Config) -> Trainer.Config:
    """CogVideoX-2B, adapters of rank 128 on the attention."""
    return with_adapters(config, "cogvideox_2b_lora")


@recipe("cogvideox_5b_lora", starts_from="cogvideox_5b")
def cogvideox_5b_lora(config: Trainer.Config) -> Trainer.Config:
    """CogVideoX-5B, adapters of rank 128 on the attention."""
    return with_adapters(config, "cogvideox_5b_lora")


@recipe("cogvideox_2b_tiny", starts_from="cogvideox_2b")
def cogvideox_2b_tiny(config: Trainer.Config) -> Trainer.Config:
    """The tiny twin of cogvideox_2b: a network of 36 thousand parameters on clips of 64 pixels, on a CPU."""
    return make_tiny(config, "cogvideox_2b_tiny")


@recipe("cogvideox_5b_tiny", starts_from="cogvideox_5b")
def cogvideox_5b_tiny(config: Trainer.Config) -> Trainer.Config:
    """The tiny twin of cogvideox_5b: the same with rotary positions."""
    make_tiny(config, "cogvideox_5b_tiny")
    cast(CogVideoXGenerator.Config, config.model.config).network.use_rotary_positional_embeddings = True
    return config


def with_adapters(config: Trainer.Config, name: str) -> Trainer.Config:
    """Trains adapters alone, at the published rank, scale and learning rate of the diffusers trainer."""
    config.job.experiment = config.job.name = name
    model = cast(CogVideoXGenerator.Config, config.model.config)
    model.lora_enabled, model.lora_rank, model.lora_alpha = True, 128, 64
    config.optimizer.lr = 2e-5
    return config


def make_tiny(config: Trainer.Config, name: str) -> Trainer.Config:
    """Sizes for a CPU, random weights; VAE and text encoder stay a pipeline's, of 4 latent and 32 text channels."""
    config.job.experiment = config.job.name = name
    config.job.project = "worldsmith"
    model = cast(CogVideoXGenerator.Config, config.model.config)
    model.precision = model.tokenizer.precision = model.text_encoder.precision = "float32"
    model.network = tiny()
    model.activation_checkpointing.mode = "none"
    config.checkpoint.load_path, config.checkpoint.init = None, "scratch"
    config.optimizer.lr = 3e-3
    dataset = cast(VideoLoader.Config, config.dataloader_train).dataset
    dataset.resolution, dataset.num_video_frames, dataset.min_frames = "64", 9, 9
    config.dataloader_train.num_workers = 0
    return config
