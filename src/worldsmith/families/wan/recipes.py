"""Wan 2.1 and 2.2, from texts and from images, and tiny variants for a CPU."""

from __future__ import annotations

from typing import Any, cast

from worldsmith.config import recipe
from worldsmith.config.sections import ActivationCheckpointingConfig
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.diffusers_pipeline.base_recipe import (
    clip_loader_settings,
    make_demo,
    make_tiny_pipeline,
    pipeline_run,
    rename_run,
    train_adapters,
)
from worldsmith.families.diffusers_pipeline.text_encoder import UMT5TextEncoder
from worldsmith.families.variables import CLIPS, hub_variable_advice
from worldsmith.families.wan import architecture
from worldsmith.families.wan.model import WanGenerator
from worldsmith.models.video_vae.wan import WanFamilyVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaLinear
from worldsmith.training.trainer import Trainer

PIPELINE = "${oc.env:WAN_PATH}"
"""A diffusers pipeline with transformers, VAE, text encoder and tokenizer."""

ADAPTERS: Any = {"rank": 32, "alpha": 32, "lr": 1e-4}


def wan_weights_advice(name: str) -> dict[str, str]:
    """Returns {"WAN_PATH": how to get the weights `name`}, shown if this environment variable is not set."""
    return hub_variable_advice("WAN_PATH", f"Wan-AI/{name}-Diffusers")


@recipe("wan21_t2v_1b", variables={**CLIPS, **wan_weights_advice("Wan2.1-T2V-1.3B")})
def wan21_t2v_1b() -> Trainer.Config:
    """Full text-to-video fine-tuning of Wan 2.1 1.3B on clips of 81 frames."""
    config = pipeline_run(
        "wan21_t2v_1b",
        WanGenerator.Config(
            network=architecture.wan21_1b(),
            tokenizer=WanFamilyVAE.Config(vae_path=PIPELINE),
            text_encoder=UMT5TextEncoder.Config(path=PIPELINE),
            activation_checkpointing=ActivationCheckpointingConfig(mode="selective"),
        ),
        load_path=PIPELINE,
        callbacks={"EveryNDrawSample": DrawVideos.Config(steps=50, guidance=[5.0])},
        objective=RectifiedFlow.Config(video_distribution="logitnormal", shift=3),
        optimizer=AdamW.Config(lr=1e-5, betas=[0.9, 0.999], eps=1e-8, weight_decay=1e-2),
        scheduler=LambdaLinear.Config(
            cycle_lengths=[1000], warm_up_steps=[50], f_start=[0.01], f_max=[1.0], f_min=[1.0]
        ),
        dataloader_train=VideoLoader.Config(
            max_samples_per_batch=1, **clip_loader_settings("480", 81, temporal_interval_mode="entire_chunk")
        ),
    )
    config.model.config.compile.enabled = False  # blocks with trained float32 norms would be compiled in pieces
    return config


@recipe("wan21_t2v_14b", starts_from="wan21_t2v_1b", variables=wan_weights_advice("Wan2.1-T2V-14B"))
def wan21_t2v_14b(config: Trainer.Config) -> Trainer.Config:
    """Full text-to-video fine-tuning of Wan 2.1 14B."""
    model_config(config).network = architecture.wan_14b()
    recompute_fully(config)
    return rename_run(config, "wan21_t2v_14b")


@recipe("wan21_i2v_14b", starts_from="wan21_t2v_1b", variables=wan_weights_advice("Wan2.1-I2V-14B-480P"))
def wan21_i2v_14b(config: Trainer.Config) -> Trainer.Config:
    """Full image-to-video fine-tuning of Wan 2.1 14B."""
    model = model_config(config)
    model.network, model.image_encoder.path = architecture.wan21_i2v_14b(), PIPELINE
    recompute_fully(config)
    return rename_run(config, "wan21_i2v_14b")


