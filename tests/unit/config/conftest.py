"""A small run tree with the shape of the real one, registered as the recipes `small` (vfm) and `small_vlm`."""

from __future__ import annotations

import sys
import types
from dataclasses import field
from typing import Any, ClassVar, Literal

import pytest

from worldsmith.config import Config, Configurable, recipe, toml_keys, wrong
from worldsmith.config.declare.class_tags import trust
from worldsmith.config.recipes.packages import registered
from worldsmith.config.sections import (
    ActivationCheckpointingConfig,
    CompileConfig,
    DataSettingConfig,
    JobConfig,
    ParallelismConfig,
)
from worldsmith.config.toml import toml_schema

trust(__name__)


class Ema(Configurable):
    class Config(Configurable.Config):
        enabled: bool = True
        """Keep the average."""
        rate: float = 0.1
        """Its width,
        as a share."""
        iteration_shift: int = 0

    def __init__(self, config: Config) -> None:
        self.config = config


class Vae(Configurable):
    class Config(Configurable.Config):
        vae_path: str = "pretrained/tokenizers/video/wan2pt2/Wan2.2_VAE.pth"
        """Where the VAE is."""

    def __init__(self, config: Config) -> None:
        self.config = config


class Generator(Configurable):
    class Config(Configurable.Config):
        precision: Literal["bfloat16", "float32"] = "bfloat16"
        max_num_tokens_after_packing: int = 13312
        """Tokens of a pack."""
        joint_attn_implementation: Literal["two_way", "three_way", "flex"] = "two_way"
        """Layout of the attention."""
        lora_enabled: bool = False
        lora_rank: int = 16
        lora_alpha: int = 32
        lora_target_modules: str = "q_proj_moe_gen,k_proj_moe_gen,v_proj_moe_gen,o_proj_moe_gen"
        """What gets an adapter."""
        ema: Ema.Config = field(default_factory=Ema.Config)
        parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
        compile: CompileConfig = field(default_factory=CompileConfig)
        activation_checkpointing: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)
        tokenizer: Vae.Config = field(default_factory=Vae.Config)

    def __init__(self, config: Config, *, device: str = "cpu") -> None:
        self.config, self.device = config, device


class BackboneConfig(Config):
    model_name: str = "none"
    safetensors_path: str | None = None


class PolicyConfig(Config):
    attn_implementation: str = "sdpa"
    backbone: BackboneConfig = field(default_factory=BackboneConfig)


class Reasoner(Configurable):
    class Config(Configurable.Config):
        precision: str = "bfloat16"
        lora_enabled: bool = False
        lora_rank: int = 16
        lora_alpha: int = 32
        lora_target_modules: str = "q_proj"
        policy: PolicyConfig = field(default_factory=PolicyConfig)
        ema: Ema.Config = field(default_factory=Ema.Config)
        parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
        compile: CompileConfig = field(default_factory=CompileConfig)
        activation_checkpointing: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)

    def __init__(self, config: Config) -> None:
        self.config = config


class ModelSpec(Config):
    name: str = "small"
    config: Configurable.Config = field(default_factory=Generator.Config)


class AdamW(Configurable):
    class Config(Configurable.Config):
        lr: float = 2e-4
        """Learning rate."""
        betas: list[float] = field(default_factory=lambda: [0.9, 0.99])
        """Decay rates."""
        eps: float = 1e-8
        """Added to the denominator."""
        fused: bool = True
        """Use the fused kernel."""
        keys_to_select: list[str] = field(default_factory=list)
        """Parameters to train."""
        lr_multipliers: dict[str, float] = field(default_factory=dict)
        """Factors of the learning rate."""
        weight_decay: float = 0.0
        """Decoupled weight decay."""

        def check(self) -> None:
            if self.lr <= 0:
                raise wrong(self, "lr", allowed="above 0")

    def __init__(self, config: Config, *, network: object) -> None:
        self.config, self.network = config, network


class Linear(Configurable):
    class Config(Configurable.Config):
        cycle_lengths: list[int] = field(default_factory=lambda: [20000])
        f_max: list[float] = field(default_factory=lambda: [1.0])
        f_min: list[float] = field(default_factory=lambda: [0.0])
        f_start: list[float] = field(default_factory=lambda: [1e-6])
        warm_up_steps: list[int] = field(default_factory=lambda: [100])
        verbosity_interval: int = 0

        def check(self) -> None:
            if len(self.cycle_lengths) != len(self.f_max):
                raise wrong(self, "cycle_lengths", "f_max", why="their lengths differ")

    def __init__(self, config: Config) -> None:
        self.config = config


class Cosine(Linear):
    class Config(Linear.Config):
        power: float = 1.0


