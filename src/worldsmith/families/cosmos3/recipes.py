"""Recipes of Cosmos3: fine-tuning of released models in the resolution bucket 256, and tiny variants for a CPU.

The values for released models are those of the released recipes, including the values in their TOML files. The tiny
variants differ only in sizes and paths.
"""

from __future__ import annotations

from typing import cast

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import recipe, ref, toml_keys
from worldsmith.config.declare.configurable import field_names
from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, JobConfig, ParallelismConfig
from worldsmith.data.clips.captions import CAPTION_KEYS
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.cosmos3 import robot_recipes  # noqa: F401 (registers the recipes with robot actions)
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import edge, nano, super_, tiny
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.families.variables import CLIPS, WAN22_VAE, hub_variable_advice
from worldsmith.models.ema import PowerEMA
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.callbacks.step_speed import CompileTokenizer
from worldsmith.training.optimizer import AdamW
from worldsmith.training.run_config import LoopConfig, monitors
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer

toml_keys("model", Cosmos3Generator.Config, "max_num_tokens_after_packing", at="model.config", only="vfm")
toml_keys("model", Cosmos3Generator.Config, "joint_attn_implementation", at="model.config", only="vfm")
toml_keys("model", Cosmos3Generator.Config, "lora_dropout", "lora_target_modules", "converters", at="model.config")
toml_keys(
    "model.activation_checkpointing",
    ActivationCheckpointingConfig,
    *("layer_fraction", "other_layers", "offload", "save_every_second_matmul"),
    at="model.config.activation_checkpointing",
)
toml_keys("model.parallelism", ParallelismConfig, "offload", "offload_fraction", at="model.config.parallelism")
toml_keys("model.tokenizer", WanVAE.Config, "vae_path", at="model.config.tokenizer", only="vfm")
toml_keys("optimizer", AdamW.Config)
toml_keys("trainer", LoopConfig, "seed", "run_validation", "validation_iter", "max_val_iter", "run_validation_on_start")
toml_keys("trainer", LoopConfig, "early_stop_patience", "encode_first")
toml_keys(
    "trainer.callbacks.compile_tokenizer",
    CompileTokenizer.Config,
    *("enabled", "compile_after_iterations", "warmup_resolutions"),
    only="vfm",
)
toml_keys("checkpoint", Checkpointer.Config, "load_adapter", "keep_latest_k", "keep_best", "best_mode", "save_weights")
toml_keys("checkpoint", Checkpointer.Config, "upload_to")
toml_keys("model.ema", PowerEMA.Config, "trainable_only", at="model.config.ema")
toml_keys("dataloader_train", VideoDataset.Config, "min_frames", at="dataloader_train.dataset", only="vfm")
toml_keys("dataloader_train", VideoLoader.Config, "max_caption_tokens", "num_workers", "latent_cache", only="vfm")
toml_keys("dataloader_val", VideoDataset.Config, "path", at="dataloader_val.dataset", only="vfm")
toml_keys("dataloader_val", VideoLoader.Config, "max_samples_per_batch", "max_sequence_length", "seed", only="vfm")

GENERATION_TOWER = ["moe_gen", "time_embedder", "vae2llm", "llm2vae"]
"""Substrings of the names of all parameters that only generation uses; the others are the understanding tower."""


def validation_loader() -> VideoLoader.Config:
    """Returns the config of the validation loader, in which most fields are references to `dataloader_train`.

    The dataset path is the value of the environment variable VAL_DATASET_PATH. Captions are never dropped.
    """
    own = ("path", "cfg_dropout_rate")
    shared = ("max_sequence_length", "max_samples_per_batch", "max_caption_tokens", "num_workers", "prefetch_factor")
    return VideoLoader.Config(
        dataset=VideoDataset.Config(
            path="${oc.env:VAL_DATASET_PATH,}",
            cfg_dropout_rate=0.0,
            **{n: ref(f"dataloader_train.dataset.{n}") for n in field_names(VideoDataset.Config) if n not in own},
        ),
        **{name: ref(f"dataloader_train.{name}") for name in (*shared, "latent_cache")},
    )


