"""Values that Cosmos-RL and qwen-vl-utils give a training spec: their own code, run on a CPU by `reference_code`.

A network is a tiny one of transformers in Cosmos-RL's wrapper, a dataset is a number of records, and a training step
only counts. Where a function mirrors code that is in no wheel, its docstring names that code.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from reference_code import COSMOS_RL, OPTIMIZER, QWEN_VL_UTILS, config_module
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

BASE, HF_MODEL, LORA = "policy/model/base.py", "policy/model/hf_models/__init__.py", "policy/lora/plugin.py"
WORKER, PACKER, UTIL = "policy/worker/sft_worker.py", "dispatcher/data/packer/base.py", "utils/util.py"
SFT_TRAINER = "policy/trainer/llm_trainer/sft_trainer.py"
LLM_TRAINER = "policy/trainer/llm_trainer/llm_trainer.py"
LAUNCHER, RANKS = "launcher/launch_all.py", "utils/parallelism.py"
"""Modules of Cosmos-RL."""
PARTS = "language_model", "visual"
"""Parts of a network that sees, as properties of the classes of transformers below 5.0."""


def validate_config(data: Mapping[str, Any]) -> Any:
    """Cosmos-RL's validated `Config` of a spec. Keys that TAO has added are dropped, as Cosmos-RL drops them."""
    return config_module().Config.model_validate(data)


def count_processes(data: Mapping[str, Any]) -> int:
    """World size that Cosmos-RL's launcher starts for one policy replica of a spec."""
    found = COSMOS_RL.run_statements(
        LAUNCHER,
        "main",
        "policy_parallelism =",
        "min_n_gpus_policy =",
        "if policy_parallelism.get('dp_shard_size', 1) >= 1",
        cosmos_config=data,
    )
    return int(found["min_n_gpus_policy"])


def arrange_ranks(config: Any, processes: int) -> Any:
    """Cosmos-RL's `ParallelDims` in a start of so many processes."""
    module = parallelism_module()
    with mock.patch.dict(os.environ, WORLD_SIZE=str(processes)):
        return module["ParallelDims"].from_config(config.policy.parallelism)


@cache
def parallelism_module() -> dict[str, Any]:
    return COSMOS_RL.run_module(RANKS, ParallelismConfig=None)


@cache
def optimizer_module() -> dict[str, Any]:
    return COSMOS_RL.run_module(OPTIMIZER, CosmosConfig=None)


class Records(Dataset[int]):
    """A dataset of `count` records, as a data script hands it to Cosmos-RL."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


@dataclass(slots=True)
class TrainingRecord:
    """What the loop of Cosmos-RL did on rank 0.

    Attributes:
        mini_batches: Number of forward passes of a step, by its number of samples.
        rates: Learning rate of each step, of parameters without a rate of their own.
        validations: Number of finished steps at each validation.
        save_interval: Number of steps between two checkpoints.
    """

    mini_batches: dict[int, int] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    validations: set[int] = field(default_factory=set)
    save_interval: int = 0


@dataclass(frozen=True, slots=True)
class TaoKeys:
    """Keys that TAO's fork of Cosmos-RL has added; None = the spec does not state it."""

    warmup_epochs: float | None = None
    validation_epochs: int | None = None

    def apply(self, config: Any, steps_per_epoch: int) -> None:
        """Writes the keys of Cosmos-RL that they stand for.

        Derived: TAO's fork is not public; its documentation counts both in epochs.
        """
        if self.warmup_epochs is not None:
            config.train.optm_warmup_steps = int(self.warmup_epochs * steps_per_epoch)
        if self.validation_epochs:
            config.validation.freq = self.validation_epochs * steps_per_epoch


