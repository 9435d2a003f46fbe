"""CogVideoX, from texts and from images: the numbers of its published fine-tuning, and tiny variants for a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from worldsmith.config import recipe, ref
from worldsmith.config.sections import ActivationCheckpointingConfig
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.cogvideox import architecture
from worldsmith.families.cogvideox.architecture import ImageConfig, NetworkConfig
from worldsmith.families.cogvideox.model import CogVideoXGenerator
from worldsmith.families.diffusers_pipeline.base_recipe import (
    clip_loader_settings,
    make_demo,
    make_tiny_pipeline,
    pipeline_run,
    rename_run,
    train_adapters,
)
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder
from worldsmith.families.variables import CLIPS, hub_variable_advice
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE
from worldsmith.objectives.v_prediction import VPrediction
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaLinear
from worldsmith.training.trainer import Trainer

PIPELINE = "${oc.env:COGVIDEOX_PATH}"
"""A diffusers pipeline with transformer, VAE, text encoder and tokenizer."""


def cogvideox_weights_advice(name: str) -> dict[str, str]:
    """Returns {"COGVIDEOX_PATH": how to get the weights `name`}, shown if this environment variable is not set."""
    return hub_variable_advice("COGVIDEOX_PATH", f"zai-org/{name}")


@recipe("cogvideox_2b", variables={**CLIPS, **cogvideox_weights_advice("CogVideoX-2b")})
def cogvideox_2b() -> Trainer.Config:
    """Full fine-tuning of CogVideoX-2B on clips of 49 frames."""
    return pipeline_run(
        "cogvideox_2b",
        CogVideoXGenerator.Config(
            network=architecture.cogvideox_2b(),
            tokenizer=CogVideoXVAE.Config(vae_path=PIPELINE),
            text_encoder=T5TextEncoder.Config(
                path=PIPELINE, max_length=ref("model.config.network.max_text_seq_length")
            ),
            activation_checkpointing=ActivationCheckpointingConfig(mode="selective"),
        ),
        load_path=PIPELINE,
        clip_norm=0.1,
        objective=VPrediction.Config(shift_scale=3.0),
        optimizer=AdamW.Config(lr=1e-5, betas=[0.9, 0.95], eps=1e-8, weight_decay=1e-4),
        # A twentieth of the rate for 100 steps, then down to a hundredth.
        scheduler=LambdaLinear.Config(
            cycle_lengths=[99, 901], warm_up_steps=[0, 0], f_start=[0.05, 0.91], f_max=[0.05, 0.91], f_min=[0.05, 0.009]
        ),
        callbacks={"EveryNDrawSample": DrawVideos.Config(steps=50, guidance=[6.0])},
        dataloader_train=VideoLoader.Config(
            max_samples_per_batch=2, **clip_loader_settings("480", 49, temporal_interval_mode="entire_chunk")
        ),
    )


@recipe("cogvideox_5b", starts_from="cogvideox_2b", variables=cogvideox_weights_advice("CogVideoX-5b"))
def cogvideox_5b(config: Trainer.Config) -> Trainer.Config:
    """Full fine-tuning of CogVideoX-5B."""
    rename_run(config, "cogvideox_5b")
    cast(CogVideoXGenerator.Config, config.model.config).network = architecture.cogvideox_5b()
    config.objective.shift_scale = 1.0
    return config


@recipe("cogvideox_5b_i2v", starts_from="cogvideox_5b", variables=cogvideox_weights_advice("CogVideoX-5b-I2V"))
def cogvideox_5b_i2v(config: Trainer.Config) -> Trainer.Config:
    """Full fine-tuning of CogVideoX-5B-I2V, including its position table."""
    return change_network(config, "cogvideox_5b_i2v", architecture.cogvideox_5b_i2v(), "720x480")


@recipe("cogvideox1_5_5b", starts_from="cogvideox_5b", variables=cogvideox_weights_advice("CogVideoX1.5-5B"))
def cogvideox1_5_5b(config: Trainer.Config) -> Trainer.Config:
    """Full fine-tuning of CogVideoX-1.5-5B on 81 frames of 1360x768."""
    config.model.config.activation_checkpointing.mode = "full"  # attention outputs of 90,000 tokens exceed 80 GB
    return change_network(config, "cogvideox1_5_5b", architecture.cogvideox1_5_5b(), "1360x768")


@recipe("cogvideox1_5_5b_i2v", starts_from="cogvideox1_5_5b", variables=cogvideox_weights_advice("CogVideoX1.5-5B-I2V"))
def cogvideox1_5_5b_i2v(config: Trainer.Config) -> Trainer.Config:
    """Full fine-tuning of CogVideoX-1.5-5B-I2V."""
    return change_network(config, "cogvideox1_5_5b_i2v", architecture.cogvideox1_5_5b_i2v(), "1360x768")


@recipe("cogvideox_2b_lora", starts_from="cogvideox_2b")
def cogvideox_2b_lora(config: Trainer.Config) -> Trainer.Config:
    """LoRA of rank 128 on the attention layers of CogVideoX-2B."""
    return configure_lora(config, "cogvideox_2b_lora")


@recipe("cogvideox_5b_lora", starts_from="cogvideox_5b")
def cogvideox_5b_lora(config: Trainer.Config) -> Trainer.Config:
    """LoRA of rank 128 on the attention layers of CogVideoX-5B."""
    return configure_lora(config, "cogvideox_5b_lora")


@recipe("cogvideox_5b_i2v_lora", starts_from="cogvideox_5b_i2v")
def cogvideox_5b_i2v_lora(config: Trainer.Config) -> Trainer.Config:
    """LoRA of rank 256 on CogVideoX-5B-I2V; the position table is frozen."""
    return configure_lora(config, "cogvideox_5b_i2v_lora", rank=256)


@recipe("cogvideox1_5_5b_lora", starts_from="cogvideox1_5_5b")
def cogvideox1_5_5b_lora(config: Trainer.Config) -> Trainer.Config:
    """LoRA of rank 128 on the attention layers of CogVideoX-1.5-5B."""
    return configure_lora(config, "cogvideox1_5_5b_lora")


@recipe("cogvideox1_5_5b_i2v_lora", starts_from="cogvideox1_5_5b_i2v")
def cogvideox1_5_5b_i2v_lora(config: Trainer.Config) -> Trainer.Config:
    """LoRA of rank 128 on the attention layers of CogVideoX-1.5-5B-I2V."""
    return configure_lora(config, "cogvideox1_5_5b_i2v_lora")


@recipe("cogvideox_2b_tiny", starts_from="cogvideox_2b")
def cogvideox_2b_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of cogvideox_2b: 38 thousand parameters, on a CPU."""
    return make_tiny(config, "cogvideox_2b_tiny")