@recipe("wan22_ti2v_5b", starts_from="wan21_t2v_1b", variables=wan_weights_advice("Wan2.2-TI2V-5B"))
def wan22_ti2v_5b(config: Trainer.Config) -> Trainer.Config:
    """Full text- and image-to-video fine-tuning of Wan 2.2 5B on 121 frames."""
    model, data = model_config(config), cast(VideoLoader.Config, config.dataloader_train).dataset
    model.network, model.expand_timesteps, model.tokenizer.spatial_factor = architecture.wan22_5b(), True, 16
    data.resolution, data.num_video_frames, data.min_frames = "704", 121, 121
    data.conditioning_config = {"0": 0.5, "1": 0.5}
    config.objective.shift, config.objective.normalize_loss_by_active = 5, True
    return rename_run(config, "wan22_ti2v_5b")


@recipe("wan22_t2v_a14b", starts_from="wan21_t2v_1b", variables=wan_weights_advice("Wan2.2-T2V-A14B"))
def wan22_t2v_a14b(config: Trainer.Config) -> Trainer.Config:
    """Full text-to-video fine-tuning of one expert of Wan 2.2 A14B, by default the high-noise expert."""
    model_config(config).network, config.objective.shift = architecture.wan_14b(), 5
    recompute_fully(config)
    return train_high_noise_expert(config, "wan22_t2v_a14b", 0.875)


@recipe("wan22_i2v_a14b", starts_from="wan22_t2v_a14b", variables=wan_weights_advice("Wan2.2-I2V-A14B"))
def wan22_i2v_a14b(config: Trainer.Config) -> Trainer.Config:
    """Full image-to-video fine-tuning of one expert of Wan 2.2 A14B, by default the high-noise expert."""
    model_config(config).network = architecture.wan22_i2v_14b()
    return train_high_noise_expert(config, "wan22_i2v_a14b", 0.9)


@recipe("wan21_t2v_1b_lora", starts_from="wan21_t2v_1b")
def wan21_t2v_1b_lora(config: Trainer.Config) -> Trainer.Config:
    """Text-to-video LoRA of rank 32 on Wan 2.1 1.3B."""
    return train_adapters(config, "wan21_t2v_1b_lora", **ADAPTERS)


@recipe("wan21_t2v_14b_lora", starts_from="wan21_t2v_14b")
def wan21_t2v_14b_lora(config: Trainer.Config) -> Trainer.Config:
    """Text-to-video LoRA of rank 32 on Wan 2.1 14B."""
    return fit_80_gb(train_adapters(config, "wan21_t2v_14b_lora", **ADAPTERS))


@recipe("wan21_i2v_14b_lora", starts_from="wan21_i2v_14b")
def wan21_i2v_14b_lora(config: Trainer.Config) -> Trainer.Config:
    """Image-to-video LoRA of rank 32 on Wan 2.1 14B."""
    return train_adapters(config, "wan21_i2v_14b_lora", **ADAPTERS)


@recipe("wan22_ti2v_5b_lora", starts_from="wan22_ti2v_5b")
def wan22_ti2v_5b_lora(config: Trainer.Config) -> Trainer.Config:
    """Text- and image-to-video LoRA of rank 32 on Wan 2.2 5B."""
    return train_adapters(config, "wan22_ti2v_5b_lora", **ADAPTERS)


@recipe("wan22_t2v_a14b_lora", starts_from="wan22_t2v_a14b")
def wan22_t2v_a14b_lora(config: Trainer.Config) -> Trainer.Config:
    """Text-to-video LoRA of rank 32 on one expert of Wan 2.2 A14B."""
    return fit_80_gb(train_adapters(config, "wan22_t2v_a14b_lora", **ADAPTERS))


@recipe("wan22_i2v_a14b_lora", starts_from="wan22_i2v_a14b")
def wan22_i2v_a14b_lora(config: Trainer.Config) -> Trainer.Config:
    """Image-to-video LoRA of rank 32 on one expert of Wan 2.2 A14B."""
    return fit_80_gb(train_adapters(config, "wan22_i2v_a14b_lora", **ADAPTERS))