class CountingTrainer:
    """Stands for `SFTTrainer`: takes its steps without a network."""

    def __init__(self, config: Any, record: TrainingRecord) -> None:
        self.config, self.record = config, record
        self.optimizers = optimizer_module()["build_optimizers"]([nn.Linear(1, 1)], config)
        self.lr_schedulers: Any = None
        packer = COSMOS_RL.run_definitions(PACKER, "BaseDataPacker.batch_size")
        self.data_packer = SimpleNamespace(batch_size=lambda batch: packer["batch_size"](None, batch))
        self.enable_dp_load_balancing = False

    def load_model(self) -> tuple[int, int, dict[str, Any]]:
        return 0, 0, {}

    def step_training(self, global_batch: list[int], total_steps: int, **_: Any) -> dict[str, Any]:
        """Mirrors the order of `SFTTrainer.step_training`, whose own statements cut the batch."""
        if self.lr_schedulers is None:
            build = optimizer_module()["build_lr_schedulers"]
            self.lr_schedulers = build(self.optimizers, self.config, total_steps)
        if len(global_batch) not in self.record.mini_batches:
            self.record.mini_batches[len(global_batch)] = count_mini_batches(self, global_batch)
        self.record.rates.append(float(next(iter(self.optimizers)).param_groups[0]["lr"]))
        self.optimizers.step()
        self.lr_schedulers.step()
        return {}

    def step_validation(self, batch: list[int], train_step: int, total_steps: int) -> float:
        self.record.validations.add(train_step)
        return 0.0

    def checkpointing(self, **_: Any) -> None:
        """A real one would save."""


def count_mini_batches(trainer: Any, batch: list[int]) -> int:
    """Number of forward passes of a step over `batch`, by the statements of `SFTTrainer.step_training`."""
    parts = "mini_batch =", "global_batch_size =", "mini_batch_begin_idxs ="
    found = COSMOS_RL.run_statements(
        SFT_TRAINER, "SFTTrainer.step_training", *parts, **{"self": trainer, "global_batch": batch}
    )
    return len(found["mini_batch_begin_idxs"])


def run_training(
    config: Any, ranks: Any, *, records: int, validation_records: int | None = None, tao: TaoKeys = TaoKeys()
) -> TrainingRecord:
    """Runs `SFTPolicyWorker`'s construction of loaders and its loop over them, as rank 0 of the data-parallel ranks."""
    config = config.model_copy(deep=True)
    loading = config.train.train_policy
    loading.dataloader_num_workers, loading.dataloader_prefetch_factor = 0, None
    loading.enable_dataset_cache = False
    record = TrainingRecord()
    worker = make_worker(config, ranks, CountingTrainer(config, record))
    validation = None if validation_records is None else Records(validation_records)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch expects gradients before a scheduler's step
        worker.build_runner(worker, dataset=Records(records), val_dataset=validation)
        tao.apply(config, len(worker.train_data_loader))
        worker.main_loop(worker)
    record.save_interval = worker._save_freq
    assert worker.train_step == worker.total_steps == len(record.rates)
    return record


def make_worker(config: Any, ranks: Any, trainer: CountingTrainer) -> Any:
    """An object with the state that `SFTPolicyWorker.__init__` and its base class leave, and the methods themselves."""
    methods = sft_methods()
    nothing = SimpleNamespace(start=lambda: None, step=lambda: None)
    names = "pre_validation_hook", "pre_per_step_validation_hook", "post_per_step_validation_hook"
    worker = SimpleNamespace(
        config=config,
        parallel_dims=ranks,
        dp_rank=0,
        dp_world_size=ranks.get_size_in_dim("dp"),
        global_rank=0,
        train_step=0,
        start_epoch=0,
        enable_dp_load_balancing=config.train.train_policy.enable_dp_load_balancing,
        train_stream=None,
        hook_fns={},
        custom_logger_fns=[],
        data_packer=SimpleNamespace(sft_process_sample=lambda sample: sample),
        val_data_packer=None,
        profiler=nothing,
        signal_handler=None,
        requested_stop_reason=None,
        trainer=trainer,
        setup=lambda **_: None,
        **dict.fromkeys((*names, "post_validation_hook")),
    )
    worker.build_runner, worker.main_loop = methods["build_runner"], methods["main_loop"]
    worker.validate = functools.partial(methods["validate"], worker)
    worker.get_batch_from_dataloader = functools.partial(methods["get_batch_from_dataloader"], worker)
    methods["TrainerRegistry"].get_trainer_cls = lambda kind: lambda **_: trainer
    return worker


