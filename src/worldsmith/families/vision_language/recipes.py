"""Video reasoners: answers about images, and scores of physical plausibility; and their tiny variants for a CPU.

Values are those of the released recipes combined with their TOML files. The tiny variants are the same runs with other
sizes and paths.
"""

from __future__ import annotations

import dataclasses
from typing import cast

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import recipe, ref
from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, JobConfig, ParallelismConfig
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.datasets.mixed import MixedDataset
from worldsmith.data.conversations.media.media_processor import MediaProcessor
from worldsmith.families.variables import merged_reasoner
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.policy import BackboneConfig, FreezeConfig, PolicyConfig
from worldsmith.models.ema import PowerEMA
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.next_token import NextToken
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.samples.draw_answers import DrawAnswers
from worldsmith.training.optimizer import AdamW
from worldsmith.training.run_config import LoopConfig, monitors
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer


@recipe("pre_exp012_llava_ov", aliases=["llava_ov"])
def pre_exp012_llava_ov() -> Trainer.Config:
    """Trains all weights of Qwen3-VL-8B on LLaVA-OneVision, streamed from the hub, on 8 GPUs of 80 GB."""
    name = "pre_exp012_llava_ov"
    return Trainer.Config(
        job=JobConfig(task="vlm", experiment=name, project="cosmos3", group="vlm_llava_ov_demo", name=name),
        model=ModelSpec(
            name="vision_language",
            config=VisionLanguageModel.Config(
                precision="bfloat16",
                ema=PowerEMA.Config(enabled=False),
                parallelism=ParallelismConfig(data_parallel_shard_degree=8, data_parallel_replicate_degree=-1),
                compile=CompileConfig(enabled=True),
                activation_checkpointing=ActivationCheckpointingConfig(mode="selective"),
                policy=PolicyConfig(
                    backbone=BackboneConfig(
                        model_name="Qwen/Qwen3-VL-8B-Instruct",
                        safetensors_path="${oc.env:VLM_SAFETENSORS_PATH,Qwen/Qwen3-VL-8B-Instruct}",
                    ),
                    freeze=FreezeConfig(trainable_params=[".*"]),
                ),
            ),
        ),
        objective=NextToken.Config(),
        optimizer=AdamW.Config(lr=1e-5, betas=[0.9, 0.95], weight_decay=0.1, lr_multipliers={"model.visual": 0.1}),
        # As published: the cycle ends in the warm-up, so that the learning rate rises to the end.
        scheduler=LambdaCosine.Config(
            cycle_lengths=[500], warm_up_steps=[1000], f_start=[0.05], f_max=[1.0], f_min=[0.5]
        ),
        trainer=LoopConfig(
            max_iter=500,
            grad_accum_iter=1,
            logging_iter=1,
            callbacks={
                "grad_clip": GradClip.Config(clip_norm=1.0, force_finite=False),
                **monitors(),
                "EveryNDrawSample": DrawAnswers.Config(),
            },
        ),
        checkpoint=Checkpointer.Config(save_iter=100),
        dataloader_train=ChatLoader.Config(
            dataset=LlavaOneVision.Config(streaming=True),
            max_samples_per_batch=1,
            max_sequence_length=ref("data_setting.max_tokens"),
            shuffle=False,
            num_workers=2,
        ),
    )


@recipe("pre_exp012_llava_ov_mapstyle_dataloader", starts_from="pre_exp012_llava_ov")
def pre_exp012_llava_ov_mapstyle_dataloader(config: Trainer.Config) -> Trainer.Config:
    """Variant of pre_exp012_llava_ov on 4000 records, downloaded before the run and shuffled in each epoch."""
    config.job.name = "pre_exp012_llava_ov_mapstyle_dataloader"
    config.job.project = "cosmos_oss_alignment"
    loader = cast(ChatLoader.Config, config.dataloader_train)
    loader.dataset = LlavaOneVision.Config(limit=4000)
    loader.shuffle = True
    loader.num_workers = 0
    return config


