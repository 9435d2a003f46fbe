"""Tiny twins of the vision fine-tuning recipes: the same code path, on a CPU, in minutes."""

from __future__ import annotations

from typing import cast

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import recipe, ref
from worldsmith.config.sections import JobConfig
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.models.cosmos3.architecture import tiny
from worldsmith.models.cosmos3.generator import Cosmos3Generator
from worldsmith.models.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.callbacks.compile_tokenizer import CompileTokenizer
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.iter_speed import IterSpeed
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.loop_config import LoopConfig
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer


@recipe("vision_sft_tiny")
def vision_sft_tiny() -> Trainer.Config:
    """Captioned clips of any size at tier 256, with the shipped tiny VAE, from random weights."""
    return Trainer.Config(
        job=JobConfig(experiment="vision_sft_tiny", project="worldsmith", group="sft", name="vision_sft_tiny"),
        model=ModelSpec(
            name="cosmos3",
            config=Cosmos3Generator.Config(
                precision="float32",
                max_num_tokens_after_packing=4096,
                network=tiny(vocab_size=512),
                tokenizer=WanVAE.Config(vae_path="${asset:tiny_vae}", precision="float32"),
                text_tokenizer=TextTokenizer.Config(path="${asset:tiny_tokenizer}"),
            ),
        ),
        objective=RectifiedFlow.Config(),
        optimizer=AdamW.Config(lr=1e-3, betas=[0.9, 0.95], eps=1e-8),
        scheduler=LambdaCosine.Config(
            cycle_lengths=[1000], warm_up_steps=[20], f_start=[0.0], f_max=[1.0], f_min=[0.0]
        ),
        trainer=LoopConfig(
            max_iter=500,
            logging_iter=1,
            callbacks={
                "grad_clip": GradClip.Config(clip_norm=1.0),
                "compile_tokenizer": CompileTokenizer.Config(),
                "iter_speed": IterSpeed.Config(),
                "metrics": Metrics.Config(),
            },
        ),
        checkpoint=Checkpointer.Config(init="scratch", save_iter=100),
        dataloader_train=VideoLoader.Config(
            dataset=VideoDataset.Config(path="${oc.env:DATASET_PATH}", resolution="256", min_frames=5),
            max_sequence_length=ref("model.config.max_num_tokens_after_packing"),
            latent_cache="${oc.env:WORLDSMITH_LATENT_CACHE,outputs/latent_cache}",
        ),
    )


@recipe("moving_shapes", starts_from="vision_sft_tiny")
def moving_shapes(config: Trainer.Config) -> Trainer.Config:
    """The demo: 64-pixel clips of moving coloured shapes with one-sentence captions."""
    config.job.experiment = "moving_shapes"
    config.job.group = "demo"
    config.job.name = "moving_shapes"

    # 20 latent tokens per clip need no more than this.
    network = cast(Cosmos3Generator.Config, config.model.config).network
    network.hidden_size, network.intermediate_size, network.num_hidden_layers = 192, 576, 4
    network.num_attention_heads = network.num_key_value_heads = 3
    network.initializer_range = 0.06
    config.optimizer.lr = 2e-3

    dataset = cast(VideoLoader.Config, config.dataloader_train).dataset
    dataset.resolution = "64"
    dataset.caption_keys = ["caption"]
    # Every clip has the same length and size, so the sentences about them would only make the sequences longer.
    dataset.append_duration_fps_timestamps = False
    dataset.append_resolution_info = False
    config.dataloader_train.max_sequence_length = None
    config.dataloader_train.max_samples_per_batch = 32

    config.trainer.max_iter = 800
    config.trainer.logging_iter = 10
    config.checkpoint.save_iter = 200
    config.checkpoint.keep_latest_k = 2
    config.scheduler.cycle_lengths = [ref("trainer.max_iter")]
    config.scheduler.warm_up_steps = [50]
    return config