@cache
def sft_methods() -> dict[str, Any]:
    """Methods of `SFTPolicyWorker` and what they call; clocks of a GPU, progress bars and saving are replaced."""
    util = COSMOS_RL.run_definitions(UTIL, "split_train_n_val_dataset", torch=torch)
    event = SimpleNamespace(record=lambda: None)
    methods = [f"SFTPolicyWorker.{name}" for name in ("build_runner", "main_loop", "validate")]
    return COSMOS_RL.run_definitions(
        WORKER,
        *(*methods, "SFTPolicyWorker.get_batch_from_dataloader", "construct_dataset", "SFTDataset", "collate_fn"),
        torch=SimpleNamespace(cuda=SimpleNamespace(Event=lambda **_: event)),
        util=SimpleNamespace(
            split_train_n_val_dataset=util["split_train_n_val_dataset"],
            call_setup=lambda dataset, config: None,
            is_master_rank=lambda ranks, rank: False,
        ),
        **{kind.__name__: kind for kind in (Callable, Dataset, DataLoader, DistributedSampler, Sampler)},
        TrainerRegistry=SimpleNamespace(),
        DPODataset=None,
        tqdm=lambda batches, **_: batches,
        training_boundary=lambda worker, step: False,
        final_checkpoint=lambda worker, save: save(),
    )


@cache
def model_classes() -> tuple[Any, dict[str, Any]]:
    """`HFModel`, Cosmos-RL's wrapper of a network of transformers, and its module of adapters."""
    base = COSMOS_RL.run_definitions(
        BASE,
        "BaseModel",
        **{"torch": torch, "ABC": ABC, "abstractmethod": abstractmethod, "cached_property": cached_property},
        util=SimpleNamespace(rank0_print=lambda *_: None),
        WeightMapper=SimpleNamespace(get_weight_mapper=lambda kind: lambda config: None),
    )
    wrapper = COSMOS_RL.run_definitions(
        HF_MODEL,
        "HFModel",
        BaseModel=base["BaseModel"],
        ModelRegistry=SimpleNamespace(register=lambda mapper: lambda kind: kind),
        HFModelWeightMapper=None,
        COSMOS_HF_MODEL_TYPES="hfmodel",
        cached_property=cached_property,
        safe_deep_getattr=COSMOS_RL.run_definitions(UTIL, "safe_deep_getattr")["safe_deep_getattr"],
        **{"torch": torch, "nn": nn, "re": re},
    )["HFModel"]
    return wrapper, COSMOS_RL.run_module(LORA, LoraConfig=None, HFModel=wrapper)


def build_network(config: Any, backbone: Any) -> Any:
    """A network of transformers after `ModelRegistry.build_hf_model`: wrapped, with adapters, frozen.

    Cosmos-RL has a Qwen2.5-VL and some decoders of its own, whose parameters have other names; for them this is what
    `train.force_use_hf` makes.
    """
    wrapper, lora = model_classes()
    is_vlm, kind = hasattr(backbone.config, "vision_config"), type(backbone)
    if is_vlm:  # Cosmos-RL requires transformers below 5.0
        parts = {name: property(lambda self, name=name: getattr(self.model, name)) for name in PARTS}
        backbone.__class__ = type(kind.__name__, (kind,), parts)
    network = wrapper(backbone.config, backbone, kind, is_vlm=is_vlm)
    adapters = {name: lora[name] for name in ("inject_lora_adapters", "mark_only_lora_as_trainable")}
    path = "ModelRegistry.build_hf_model._apply_model_post_processing"
    apply = COSMOS_RL.run_definitions(BASE, path, HFModel=wrapper, **adapters)["_apply_model_post_processing"]
    return apply(network, config)