@recipe("wan21_t2v_tiny", starts_from="wan21_t2v_1b")
def wan21_t2v_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of wan21_t2v_1b: 22 thousand parameters, on a CPU."""
    return make_tiny(config, "wan21_t2v_tiny")


@recipe("wan21_i2v_tiny", starts_from="wan21_i2v_14b")
def wan21_i2v_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of wan21_i2v_14b for a CPU, with an image encoder."""
    make_tiny(config, "wan21_i2v_tiny")
    model = model_config(config)
    model.network.in_channels, model.network.image_dim, model.network.added_kv_proj_dim = 12, 16, 24
    model.text_encoder.max_length, model.image_encoder.precision = 512, "float32"
    return config


@recipe("wan22_ti2v_tiny", starts_from="wan22_ti2v_5b")
def wan22_ti2v_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of wan22_ti2v_5b for a CPU; half of the samples are image-to-video."""
    return make_tiny(config, "wan22_ti2v_tiny")


@recipe("wan22_i2v_a14b_tiny", starts_from="wan22_i2v_a14b")
def wan22_i2v_a14b_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of wan22_i2v_a14b for a CPU: one expert, with image conditioning."""
    make_tiny(config, "wan22_i2v_a14b_tiny")
    model_config(config).network.in_channels = 12
    return config


@recipe("wan_demo", starts_from="wan21_t2v_tiny")
def wan_demo(config: Trainer.Config) -> Trainer.Config:
    """The Wan demo: clips of moving shapes with one-sentence captions."""
    model = model_config(config)
    model.tokenizer.vae_path, model.tokenizer.spatial_factor = "${asset:tiny_vae}", 16
    model.text_encoder.path = "${asset:tiny_umt5}"
    network = model.network
    network.num_attention_heads, network.attention_head_dim, network.num_layers = 4, 48, 4
    network.in_channels = network.out_channels = 48
    network.text_dim, network.freq_dim, network.ffn_dim = 64, 64, 768
    return make_demo(config, "wan_demo")


def model_config(config: Trainer.Config) -> WanGenerator.Config:
    return cast(WanGenerator.Config, config.model.config)


def recompute_fully(config: Trainer.Config) -> None:
    """Changes `config` in place to full recomputation: the outputs of attention of 14B networks exceed 80 GB."""
    model_config(config).activation_checkpointing.mode = "full"


def fit_80_gb(config: Trainer.Config) -> Trainer.Config:
    """Changes `config` in place so that 14B adapters fit into a GPU of 80 GB with the text encoder; returns `config`.

    The outputs of self-attention are stored in three quarters of the layers, and recomputed in the others.
    """
    model_config(config).activation_checkpointing = ActivationCheckpointingConfig(
        mode="full", layer_fraction=0.25, other_layers="selective"
    )
    return config


def train_high_noise_expert(config: Trainer.Config, name: str, boundary: float) -> Trainer.Config:
    """Changes `config` in place to train the high-noise expert of a two-expert pipeline, and returns it.

    The initial weights are those of the high-noise expert in the pipeline.

    Args:
        config: Config of the run.
        name: Name of the new recipe.
        boundary: Noise level at which the experts switch.
    """
    model, config.checkpoint.load_path = model_config(config), None
    model.expert, model.boundary_ratio, model.pipeline = "high_noise", boundary, PIPELINE
    return rename_run(config, name)


def make_tiny(config: Trainer.Config, name: str) -> Trainer.Config:
    """Changes `config` in place to the tiny variant `name`: 9 frames, a tiny network on a CPU; returns `config`."""
    make_tiny_pipeline(config, name, architecture.tiny(), frames=9)
    model_config(config).text_encoder.max_length, config.objective.shift = 16, 1
    config.dataloader_train.max_samples_per_batch = 4
    return config