def base_checkpoint_advice(name: str) -> dict[str, str]:
    """Returns {"BASE_CHECKPOINT_PATH": how to get the weights nvidia/`name`}, shown if this variable is not set."""
    return hub_variable_advice("BASE_CHECKPOINT_PATH", f"nvidia/{name}")


@recipe("vision_sft_nano", variables={**CLIPS, **WAN22_VAE, **base_checkpoint_advice("Cosmos3-Nano")})
def vision_sft_nano() -> Trainer.Config:
    """Fine-tuning of Cosmos3-Nano's generation tower on 8 GPUs of 80 GB."""
    return Trainer.Config(
        job=JobConfig(experiment="vision_sft_nano", project="cosmos3", group="sft", name="vision_sft_nano"),
        model=ModelSpec(
            name="cosmos3",
            config=Cosmos3Generator.Config(
                precision="bfloat16",
                max_num_tokens_after_packing=45056,
                network=nano(),
                ema=PowerEMA.Config(enabled=True, rate=0.1),
                parallelism=ParallelismConfig(data_parallel_shard_degree=8),
                compile=CompileConfig(enabled=True),
                activation_checkpointing=ActivationCheckpointingConfig(mode="full"),
                tokenizer=WanVAE.Config(vae_path="${oc.env:WAN_VAE_PATH}"),
                text_tokenizer=TextTokenizer.Config(path="${oc.env:TOKENIZER_PATH,Qwen/Qwen3-VL-8B-Instruct}"),
            ),
        ),
        objective=RectifiedFlow.Config(
            video_distribution="waver",
            image_distribution="logitnormal",
            shift={"256": 3, "480": 5, "704": 10, "720": 10},
            loss_scale=1.0,
            image_loss_scale=1.0,
        ),
        optimizer=AdamW.Config(lr=1e-4, betas=[0.9, 0.95], eps=1e-6, keys_to_select=list(GENERATION_TOWER)),
        scheduler=LambdaCosine.Config(
            cycle_lengths=[1000], warm_up_steps=[50], f_start=[0.0], f_max=[1.0], f_min=[0.0]
        ),
        trainer=LoopConfig(
            max_iter=500,
            grad_accum_iter=2,
            logging_iter=1,
            callbacks={
                "grad_clip": GradClip.Config(clip_norm=0.1, force_finite=True),
                "compile_tokenizer": CompileTokenizer.Config(enabled=False),
                **monitors(),
                "EveryNDrawSample": DrawVideos.Config(),
            },
        ),
        checkpoint=Checkpointer.Config(
            load_path="${oc.env:BASE_CHECKPOINT_PATH}", keys_to_skip_loading=["net_ema."], save_iter=100
        ),
        dataloader_train=VideoLoader.Config(
            dataset=VideoDataset.Config(
                path="${oc.env:DATASET_PATH}",
                resolution="256",
                min_frames=61,
                conditioning_config={"0": 0.7, "1": 0.2, "2": 0.1},
                cfg_dropout_rate=0.1,
            ),
            max_sequence_length=ref("model.config.max_num_tokens_after_packing"),
            max_caption_tokens=2048,
            num_workers=4,
            prefetch_factor=8,
            latent_cache="${oc.env:WORLDSMITH_LATENT_CACHE,outputs/latent_cache}",
        ),
        dataloader_val=validation_loader(),
    )


@recipe("vision_sft_nano_mapstyle_dataloader", starts_from="vision_sft_nano")
def vision_sft_nano_mapstyle_dataloader(config: Trainer.Config) -> Trainer.Config:
    """Variant of vision_sft_nano with captions of at most 1024 tokens.

    The name is that of the released recipe, whose map-style data loader can be resumed. All data loaders of
    this package can be resumed.
    """
    config.job.experiment = config.job.name = "vision_sft_nano_mapstyle_dataloader"
    cast(VideoLoader.Config, config.dataloader_train).max_caption_tokens = 1024
    return config


