"""Vision fine-tuning of the released generators: text, image and video to video at tier 256.

Values are those of the published recipes as they take effect, that is with the values of their TOML files.
"""

from __future__ import annotations

from typing import cast

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import recipe, ref, toml_keys
from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, JobConfig, ParallelismConfig
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.models.cosmos3.architecture import edge, nano, super_
from worldsmith.models.cosmos3.generator import Cosmos3Generator
from worldsmith.models.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.ema import PowerEMA
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

toml_keys("model", Cosmos3Generator.Config, "max_num_tokens_after_packing", at="model.config", only="vfm")
toml_keys("model", Cosmos3Generator.Config, "joint_attn_implementation", at="model.config", only="vfm")
toml_keys("model", Cosmos3Generator.Config, "lora_target_modules", at="model.config")
toml_keys("model.tokenizer", WanVAE.Config, "vae_path", at="model.config.tokenizer", only="vfm")
toml_keys("trainer", LoopConfig, "seed")
toml_keys(
    "trainer.callbacks.compile_tokenizer",
    CompileTokenizer.Config,
    *("enabled", "compile_after_iterations", "warmup_resolutions"),
    only="vfm",
)
toml_keys("checkpoint", Checkpointer.Config, "keep_latest_k")
toml_keys("dataloader_train", VideoDataset.Config, "min_frames", at="dataloader_train.dataset", only="vfm")
toml_keys("dataloader_train", VideoLoader.Config, "max_caption_tokens", "num_workers", "latent_cache", only="vfm")

GENERATION_TOWER = ["moe_gen", "time_embedder", "vae2llm", "llm2vae"]
"""Name parts of everything that only generation uses; what is left is the understanding tower."""


@recipe("vision_sft_nano")
def vision_sft_nano() -> Trainer.Config:
    """Cosmos3-Nano, its whole generation tower, on 8 GPUs of 80 GB."""
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
                "iter_speed": IterSpeed.Config(),
                "metrics": Metrics.Config(),
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
    )


@recipe("vision_sft_super", starts_from="vision_sft_nano")
def vision_sft_super(config: Trainer.Config) -> Trainer.Config:
    """Cosmos3-Super, LoRA of rank 16 on its generation attention, on 8 GPUs of 80 GB."""
    config.job.experiment = config.job.name = "vision_sft_super"
    model = cast(Cosmos3Generator.Config, config.model.config)
    model.network = super_()
    model.lora_enabled, model.lora_rank, model.lora_alpha = True, 16, 32
    model.ema.enabled = False
    model.compile.enabled = False
    # Pairs of processes share a sequence: four shares of the data, and the weights lie on all eight.
    model.parallelism.data_parallel_shard_degree = 4
    model.parallelism.context_parallel_shard_degree = 2
    config.optimizer.keys_to_select = ["lora_"]
    config.optimizer.lr = 5e-4
    config.checkpoint.keys_to_skip_loading = ["net_ema.", "lora_"]
    config.checkpoint.save_weights = "trained"
    return config


@recipe("vision_sft_edge", starts_from="vision_sft_nano")
def vision_sft_edge(config: Trainer.Config) -> Trainer.Config:
    """Cosmos3-Edge, its whole generation tower, on 8 GPUs."""
    config.job.experiment = config.job.name = "vision_sft_edge"
    model = cast(Cosmos3Generator.Config, config.model.config)
    model.network = edge()
    model.text_tokenizer.path = "${oc.env:TOKENIZER_PATH,nvidia/Cosmos3-Edge}"
    config.objective.loss_scale = 10.0
    config.objective.image_loss_scale = None
    config.optimizer.keys_to_select = [*GENERATION_TOWER, "k_norm_und_for_gen"]
    return config