def build_optimizer(config: Any, network: Any) -> dict[str, dict[str, Any]]:
    """Settings of the optimizer for each trained parameter, by name, before the first step."""
    config = config.model_copy(deep=True)
    worker = SimpleNamespace(config=config, parallel_dims=SimpleNamespace(pp_enabled=False))
    COSMOS_RL.run_statements(
        LLM_TRAINER,
        "LLMTrainer.__init__",
        "if isinstance(config.train.optm_lr, (float, list))",
        **{"self": worker, "config": config, "model": network},
    )
    build = optimizer_module()["build_optimizers"]
    optimizers = build(worker.model_parts, config, model_module_path=worker.model_module_path)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    settings: dict[str, dict[str, Any]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            chosen = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay")}
            settings |= {names[id(parameter)]: chosen for parameter in group["params"]}
    return settings


def list_adapters(network: Any) -> dict[str, tuple[int, float, float]]:
    """Rank, scale and dropout of each adapted layer, by its path."""
    kind = model_classes()[1]["LoraInjectedLinear"]
    found = {name: layer for name, layer in network.named_modules() if isinstance(layer, kind)}
    return {name: (layer.r, layer.scaling, layer.lora_dropout_p) for name, layer in found.items()}


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """A video that does not exist: number of frames, frames per second, height and width."""

    frames: int
    fps: float
    height: int
    width: int


@cache
def vision_module(*, asserts: bool = True) -> dict[str, Any]:
    """qwen-vl-utils without torchvision and with videos that do not exist; `asserts`: with its own assertions."""

    def resize(video: Any, size: list[int], **_: Any) -> Any:
        return torch.zeros(()).expand(*video.shape[:2], *size)

    module = QWEN_VL_UTILS.run_module(
        "vision_process.py",
        asserts=asserts,
        torchvision=SimpleNamespace(__version__="0.26.0"),
        io=None,
        transforms=SimpleNamespace(functional=SimpleNamespace(resize=resize)),
        InterpolationMode=SimpleNamespace(BICUBIC=None),
        decord=SimpleNamespace(VideoReader=VideoReader),
    )
    module["FORCE_QWENVL_VIDEO_READER"] = "decord"
    return module


class VideoReader:
    """Stands for the class of decord: black frames of a video whose facts are its path."""

    def __init__(self, path: str) -> None:
        self.facts = VideoFacts(*(float(value) if "." in value else int(value) for value in path.split("x")))

    def __len__(self) -> int:
        return self.facts.frames

    def get_avg_fps(self) -> float:
        return self.facts.fps

    def get_batch(self, indices: list[int]) -> Any:
        shape = len(indices), self.facts.height, self.facts.width, 3
        return SimpleNamespace(asnumpy=lambda: np.broadcast_to(np.zeros((), np.uint8), shape))


def read_video(
    video: VideoFacts, settings: Mapping[str, Any], patch: int, *, asserts: bool = True
) -> tuple[list[int], tuple[int, int]]:
    """Frame numbers and (height, width) that `fetch_video` gives a video with these settings.

    Raises AssertionError where qwen-vl-utils does.
    """
    module = vision_module(asserts=asserts)
    path = f"{video.frames}x{float(video.fps)}x{video.height}x{video.width}"
    element = {"type": "video", "video": path, **settings}
    frames, metadata = module["fetch_video"](element, image_patch_size=patch, return_video_metadata=True)
    return [int(index) for index in metadata["frames_indices"]], tuple(frames.shape[-2:])


def read_image(size: tuple[int, int], settings: Mapping[str, Any], patch: int, *, asserts: bool = True) -> Any:
    """(height, width) that `fetch_image` gives an image of this (height, width)."""
    module, (height, width) = vision_module(asserts=asserts), size
    image = Image.new("RGB", (width, height))
    found = module["fetch_image"]({"type": "image", "image": image, **settings}, image_patch_size=patch)
    return found.size[::-1]
