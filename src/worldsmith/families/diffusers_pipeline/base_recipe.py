"""Common recipe parts of model families whose network is a diffusers class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import ref
from worldsmith.config.sections import ActivationCheckpointingConfig, JobConfig
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.models.spec import ModelSpec
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.run_config import LoopConfig, monitors
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer


def pipeline_run(
    name: str,
    model: PipelineModel.Config,
    *,
    load_path: str,
    steps: int = 1000,
    clip_norm: float = 1.0,
    callbacks: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Trainer.Config:
    """Builds the config of a run that starts from the weights of a diffusers pipeline, with compiled layers.

    Args:
        name: Name of the recipe.
        model: Config of the model.
        load_path: Pipeline folder or hub repository.
        steps: Number of training steps.
        clip_norm: Max gradient norm.
        callbacks: Callbacks by name, in addition to gradient clipping and the monitors; None: no further ones.
        parts: Further sections of the result, such as `optimizer`, by field name of `Trainer.Config`.
    """
    family = model.family
    model.compile.enabled = True
    return Trainer.Config(
        job=JobConfig(experiment=name, project=family, group="sft", name=name),
        model=ModelSpec(name=family, config=model),
        trainer=LoopConfig(
            max_iter=steps,
            logging_iter=steps // 50,
            callbacks={"grad_clip": GradClip.Config(clip_norm=clip_norm), **(callbacks or {}), **monitors()},
        ),
        checkpoint=Checkpointer.Config(load_path=load_path, save_iter=steps // 2),
        **parts,
    )


def clip_loader_settings(
    resolution: str, frames: int, *, max_caption_tokens: Any = None, **dataset: Any
) -> dict[str, Any]:
    """Returns fields of `VideoLoader.Config`: batches of clips with one shape, no text appended to captions.

    Args:
        resolution: Resolution bucket.
        frames: Number of frames of each clip.
        max_caption_tokens: Max number of caption tokens; None: `max_length` of the text encoder.
        dataset: Further fields of `VideoDataset.Config`.
    """
    return {
        "dataset": VideoDataset.Config(
            path="${oc.env:DATASET_PATH}",
            resolution=resolution,
            num_video_frames=frames,
            min_frames=frames,
            conditioning_config={},
            append_duration_fps_timestamps=False,
            append_resolution_info=False,
            **dataset,
        ),
        "packer": "alike",
        "max_caption_tokens": max_caption_tokens or ref("model.config.text_encoder.max_length"),
        "num_workers": 4,
        "latent_cache": "${oc.env:WORLDSMITH_LATENT_CACHE,outputs/latent_cache}",
    }


def rename_run(config: Trainer.Config, name: str) -> Trainer.Config:
    config.job.experiment = config.job.name = name
    return config


def train_adapters(config: Trainer.Config, name: str, *, rank: int, alpha: int, lr: float) -> Trainer.Config:
    """Changes `config` in place to LoRA training with compiled layers and returns it.

    Frozen weights are stored only in bfloat16, and checkpoints do not contain them.

    Args:
        config: Config of the run.
        name: Name of the new recipe.
        rank: Rank of the adapters.
        alpha: LoRA alpha of the adapters.
        lr: Learning rate.
    """
    model = cast(PipelineModel.Config, config.model.config)
    model.lora_enabled, model.lora_rank, model.lora_alpha = True, rank, alpha
    model.parallelism.fsdp_master_dtype, model.ema.trainable_only = "bfloat16", True
    model.compile.enabled = True
    config.checkpoint.save_weights = "trained"
    config.optimizer.lr = lr
    return rename_run(config, name)


def make_tiny_pipeline(config: Trainer.Config, name: str, network: Any, *, frames: int = 1) -> Trainer.Config:
    """Changes `config` in place to a tiny network for a CPU, with random weights and without compiling; returns it.

    The locations of VAE and text encoder are unchanged; their precision becomes float32.

    Args:
        config: Config of the run.
        name: Name of the new recipe.
        network: Config of the tiny network.
        frames: Number of frames of each clip.
    """
    model: Any = config.model.config
    model.precision = model.tokenizer.precision = model.text_encoder.precision = "float32"
    model.network, model.activation_checkpointing = network, ActivationCheckpointingConfig()
    model.compile.enabled = False
    config.job.project, config.optimizer.lr = "worldsmith", 3e-3
    config.checkpoint.load_path, config.checkpoint.init = None, "scratch"
    data = cast(VideoLoader.Config, config.dataloader_train)
    data.dataset.resolution, data.dataset.num_video_frames, data.dataset.min_frames = "64", frames, frames
    data.num_workers = 0
    return rename_run(config, name)


def make_demo(config: Trainer.Config, name: str) -> Trainer.Config:
    """Changes the `config` of a tiny variant in place to the demo recipe `name`, and returns it.

    The demo learns moving shapes from clips of 17 frames, each with one sentence.
    """
    config.scheduler = LambdaCosine.Config(
        cycle_lengths=[ref("trainer.max_iter")], warm_up_steps=[50], f_start=[0.0], f_max=[1.0], f_min=[0.0]
    )
    config.trainer.max_iter, config.trainer.logging_iter = 1200, 20
    config.checkpoint.save_iter, config.checkpoint.keep_latest_k = 300, 2
    data = cast(VideoLoader.Config, config.dataloader_train)
    data.dataset.num_video_frames = data.dataset.min_frames = 17
    data.dataset.caption_keys, data.max_samples_per_batch = ["caption"], 16
    config.job.group = "demo"
    return rename_run(config, name)
