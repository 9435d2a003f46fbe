"""LTX-Video 2B, text to video, and a tiny variant for a CPU."""

from __future__ import annotations

from worldsmith.config import recipe
from worldsmith.config.sections import ActivationCheckpointingConfig
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.diffusers_pipeline.base_recipe import (
    clip_loader_settings,
    make_tiny_pipeline,
    pipeline_run,
    train_adapters,
)
from worldsmith.families.ltx_video.model import LTXTextEncoder, LTXVideoGenerator, LTXVideoVAE, NetworkConfig
from worldsmith.families.variables import CLIPS, hub_variable_advice
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaLinear
from worldsmith.training.trainer import Trainer

PIPELINE = "${oc.env:LTX_PATH}"
"""A diffusers pipeline with transformer, VAE, text encoder and tokenizer."""


@recipe("ltx_video_2b", variables={**CLIPS, **hub_variable_advice("LTX_PATH", "Lightricks/LTX-Video")})
def ltx_video_2b() -> Trainer.Config:
    """Full text-to-video fine-tuning of LTX-Video 2B on clips of 97 frames."""
    return pipeline_run(
        "ltx_video_2b",
        LTXVideoGenerator.Config(
            tokenizer=LTXVideoVAE.Config(vae_path=PIPELINE),
            text_encoder=LTXTextEncoder.Config(path=PIPELINE),
            activation_checkpointing=ActivationCheckpointingConfig(mode="selective"),
        ),
        load_path=PIPELINE,
        callbacks={"EveryNDrawSample": DrawVideos.Config(steps=50, guidance=[3.0])},
        # exp(2.05), the shift of the released schedule at 4096 tokens; a clip of 832x480 and 97 frames has 5070.
        objective=RectifiedFlow.Config(video_distribution="logitnormal", shift=7.8),
        optimizer=AdamW.Config(lr=1e-5, betas=[0.9, 0.999], eps=1e-8, weight_decay=1e-2),
        scheduler=LambdaLinear.Config(
            cycle_lengths=[1000], warm_up_steps=[50], f_start=[0.01], f_max=[1.0], f_min=[1.0]
        ),
        dataloader_train=VideoLoader.Config(
            max_samples_per_batch=1, **clip_loader_settings("480", 97, temporal_interval_mode="entire_chunk")
        ),
    )


@recipe("ltx_video_2b_lora", starts_from="ltx_video_2b")
def ltx_video_2b_lora(config: Trainer.Config) -> Trainer.Config:
    """Text-to-video LoRA of rank 64 on all attention layers of LTX-Video 2B."""
    return train_adapters(config, "ltx_video_2b_lora", rank=64, alpha=64, lr=2e-4)


@recipe("ltx_video_tiny", starts_from="ltx_video_2b")
def ltx_video_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of ltx_video_2b: 38 thousand parameters, on a CPU."""
    network = NetworkConfig(
        in_channels=128, out_channels=128, num_attention_heads=2, attention_head_dim=12, cross_attention_dim=24,
        num_layers=2, caption_channels=32,
    )  # fmt: skip
    make_tiny_pipeline(config, "ltx_video_tiny", network, frames=9)
    config.model.config.text_encoder.max_length, config.objective.shift = 16, 1  # type: ignore[attr-defined]
    config.dataloader_train.max_samples_per_batch = 4
    return config
