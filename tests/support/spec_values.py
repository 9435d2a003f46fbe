"""Values of published training specs: those of the run here, and those that Cosmos-RL's own code gives the same file.

Each column is a function of a `SpecCase` that returns both. The environment variables COSMOS_RL and QWEN_VL_UTILS name
the packages (see `reference_code`).
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import torch
import yaml
from cosmos_rl_values import (
    TaoKeys,
    TrainingRecord,
    VideoFacts,
    arrange_ranks,
    build_network,
    build_optimizer,
    count_processes,
    list_adapters,
    read_image,
    read_video,
    run_training,
    validate_config,
)
from published_files import VERSIONS, PublishedFile, give_verdict, published_files
from tiny_reasoner import decoder, qwen2_5_vl, qwen3_vl

from worldsmith.config.load import load
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.models.lora import adapted_layers
from worldsmith.models.parameter_names import native_parameters

RECORDS = 9001
"""A prime: no number of ranks and no batch divides it."""
VALIDATION_RECORDS = 5
Script = Literal["reason1", "reason2", "avha", "tao", ""]


@dataclass(frozen=True, slots=True)
class PublishedSpec:
    """A published spec, the data script that it was written for, and the network that it trains.

    Attributes:
        repository: Repository with the file.
        path: Path of the file in the repository.
        script: Data script: of Cosmos-Reason1, of Cosmos-Reason2, `avha_sft.py` of the cookbook, that of TAO, or "" for
            specs without images and videos.
        network: Model type of the network; "" if it is not available here.
        version: Version of the repository, where several are stored.
    """

    repository: str
    path: str
    script: Script
    network: str
    version: str = ""

    @property
    def name(self) -> str:
        """A short name that is unique among `SPECS`."""
        parts = [part for part in self.path.split("/") if part not in HIDDEN]
        return " ".join((self.repository, "/".join(parts[-3:]), self.version)).strip()

    def find(self) -> PublishedFile:
        return next(
            file
            for file in published_files()
            if (file.repository, file.path) == (self.repository, self.path)
            and self.version in ("", VERSIONS.get(file.commit))
        )


HIDDEN = ("docs", "scripts", "examples", "configs", "assets", "references", "skills", "models", "recipes")
"""Folders that say nothing about a spec."""
COOKBOOK, RECIPES = "cosmos-cookbook", "docs/recipes/post_training"
TAO, TEMPLATE = "tao-skill-bank", "skills/models/tao-finetune-cosmos-reason/references/spec_template_train.yaml"
CHECK = "physical-plausibility-check"
APPLICATIONS = "skills/applications"
SPECS = (
    PublishedSpec("cosmos-reason1", "examples/post_training/configs/sft.toml", "reason1", "qwen2_5_vl"),
    PublishedSpec("cosmos-reason1", "examples/post_training_hf/configs/sft.toml", "reason1", "qwen2_5_vl"),
    PublishedSpec("cosmos-reason1", "examples/post_training_llava/configs/sft.toml", "reason1", "qwen2_5_vl"),
    PublishedSpec("cosmos-reason2", "examples/cosmos_rl/configs/hf_sft.toml", "reason2", "qwen3_vl"),
    PublishedSpec("cosmos-reason2", "examples/cosmos_rl/configs/llava_sft.toml", "reason2", "qwen3_vl"),
    PublishedSpec(COOKBOOK, f"{RECIPES}/reason1/{CHECK}/assets/sft_config.toml", "reason1", "qwen2_5_vl"),
    PublishedSpec(
        COOKBOOK, f"{RECIPES}/reason1/temporal_localization/assets/mimicgen_sft.toml", "reason1", "qwen2_5_vl"
    ),
    PublishedSpec(COOKBOOK, f"{RECIPES}/reason1/wafermap_classification/configs/sft.toml", "reason1", "qwen2_5_vl"),
    PublishedSpec(
        COOKBOOK, f"{RECIPES}/reason2/av_3d_grounding/assets/configs/cr1_av_grounding.sft.toml", "reason1", "qwen2_5_vl"
    ),
    PublishedSpec(
        COOKBOOK, f"{RECIPES}/reason2/av_3d_grounding/assets/configs/cr2_av_grounding.sft.toml", "reason2", "qwen3_vl"
    ),
    PublishedSpec(
        COOKBOOK, "scripts/examples/reason1/av_video_caption_vqa/configs/avha_sft.toml", "avha", "qwen2_5_vl"
    ),
    PublishedSpec(
        COOKBOOK, "scripts/examples/reason1/intelligent-transportation/sft_config.toml", "reason1", "qwen2_5_vl"
    ),
    PublishedSpec(COOKBOOK, "scripts/examples/reason1/spatial-ai-warehouse/configs/sft.toml", "reason1", "qwen2_5_vl"),
    PublishedSpec(
        COOKBOOK, "scripts/examples/reason2/intelligent-transportation/sft_config.toml", "reason2", "qwen3_vl"
    ),
    PublishedSpec(
        COOKBOOK, f"scripts/examples/reason2/{CHECK}/video_critic/configs/videophy2_sft.toml", "reason2", "qwen3_vl"
    ),
    PublishedSpec("cosmos-rl", "configs/gemma/gemma3-12b-vlm-fsdp4-sft.toml", "", ""),
    PublishedSpec("cosmos-rl", "configs/gpt-oss/gpt-oss-20b-fsdp8-sft.toml", "", "gpt_oss"),
    PublishedSpec("cosmos-rl", "configs/mistral/mistral-7b-fsdp4-sft.toml", "", "mistral"),
    PublishedSpec("cosmos-rl", "configs/qwen2-5/qwen2-5-3b-tp1-sft.toml", "", "qwen2"),
    PublishedSpec("cosmos-rl", "tests/configs/sft_integration_test.toml", "", "qwen2"),
    *(PublishedSpec(TAO, TEMPLATE, "tao", "qwen3_vl", version) for version in ("7.0.0", "7.0.1", "7.1.0", "7.2")),
    *(
        PublishedSpec(
            TAO, f"{APPLICATIONS}/tao-run-deft-aoi-cosmos3/references/example_{kind}_config.toml", "tao", "qwen3_vl"
        )
        for kind in ("lora", "sft")
    ),
    PublishedSpec(TAO, f"{APPLICATIONS}/tao-run-deft-cr-its-mining/assets/cr_base_train.toml", "tao", "qwen3_vl"),
)
VIDEOS = {
    "8 s 1920x1080": VideoFacts(240, 30.0, 1080, 1920),
    "10 s 854x480": VideoFacts(300, 29.97, 480, 854),
    "60 s 640x360": VideoFacts(1500, 25.0, 360, 640),
    "4 s 320x240": VideoFacts(100, 25.0, 240, 320),
}
IMAGES = {"1920x1080": (1080, 1920), "100x80": (80, 100)}
PATCH = {"qwen2_5_vl": 14, "qwen3_vl": 16}
IMAGE_LIMITS = {"qwen2_5_vl": (3136, 12_845_056), "qwen3_vl": (65_536, 16_777_216)}
"""Least and most pixels of an image in the preprocessor_config.json of the released models."""


class SpecCase:
    """A spec, read both ways on the same data: a folder from `make_data`, which must be the current folder.

    Args:
        spec: The published spec.
        folder: The folder with the data.
        words: Further overrides, for both.
    """

    def __init__(self, spec: PublishedSpec, folder: Path, *words: str) -> None:
        self.spec, self.folder = spec, folder
        file = spec.find()
        self.words = (*give_verdict(file, folder).given, *words)
        with contextlib.redirect_stderr(io.StringIO()):
            self.tree: Any = load(str(file.write(folder)), spec_words=self.words).tree
        self.data = with_words(file.data, self.words)
        self.config = validate_config(deepcopy(self.data))

    @cached_property
    def processes(self) -> int:
        return count_processes(self.data)

    @cached_property
    def ranks(self) -> Any:
        return arrange_ranks(self.config, self.processes)

    @cached_property
    def training(self) -> TrainingRecord:
        """The reference's loop."""
        validation = self.data.get("validation", {})
        tao = TaoKeys(self.data["train"].get("optm_warmup_epochs"), validation.get("freq_in_epoch"))
        has_own = bool(self.data.get("custom", {}).get("val_dataset"))
        own = VALIDATION_RECORDS if validation.get("enable") and has_own else None
        return run_training(self.config, self.ranks, records=RECORDS, validation_records=own, tao=tao)

    @cached_property
    def network(self) -> Any:
        """The reference's network, tiny."""
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind: Any = AutoModelForImageTextToText if self.spec.network in PATCH else AutoModelForCausalLM
        return build_network(self.config, kind.from_config(tiny_config(self.spec.network)))

    @cached_property
    def own_network(self) -> Any:
        """The network of the run here, as tiny."""
        config = deepcopy(self.tree.model.config)
        config.policy.backbone.model_name = str(self.model_folder)
        return config.build(device="cpu").network

    @cached_property
    def media(self) -> Any:
        """The media processor of the run here."""
        return self.tree.dataloader_train.processor.media.build(folder=self.model_folder)

    @cached_property
    def model_folder(self) -> Path:
        """A model folder without weights that states the limits of the released one."""
        network = self.spec.network
        folder = self.folder / network
        if not folder.exists():
            config = tiny_config(network)
            config.save_pretrained(folder)
            if network in PATCH:
                sizes = dict(zip(("shortest_edge", "longest_edge"), IMAGE_LIMITS[network]))
                limits = {"patch_size": PATCH[network], "merge_size": 2, "temporal_patch_size": 2, "size": sizes}
                text = json.dumps({**limits, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
                for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
                    (folder / name).write_text(text)
        return folder

    @cached_property
    def vision(self) -> dict[str, Any]:
        """Settings that the spec's data script gives every image and video.

        Derived from the scripts `custom_sft.py`, `hf_sft.py` and `llava_sft.py` of Cosmos-Reason1 and -2 (the classes
        `CustomConfig` and `CustomDataset`) and from the constants of `avha_sft.py`, which are in no wheel. TAO's script
        is not public: it is taken to pass on what a spec states.
        """
        script, stated = self.spec.script, self.data.get("custom", {}).get("vision")
        if script == "avha":
            return {"fps": 2, "max_pixels": 16 * 9 * 28 * 28 + 1}
        if stated is None:
            stated = {"fps": 1.0} | ({} if script == "reason2" else {"max_pixels": 81_920})
        limit = {"total_pixels": int(self.config.policy.model_max_length * 1024 * 0.9)} if script == "reason2" else {}
        return stated | limit


def tiny_config(network: str) -> Any:
    sizes = {"num_hidden_layers": 2}
    return {"qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl}[network](**sizes) if network in PATCH else decoder(network)


def with_words(data: dict[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """The data of a file after overrides `key=value` in YAML and `~key`."""
    for word in words:
        key, _, value = word.removeprefix("~").partition("=")
        *above, last = key.split(".")
        node = data
        for part in above:
            node = node.setdefault(part, {})
        if word.startswith("~"):
            node.pop(last, None)
        else:
            node[last] = yaml.safe_load(value)
    return data


@dataclass(frozen=True, slots=True)
class Values:
    """A value of the run here, and the reference's.

    Attributes:
        here: The value of the run here.
        there: The value that the reference's code gives.
        text: The value in words.
        derived: Whether the reference's value needs code that is in no wheel, and was derived from its source.
    """

    here: Any
    there: Any
    text: str
    derived: bool = False


def compare_learning_rates(case: SpecCase) -> Values:
    """Learning rate and weight decay of each trained parameter, betas, epsilon, and the norm that gradients get."""
    own = deepcopy(case.tree.optimizer)
    own.fused = False
    groups = own.build(network=case.own_network).optimizer.param_groups
    names = {id(parameter): name for name, parameter in native_parameters(case.own_network).items()}
    keys = "lr", "betas", "eps", "weight_decay"
    here = {names[id(p)]: {key: group[key] for key in keys} for group in groups for p in group["params"]}
    there = build_optimizer(case.config, case.network)
    rates = sorted({settings["lr"] for settings in there.values()})
    clip = case.tree.trainer.callbacks["grad_clip"].clip_norm
    return Values(
        {**here, "clip": clip},
        {**there, "clip": case.config.train.optm_grad_norm_clip},
        f"{', '.join(f'{rate:g}' for rate in rates)}; weight decay {case.config.train.optm_weight_decay:g}",
    )


def compare_schedules(case: SpecCase) -> Values:
    """Learning rate of each step."""
    parameter = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.AdamW([parameter], lr=case.tree.optimizer.lr)
    schedule = case.tree.scheduler.build(optimizer=optimizer)
    here = []
    for _ in range(case.tree.trainer.max_iter):
        here += schedule.learning_rates
        optimizer.step()
        schedule.step()
    there = case.training.rates
    full = max(there)
    warm_up = next((step for step, rate in enumerate(there) if rate == full), 0)
    shape = case.config.train.optm_decay_type or "constant"
    return Values(
        here,
        there,
        f"full rate from step {warm_up}, {shape}, last {there[-1] / full:.2g} of it",
        derived="optm_warmup_epochs" in case.data["train"],
    )


def compare_steps(case: SpecCase) -> Values:
    return Values(case.tree.trainer.max_iter, len(case.training.rates), f"{len(case.training.rates)}")


def compare_batches(case: SpecCase) -> Values:
    """Samples of a step on each rank, and forward passes of it."""
    passes = case.tree.trainer.grad_accum_iter
    here = {passes * case.tree.dataloader_train.max_samples_per_batch: passes}
    there = case.training.mini_batches
    return Values(here, there, ", ".join(f"{batch} in {count} passes" for batch, count in there.items()))


def compare_adapters(case: SpecCase) -> Values:
    """Rank, scale and dropout of each layer with an adapter."""
    here = {
        path: (layer.r["default"], layer.scaling["default"], getattr(layer.lora_dropout["default"], "p", 0.0))
        for path, layer in adapted_layers(case.own_network).items()
    }
    there = list_adapters(case.network)
    kinds = sorted({path.rpartition(".")[2] for path in there})
    settings = "; ".join(f"r {rank}, scale {scale:g}, dropout {drop:g}" for rank, scale, drop in set(there.values()))
    return Values(
        here, there, f"{settings} on {len(there)} of the tiny layers: {', '.join(kinds)}" if there else "none"
    )


def compare_trained(case: SpecCase) -> Values:
    """Names of the trained parameters."""
    here = {name for name, parameter in native_parameters(case.own_network).items() if parameter.requires_grad}
    every = dict(case.network.named_parameters())
    there = {name for name, parameter in every.items() if parameter.requires_grad}
    return Values(here, there, f"{len(there)} of {len(every)} tensors trained")


def compare_pixels(case: SpecCase) -> Values:
    """(height, width) of videos and images."""
    here = {name: plan_video(case, video)[1] for name, video in VIDEOS.items()}
    here |= {name: case.media.image_size(*size) for name, size in IMAGES.items()}
    there: dict[str, Any] = {name: read(case, video)[1] for name, video in VIDEOS.items()}
    least, most = IMAGE_LIMITS[case.spec.network]
    # `HFVLMDataPacker.setup` and `_process` set the limits of the preprocessor where a part has none of its own.
    own = {"min_pixels": least, "max_pixels": most} if case.spec.network == "qwen3_vl" else {}
    for name, size in IMAGES.items():
        try:
            there[name] = read_image(size, own | case.vision, PATCH[case.spec.network])
        except AssertionError:
            there[name] = REFUSED
    shown = ", ".join(f"{name} -> {size[1]}x{size[0]}" for name, size in there.items() if isinstance(size, tuple))
    return Values(here, there, shown, derived=True)


def compare_frames(case: SpecCase) -> Values:
    """Numbers of the frames that are taken of videos."""
    here = {name: plan_video(case, video)[0] for name, video in VIDEOS.items()}
    there = {name: read(case, video)[0] for name, video in VIDEOS.items()}
    setting = ", ".join(f"{key} {value:g}" for key, value in case.vision.items() if key in ("fps", "nframes"))
    counts = ", ".join(f"{len(frames)}" for frames in there.values())
    return Values(here, there, f"{setting or 'fps 2 (default)'}: {counts} frames", derived=True)


REFUSED = "AssertionError"


def read(case: SpecCase, video: VideoFacts) -> tuple[list[int], Any]:
    """The reference's frames and size of a video.

    Cosmos-Reason1 requires qwen-vl-utils 0.0.11, whose `smart_resize` is that of 0.0.14 without an assertion.
    """
    patch = PATCH[case.spec.network]
    try:
        return read_video(video, case.vision, patch)
    except AssertionError:
        frames, size = read_video(video, case.vision, patch, asserts=False)
        return frames, size if case.spec.network == "qwen2_5_vl" else REFUSED


def plan_video(case: SpecCase, video: VideoFacts) -> tuple[list[int], tuple[int, int]]:
    """Frames and size of a video here."""
    info = SimpleNamespace(
        num_frames=video.frames, fps=video.fps, height=video.height, width=video.width, variable_rate=False
    )
    with mock.patch("worldsmith.data.video_decoder.examine", return_value=(None, info)):
        plan = case.media.plan_video("video.mp4")
    return plan.indices, plan.size


def compare_ranks(case: SpecCase) -> Values:
    """Replicas, shards of a replica, and processes."""
    asked = case.tree.model.config.parallelism
    degrees = plan_degrees(asked, case.processes)
    stated = asked.data_parallel_replicate_degree * asked.data_parallel_shard_degree
    here = degrees.replicate, degrees.shard, stated if stated > 0 else degrees.data
    there = case.ranks.dp_replicate, case.ranks.dp_shard, case.ranks.world_size
    return Values(here, there, f"{there[0]} x {there[1]} = {there[2]} processes")


def compare_lengths(case: SpecCase) -> Values:
    longest = case.config.policy.model_max_length
    return Values(case.tree.dataloader_train.max_sample_tokens, longest, f"{longest}")


def compare_intervals(case: SpecCase) -> Values:
    """Steps between checkpoints and between validations; None = there are none."""
    train, validation = case.config.train, case.config.validation
    here = (
        case.tree.checkpoint.save_iter if train.ckpt.enable_checkpoint else None,
        case.tree.trainer.validation_iter if case.tree.trainer.run_validation else None,
    )
    steps = sorted(case.training.validations)
    there = (
        case.training.save_interval if train.ckpt.enable_checkpoint else None,
        steps[0] if validation.enable else None,
    )
    text = f"saves every {there[0]}" if there[0] else "no checkpoints"
    derived = "freq_in_epoch" in case.data.get("validation", {})
    return Values(here, there, f"{text}, validates every {there[1]}" if steps else text, derived)


COLUMNS: Mapping[str, Callable[[SpecCase], Values]] = {
    "lr": compare_learning_rates,
    "schedule": compare_schedules,
    "steps": compare_steps,
    "batch": compare_batches,
    "LoRA": compare_adapters,
    "freezing": compare_trained,
    "pixels": compare_pixels,
    "fps": compare_frames,
    "parallelism": compare_ranks,
    "max length": compare_lengths,
    "intervals": compare_intervals,
}
OF_NETWORK, OF_MEDIA = ("lr", "LoRA", "freezing"), ("pixels", "fps")


def has_column(spec: PublishedSpec, column: str) -> bool:
    """Whether a spec has a value there: networks that are not available here have no layers, and text no pixels."""
    return bool(spec.network or column not in OF_NETWORK) and bool(spec.script or column not in OF_MEDIA)


def find_differences(values: Values) -> set[str]:
    """Names of the entries that differ, or {"value"} for what has no entries. Numbers may differ by rounding."""
    here, there = values.here, values.there
    if isinstance(here, dict) and isinstance(there, dict):
        return {str(key) for key in here.keys() | there.keys() if not is_same(here.get(key), there.get(key))}
    return set() if is_same(here, there) else {"value"}


def is_same(here: Any, there: Any) -> bool:
    if isinstance(here, dict) and isinstance(there, dict):
        return here.keys() == there.keys() and all(is_same(here[key], there[key]) for key in there)
    if isinstance(here, list | tuple) and isinstance(there, list | tuple):
        return len(here) == len(there) and all(is_same(*pair) for pair in zip(here, there))
    if isinstance(here, float) or isinstance(there, float):
        return here is not None and there is not None and math.isclose(here, there, rel_tol=1e-9, abs_tol=1e-18)
    return bool(here == there)