@recipe("cogvideox_5b_tiny", starts_from="cogvideox_5b")
def cogvideox_5b_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of cogvideox_5b for a CPU, with rotary position embeddings."""
    return make_tiny(config, "cogvideox_5b_tiny")


@recipe("cogvideox_5b_i2v_tiny", starts_from="cogvideox_5b_i2v")
def cogvideox_5b_i2v_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of cogvideox_5b_i2v for a CPU, with image conditioning."""
    return make_tiny(config, "cogvideox_5b_i2v_tiny")


@recipe("cogvideox1_5_5b_tiny", starts_from="cogvideox1_5_5b")
def cogvideox1_5_5b_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of cogvideox1_5_5b for a CPU, with two latent frames per token."""
    return make_tiny(config, "cogvideox1_5_5b_tiny")


@recipe("cogvideox1_5_5b_i2v_tiny", starts_from="cogvideox1_5_5b_i2v")
def cogvideox1_5_5b_i2v_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of cogvideox1_5_5b_i2v for a CPU, with image conditioning."""
    return make_tiny(config, "cogvideox1_5_5b_i2v_tiny")


@recipe("cogvideox_demo", starts_from="cogvideox_2b_tiny")
def cogvideox_demo(config: Trainer.Config) -> Trainer.Config:
    """The CogVideoX demo: clips of moving shapes with one-sentence captions."""
    network = cast(CogVideoXGenerator.Config, config.model.config).network
    network.num_attention_heads, network.attention_head_dim, network.num_layers = 4, 48, 4
    network.time_embed_dim, network.sample_frames = 128, 17
    # Twenty tokens for a clip in place of eighty: a step takes half the time.
    network.patch_size = 4
    config.optimizer.lr = 3e-3
    cast(GradClip.Config, config.trainer.callbacks["grad_clip"]).clip_norm = 1.0
    return make_demo(config, "cogvideox_demo")


def change_network(config: Trainer.Config, name: str, network: NetworkConfig, size: str) -> Trainer.Config:
    """Changes `config` in place to another network, and to the clips that it was trained on; returns `config`.

    Image conditioning is enabled if the network has an image input.

    Args:
        config: Config of the run.
        name: Name of the new recipe.
        network: Config of the new network.
        size: Resolution of the clips, such as "720x480".
    """
    rename_run(config, name)
    model = cast(CogVideoXGenerator.Config, config.model.config)
    model.network = network
    model.image = ImageConfig() if network.in_channels > network.out_channels else None
    dataset = cast(VideoLoader.Config, config.dataloader_train).dataset
    dataset.resolution = size
    dataset.num_video_frames = dataset.min_frames = network.sample_frames
    return config


def configure_lora(config: Trainer.Config, name: str, *, rank: int = 128) -> Trainer.Config:
    """Changes `config` in place to LoRA training with the settings of the diffusers training script, and returns it.

    Args:
        config: Config of the run.
        name: Name of the new recipe.
        rank: Rank of the adapters; alpha is half of it.
    """
    return train_adapters(config, name, rank=rank, alpha=rank // 2, lr=2e-5)


def make_tiny(config: Trainer.Config, name: str) -> Trainer.Config:
    """Changes `config` in place to the tiny variant `name` with the package's tiny VAE and text encoder."""
    model = cast(CogVideoXGenerator.Config, config.model.config)
    make_tiny_pipeline(config, name, build_tiny_variant(model.network), frames=9)
    model.tokenizer.vae_path, model.text_encoder.path = "${asset:tiny_cogvideox_vae}", "${asset:tiny_t5}"
    if model.network.use_learned_positional_embeddings:
        cast(VideoLoader.Config, config.dataloader_train).dataset.resolution = "64x64"
    return config


def build_tiny_variant(network: NetworkConfig) -> NetworkConfig:
    """Returns a tiny network config with the same inputs and the same type of position embeddings as `network`."""
    small = architecture.tiny()
    return replace(
        small,
        in_channels=small.in_channels * network.in_channels // network.out_channels,
        use_rotary_positional_embeddings=network.use_rotary_positional_embeddings,
        use_learned_positional_embeddings=network.use_learned_positional_embeddings,
        patch_size_t=network.patch_size_t,
        patch_bias=network.patch_bias,
        ofs_embed_dim=small.time_embed_dim if network.ofs_embed_dim else None,
        sample_height=16 if network.patch_size_t else small.sample_height,
        sample_width=16 if network.patch_size_t else small.sample_width,
    )