@recipe("vision_sft_super", starts_from="vision_sft_nano", variables=base_checkpoint_advice("Cosmos3-Super"))
def vision_sft_super(config: Trainer.Config) -> Trainer.Config:
    """LoRA of rank 16 on Cosmos3-Super's generation tower, on 8 GPUs of 80 GB."""
    config.job.experiment = config.job.name = "vision_sft_super"
    model = cast(Cosmos3Generator.Config, config.model.config)
    model.network = super_()
    model.lora_enabled, model.lora_rank, model.lora_alpha = True, 16, 32
    model.ema.enabled = False
    # Two ranks shard a sequence: four data-parallel groups, and the weights are sharded over all eight ranks.
    model.parallelism.data_parallel_shard_degree = 4
    model.parallelism.context_parallel_shard_degree = 2
    config.optimizer.keys_to_select = ["lora_"]
    config.optimizer.lr = 5e-4
    config.checkpoint.keys_to_skip_loading = ["net_ema.", "lora_"]
    config.checkpoint.save_weights = "trained"
    return config


@recipe("vision_sft_edge", starts_from="vision_sft_nano", variables=base_checkpoint_advice("Cosmos3-Edge"))
def vision_sft_edge(config: Trainer.Config) -> Trainer.Config:
    """Fine-tuning of Cosmos3-Edge's generation tower on 8 GPUs."""
    config.job.experiment = config.job.name = "vision_sft_edge"
    model = cast(Cosmos3Generator.Config, config.model.config)
    model.network = edge()
    model.text_tokenizer.path = "${oc.env:TOKENIZER_PATH,nvidia/Cosmos3-Edge}"
    config.objective.loss_scale = 10.0
    config.objective.image_loss_scale = None
    config.optimizer.keys_to_select = [*GENERATION_TOWER, "k_norm_und_for_gen"]
    return config


@recipe("vision_sft_nano_tiny", starts_from="vision_sft_nano")
def vision_sft_nano_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of vision_sft_nano: 9.9M parameters, on a CPU."""
    return make_tiny_generator(config, "vision_sft_nano_tiny")


@recipe("vision_sft_super_tiny", starts_from="vision_sft_super")
def vision_sft_super_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of vision_sft_super: 10.7M parameters, on a CPU."""
    make_tiny_generator(config, "vision_sft_super_tiny")
    # As in Super, the heads together are wider than the residual stream.
    cast(Cosmos3Generator.Config, config.model.config).network.num_attention_heads = 6
    return config