@recipe(
    "videophy2_sft_nano",
    starts_from="pre_exp012_llava_ov",
    aliases=["videophy2_nano"],
    variables=merged_reasoner("Nano", "8B"),
)
def videophy2_sft_nano(config: Trainer.Config) -> Trainer.Config:
    """Trains Cosmos3-Nano to score the physical plausibility of clips from 1 to 5: VideoPhy-2, on 8 GPUs of 80 GB."""
    config.job.group, config.job.name = "vlm_videophy2_sft", "videophy2_sft_nano"
    model = cast(VisionLanguageModel.Config, config.model.config)
    model.policy.backbone.safetensors_path = "${oc.env:VLM_SAFETENSORS_PATH}"
    model.policy.freeze = FreezeConfig(freeze_vision_encoder=True)
    model.parallelism.reduce_every_pack = True  # unsharded gradients of eight packs would need 31 GiB on each process

    config.optimizer.lr = 1e-6
    config.optimizer.lr_multipliers = {"model.visual": 1.0}
    config.scheduler = LambdaCosine.Config(
        cycle_lengths=[50], warm_up_steps=[5], f_start=[0.05], f_max=[1.0], f_min=[0.1]
    )
    config.trainer.max_iter = 50
    config.trainer.grad_accum_iter = 8

    loader = cast(ChatLoader.Config, config.dataloader_train)
    root = "${oc.env:VIDEOPHYSICS_ROOT,examples/data/videophysics}"
    loader.dataset = ManifestDataset.Config(path=f"{root}/videophy2_train")
    loader.processor = ChatProcessor.Config(media=MediaProcessor.Config(fps=2.0, max_frames=32))
    loader.shuffle = True

    config.trainer.run_validation = True
    config.trainer.validation_iter = 10
    config.trainer.max_val_iter = 50
    config.dataloader_val = dataclasses.replace(
        loader, dataset=ManifestDataset.Config(path=f"{root}/videophy2_val"), num_workers=0
    )
    return config


@recipe(
    "videophy2_sft_super",
    starts_from="videophy2_sft_nano",
    aliases=["videophy2_super"],
    variables=merged_reasoner("Super", "32B"),
)
def videophy2_sft_super(config: Trainer.Config) -> Trainer.Config:
    """Variant of videophy2_sft_nano for Cosmos3-Super, with the vision tower of Qwen3-VL-32B."""
    config.job.name = "videophy2_sft_super"
    model = cast(VisionLanguageModel.Config, config.model.config)
    model.policy.backbone.model_name = "Qwen/Qwen3-VL-32B-Instruct"
    model.activation_checkpointing.mode = "full"
    model.parallelism = dataclasses.replace(
        model.parallelism, data_parallel_shard_degree=-1, data_parallel_replicate_degree=1
    )
    return config


@recipe("videophy2_sft_edge", starts_from="videophy2_sft_nano", aliases=["videophy2_edge"])
def videophy2_sft_edge(config: Trainer.Config) -> Trainer.Config:
    """Variant of videophy2_sft_nano for Cosmos3-Edge, whose backbone is not supported: runs stop with an error."""
    config.job.name = "videophy2_sft_edge"
    model = cast(VisionLanguageModel.Config, config.model.config)
    model.policy.backbone = BackboneConfig(model_name="nvidia/Cosmos3-Edge")
    model.policy.attn_implementation = "flash_attention_2"
    model.policy.freeze = FreezeConfig(frozen_params=[r"model\.visual\."])
    model.parallelism = dataclasses.replace(
        model.parallelism, data_parallel_shard_degree=-1, data_parallel_replicate_degree=1
    )
    config.optimizer.lr_multipliers = {"model.visual": 0.1}  # the frozen tower: its projector is not below this name
    return config