class Callback(Configurable):
    class Config(Configurable.Config):
        enabled: bool = True
        """Whether it does anything."""

    def __init__(self, config: Config) -> None:
        self.config = config


class GradClip(Callback):
    class Config(Callback.Config):
        clip_norm: float = 1.0
        force_finite: bool = True


class CompileTokenizer(Callback):
    class Config(Callback.Config):
        compile_after_iterations: int = 3
        """Steps before that."""
        warmup_resolutions: list[str] | None = None
        """Sizes to compile ahead."""


class LoopConfig(Config):
    max_iter: int = 500
    grad_accum_iter: int = 1
    logging_iter: int = 50
    seed: int = 0
    distributed_parallelism: str = "fsdp"
    callbacks: dict[str, Callback.Config] = field(
        default_factory=lambda: {"grad_clip": GradClip.Config(), "compile_tokenizer": CompileTokenizer.Config()}
    )


class Checkpointer(Configurable):
    class Config(Configurable.Config):
        load_path: str | None = None
        save_iter: int = 100
        keys_to_skip_loading: list[str] = field(default_factory=list)

    def __init__(self, config: Config) -> None:
        self.config = config


class Loader(Configurable):
    class Config(Configurable.Config):
        max_samples_per_batch: int | None = None
        max_sequence_length: int | None = None
        max_caption_tokens: int | None = None
        """Tokens of a caption."""
        seed: int = 42

    def __init__(self, config: Config) -> None:
        self.config = config


class ReasonerLoader(Configurable):
    class Config(Configurable.Config):
        max_samples_per_batch: int | None = None
        max_sequence_length: int | None = None

    def __init__(self, config: Config) -> None:
        self.config = config


class Trainer(Configurable):
    class Config(Configurable.Config):
        job: JobConfig = field(default_factory=JobConfig)
        model: ModelSpec = field(default_factory=ModelSpec)
        optimizer: AdamW.Config = field(default_factory=AdamW.Config)
        scheduler: Linear.Config | Cosine.Config = field(default_factory=Cosine.Config)
        trainer: LoopConfig = field(default_factory=LoopConfig)
        checkpoint: Checkpointer.Config = field(default_factory=Checkpointer.Config)
        dataloader_train: Loader.Config | ReasonerLoader.Config = field(default_factory=Loader.Config)
        data_setting: DataSettingConfig = field(default_factory=DataSettingConfig)
        custom: dict[str, Any] = field(default_factory=dict)
        _root: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config


@recipe("small")
def small() -> Trainer.Config:
    """A small generator run."""
    return Trainer.Config(
        job=JobConfig(project="p", group="g", name="small"),
        optimizer=AdamW.Config(lr_multipliers={"head": 2.0}),
        scheduler=Cosine.Config(cycle_lengths=["${trainer.max_iter}"]),  # type: ignore[list-item]
    )


@recipe("small_vlm")
def small_vlm() -> Trainer.Config:
    """A small reasoner run."""
    return Trainer.Config(
        job=JobConfig(task="vlm"),
        model=ModelSpec(config=Reasoner.Config()),
        dataloader_train=ReasonerLoader.Config(),
    )


def small_keys() -> dict[Any, toml_schema.TomlField]:
    """The keys of the recipe TOML that these recipes add."""
    names = ("max_num_tokens_after_packing", "joint_attn_implementation")
    toml_keys("model", Generator.Config, *names, at="model.config", only="vfm")
    toml_keys("model", Generator.Config, "lora_target_modules", at="model.config")
    toml_keys("model.tokenizer", Vae.Config, "vae_path", at="model.config.tokenizer", only="vfm")
    names = ("enabled", "compile_after_iterations", "warmup_resolutions")
    toml_keys("trainer.callbacks.compile_tokenizer", CompileTokenizer.Config, *names, only="vfm")
    toml_keys("dataloader_train", Loader.Config, "max_caption_tokens", only="vfm")
    toml_keys("optimizer", AdamW.Config)
    return dict(toml_schema._ADDED)


# Taken back, so that tests of the shipped recipes, in the same process, do not see them.
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(toml_schema, "_ADDED", {})
    SMALL_KEYS = small_keys()
SMALL = {name: registered().pop(name) for name in ("small", "small_vlm")}


@pytest.fixture(autouse=True)
def only_these_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped recipes are not imported: these tests are about the config system alone."""
    monkeypatch.setattr("worldsmith.config.recipes.packages._RECIPES", dict(SMALL))
    monkeypatch.setattr(toml_schema, "_ADDED", dict(SMALL_KEYS))
    monkeypatch.setitem(sys.modules, "worldsmith.families.recipes", types.ModuleType("worldsmith.families.recipes"))


@pytest.fixture
def t() -> types.ModuleType:
    """This module, for its classes."""
    return sys.modules[__name__]