@recipe("vision_sft_edge_tiny", starts_from="vision_sft_edge")
def vision_sft_edge_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of vision_sft_edge: 7.6M parameters, on a CPU."""
    return make_tiny_generator(config, "vision_sft_edge_tiny")


def make_tiny_generator(config: Trainer.Config, name: str) -> Trainer.Config:
    """Changes `config` in place to sizes for a CPU and to the package's tiny VAE and tokenizer, and returns it.

    Weights and data are still read from files. Training settings (schedule, learning rate, conditioning, loss, trained
    parameters) are unchanged. `name` is the new name of the job.
    """
    config.job.experiment = config.job.name = name
    config.job.project = "worldsmith"
    model = cast(Cosmos3Generator.Config, config.model.config)
    model.precision = "float32"
    model.max_num_tokens_after_packing = 4096

    network = model.network
    network.vocab_size, network.hidden_size, network.intermediate_size = 512, 256, 768
    network.num_hidden_layers, network.num_attention_heads, network.num_key_value_heads = 6, 4, 2
    network.head_dim, network.mrope_section = 64, [12, 10, 10]

    model.tokenizer.vae_path, model.tokenizer.precision = "${asset:tiny_vae_natural}", "float32"
    model.text_tokenizer.path = "${asset:tiny_tokenizer}"
    model.parallelism.data_parallel_shard_degree = -1
    model.parallelism.context_parallel_shard_degree = 1

    config.dataloader_train.num_workers = 0
    return config


@recipe("vision_sft_tiny", variables=CLIPS)
def vision_sft_tiny() -> Trainer.Config:
    """Training from random weights on clips of any size in the resolution bucket 96, with a tiny VAE.

    With the default values, the model reproduces eight training clips after five minutes on two CPU cores.
    """
    return Trainer.Config(
        job=JobConfig(experiment="vision_sft_tiny", project="worldsmith", group="sft", name="vision_sft_tiny"),
        model=ModelSpec(
            name="cosmos3",
            config=Cosmos3Generator.Config(
                precision="float32",
                max_num_tokens_after_packing=1024,
                network=tiny(vocab_size=512),
                tokenizer=WanVAE.Config(vae_path="${asset:tiny_vae_natural}", precision="float32"),
                text_tokenizer=TextTokenizer.Config(path="${asset:tiny_tokenizer}"),
            ),
        ),
        objective=RectifiedFlow.Config(),
        optimizer=AdamW.Config(lr=2e-3, betas=[0.9, 0.95], eps=1e-8),
        scheduler=LambdaCosine.Config(
            cycle_lengths=[ref("trainer.max_iter")], warm_up_steps=[20], f_start=[0.0], f_max=[1.0], f_min=[0.0]
        ),
        trainer=LoopConfig(
            max_iter=800,
            logging_iter=1,
            callbacks={
                "grad_clip": GradClip.Config(clip_norm=1.0),
                "compile_tokenizer": CompileTokenizer.Config(),
                **monitors(),
                "EveryNDrawSample": DrawVideos.Config(steps=16),
            },
        ),
        checkpoint=Checkpointer.Config(init="scratch", save_iter=200),
        dataloader_train=VideoLoader.Config(
            dataset=VideoDataset.Config(
                path="${oc.env:DATASET_PATH}",
                resolution="96",
                min_frames=5,
                frame_buckets=[5, 9, 17],
                temporal_interval_mode="target_fps",
                caption_keys=["caption", *(key for key in CAPTION_KEYS if key != "caption")],
            ),
            max_sequence_length=ref("model.config.max_num_tokens_after_packing"),
            max_caption_tokens=512,
            latent_cache="${oc.env:WORLDSMITH_LATENT_CACHE,outputs/latent_cache}",
        ),
        dataloader_val=validation_loader(),
    )


@recipe("moving_shapes", starts_from="vision_sft_tiny")
def moving_shapes(config: Trainer.Config) -> Trainer.Config:
    """The demo: 64-pixel clips of moving shapes with one-sentence captions."""
    config.job.experiment = "moving_shapes"
    config.job.group = "demo"
    config.job.name = "moving_shapes"

    model = cast(Cosmos3Generator.Config, config.model.config)
    model.tokenizer.vae_path = "${asset:tiny_vae}"
    model.max_num_tokens_after_packing = 4096
    # 20 latent tokens per clip need no more than this.
    network = model.network
    network.hidden_size, network.intermediate_size, network.num_hidden_layers = 192, 576, 4
    network.num_attention_heads = network.num_key_value_heads = 3
    network.initializer_range = 0.06

    cast(VideoLoader.Config, config.dataloader_train).max_caption_tokens = 2048
    dataset = cast(VideoLoader.Config, config.dataloader_train).dataset
    dataset.resolution, dataset.frame_buckets, dataset.temporal_interval_mode = "64", [], "max_30fps"
    dataset.caption_keys = ["caption"]
    # Every clip has the same length and size, so the sentences about them would only make the sequences longer.
    dataset.append_duration_fps_timestamps = False
    dataset.append_resolution_info = False
    config.dataloader_train.max_sequence_length = None
    config.dataloader_train.max_samples_per_batch = 32

    config.trainer.callbacks["EveryNDrawSample"] = DrawVideos.Config(steps=8)
    config.trainer.logging_iter = 10
    config.checkpoint.keep_latest_k = 2
    config.scheduler.warm_up_steps = [50]
    return config