@recipe("llava_ov_tiny", starts_from="pre_exp012_llava_ov")
def llava_ov_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of pre_exp012_llava_ov: 1.5M parameters and local files, on a CPU."""
    loader = cast(ChatLoader.Config, config.dataloader_train)
    loader.dataset = LlavaOneVision.Config(path="${oc.env:DATASET_PATH}", subset="")
    return make_tiny_reasoner(config, "llava_ov_tiny")


@recipe("videophy2_nano_tiny", starts_from="videophy2_sft_nano")
def videophy2_nano_tiny(config: Trainer.Config) -> Trainer.Config:
    """Tiny variant of videophy2_sft_nano: 1.5M parameters, on a CPU."""
    return make_tiny_reasoner(config, "videophy2_nano_tiny")


def make_tiny_reasoner(config: Trainer.Config, name: str) -> Trainer.Config:
    """Changes `config` in place to the built-in tiny backbone with random weights, in float32, and returns it.

    Layers are not compiled. Training settings (schedule, learning rate, accumulation, trained parameters) are
    unchanged.

    Args:
        config: Config of a reasoner run.
        name: New name of the job.
    """
    config.job.project, config.job.group, config.job.name = "worldsmith", "sft", name
    model = cast(VisionLanguageModel.Config, config.model.config)
    model.precision, model.compile.enabled = "float32", False
    model.parallelism = dataclasses.replace(
        model.parallelism, data_parallel_shard_degree=-1, data_parallel_replicate_degree=1
    )
    model.policy.backbone = BackboneConfig(model_name="${asset:tiny_reasoner}")
    config.checkpoint.init = "scratch"
    config.data_setting.max_tokens = 2048
    config.dataloader_train.num_workers = 0
    return config


@recipe("falling_objects", starts_from="videophy2_nano_tiny")
def falling_objects(config: Trainer.Config) -> Trainer.Config:
    """Demo that trains a reasoner from random weights to score clips of falling objects and answer questions."""
    config.job.experiment = config.job.name = "falling_objects"
    config.job.group = "demo"
    model = cast(VisionLanguageModel.Config, config.model.config)
    model.activation_checkpointing = ActivationCheckpointingConfig(mode="none")
    model.policy.freeze = FreezeConfig()
    # Samples are as long as each other, and the attention of one long row would cost more than the padding.
    model.policy.sequence_packing = False

    config.optimizer.lr, config.optimizer.weight_decay = 8e-4, 0.0
    # A patch has 1536 values, many more than the input of another layer: at the same rate its output would jump.
    config.optimizer.lr_multipliers = {"patch_embed": 0.1}
    config.scheduler = LambdaCosine.Config(
        cycle_lengths=[ref("trainer.max_iter")], warm_up_steps=[20], f_start=[0.0], f_max=[1.0], f_min=[0.0]
    )
    config.trainer.max_iter = 1500
    config.trainer.grad_accum_iter = 1
    config.trainer.logging_iter = 20
    config.checkpoint.save_iter = 500
    config.checkpoint.keep_latest_k = 2

    train, val = ("${oc.env:DATASET_PATH}/videophy2_" + split for split in ("train", "val"))
    loader = cast(ChatLoader.Config, config.dataloader_train)
    loader.dataset = MixedDataset.Config(
        datasets={"scores": ManifestDataset.Config(path=train), "questions": LlavaDataset.Config(path=train)}
    )
    loader.processor = ChatProcessor.Config()
    loader.max_sequence_length = None
    loader.max_samples_per_batch = 16
    config.trainer.validation_iter = 500
    # Held-out questions, to be answered with yes or no, and requests for a score.
    config.trainer.callbacks["EveryNDrawSample"] = DrawAnswers.Config(
        samples=6,
        dataset=MixedDataset.Config(
            datasets={"questions": LlavaDataset.Config(path=val), "scores": ManifestDataset.Config(path=val)}
        ),
    )
    config.dataloader_val = dataclasses.replace(loader, dataset=ManifestDataset.Config(path=val))
    return config


@recipe("falling_questions", starts_from="falling_objects")
def falling_questions(config: Trainer.Config) -> Trainer.Config:
    """Short variant of the demo falling_objects with yes/no questions only; it trains in a minute."""
    config.job.experiment = config.job.name = "falling_questions"
    loader = cast(ChatLoader.Config, config.dataloader_train)
    train, val = (LlavaDataset.Config(path="${oc.env:DATASET_PATH}/videophy2_" + split) for split in ("train", "val"))
    loader.dataset = train
    config.dataloader_val = dataclasses.replace(loader, dataset=val)
    config.trainer.max_iter = 100
    config.trainer.run_validation = True
    config.trainer.validation_iter = config.checkpoint.save_iter = 50
    config.trainer.callbacks["EveryNDrawSample"] = DrawAnswers.Config(dataset=val)
    return config


@recipe("cosmos_rl")
def cosmos_rl() -> Trainer.Config:
    """Trains a reasoner on LLaVA annotations; its settings are the defaults for spec files of Cosmos-RL and TAO."""
    return Trainer.Config(
        job=JobConfig(task="vlm", project="cosmos_rl", group="sft"),
        model=ModelSpec(
            name="vision_language",
            config=VisionLanguageModel.Config(
                ema=PowerEMA.Config(enabled=False),
                policy=PolicyConfig(backbone=BackboneConfig(model_name="nvidia/Cosmos-Reason2-8B")),
            ),
        ),
        objective=NextToken.Config(),
        optimizer=AdamW.Config(lr=1e-6, betas=[0.9, 0.999], eps=1e-6, weight_decay=0.01),
        scheduler=LambdaCosine.Config(),
        trainer=LoopConfig(callbacks={"grad_clip": GradClip.Config(force_finite=False), **monitors()}),
        checkpoint=Checkpointer.Config(),
        dataloader_train=llava("DATASET_PATH"),
        dataloader_val=llava("VAL_DATASET_PATH", shuffle=False),
    )


def llava(variable: str, *, shuffle: bool = True) -> ChatLoader.Config:
    """Returns the config of a data loader for LLaVA annotations, with one sample per batch.

    Args:
        variable: Environment variable with the path of the annotations.
        shuffle: Whether the samples are shuffled.
    """
    dataset = LlavaDataset.Config(path=f"${{oc.env:{variable},}}")
    return ChatLoader.Config(dataset=dataset, max_samples_per_batch=1, shuffle=shuffle)
