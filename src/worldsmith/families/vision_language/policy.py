"""`PolicyConfig`: the backbone that is trained, its attention implementation, and its frozen parameters."""

from __future__ import annotations

from dataclasses import field
from importlib.util import find_spec
from typing import Any, Literal

from worldsmith.config import Config, wrong
from worldsmith.config.errors import UserError
from worldsmith.config.sections import check_patterns
from worldsmith.families.vision_language.published import preprocessor_files, published_config
from worldsmith.models.model_files import SubstituteComponent, find_without_download, tokenizer_files

FILES = ("config.json", "*.json", "*.jinja", "*.txt", "*.model")
"""Name patterns of the files of a model folder that are read in addition to its weights."""
NEEDS = {"flash_attention_2": "_supports_flash_attn", "sdpa": "_supports_sdpa"}
"""Attention implementation → attribute by which a transformers model class declares its support; eager always works."""


class BackboneConfig(Config):
    """Source of the backbone: a model folder, on this machine or in an object store, or a hub repository."""

    model_name: str = ""
    """Hub name, or path or address of a folder with config.json (which defines the network), tokenizer, chat template
    and preprocessor files."""
    safetensors_path: str = ""
    """Hub name or folder of the weights, unless `checkpoint.load_path` is set. Empty: those of model_name."""

    def substitute(self) -> SubstituteComponent | None:
        """Returns substitute files with the sizes of the released model `model_name`, for dry runs without its files.

        None if `model_name` is not a released model.
        """
        settings = published_config(self.model_name) if self.model_name else None
        if settings is None:
            return None
        contents = {"config.json": settings, **preprocessor_files(settings), **tokenizer_files("tiny_reasoner")}
        return SubstituteComponent("model_name", f"the sizes of {self.model_name}", (FILES,), contents)

    def check_files(self) -> None:
        """Raises FileNotFoundError if `model_name` is not available on this machine or the hub; downloads no files."""
        if self.model_name:
            find_without_download(self.model_name, file_patterns=FILES, field="model_name")


class FreezeConfig(Config):
    """Parameters to freeze: each one that at least one field selects. Patterns may match any name of a tied weight."""

    freeze_vision_encoder: bool = False
    """Freeze the vision encoder: patch embedding, positions and blocks."""
    freeze_mm_projector: bool = False
    """Freeze the projector from the vision encoder to the language model (mergers)."""
    freeze_llm: bool = False
    """Freeze the language model with its embeddings and its head."""
    trainable_params: list[str] = field(default_factory=list)
    """Regular expressions: parameters whose name matches none of them are frozen. Empty: all may be trained."""
    frozen_params: list[str] = field(default_factory=list)
    """Regular expressions: parameters whose name matches one of them are frozen. Cannot be combined with
    trainable_params."""

    def check(self) -> None:
        if self.trainable_params and self.frozen_params:
            raise wrong(self, "trainable_params", "frozen_params", why="both given", remedy="use one of them")
        for name in ("trainable_params", "frozen_params"):
            check_patterns(self, name)


class PolicyConfig(Config):
    """Backbone to train, its attention implementation, sequence packing and frozen parameters."""

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    """Source of the backbone."""
    attn_implementation: Literal["cosmos", "flash_attention_2", "sdpa", "eager"] = "cosmos"
    """Attention implementation of the backbone; cosmos: flash_attention_2 if it is installed and there is a GPU,
    otherwise sdpa."""
    sequence_packing: bool = True
    """True: the samples of a batch are packed into one row without padding, if the backbone supports it. False: one
    padded row per sample."""
    freeze: FreezeConfig = field(default_factory=FreezeConfig)
    """Frozen parameters."""


def choose_attention(requested: str, kind: Any) -> str:
    """Returns the name of the attention implementation in transformers; `cosmos` selects the best available one.

    Args:
        requested: Value of `attn_implementation`.
        kind: Model class of transformers.

    Raises:
        ValueError: If the class does not support the attention implementation.
    """
    if requested == "cosmos":
        quick = [] if find_flash_obstacle() else ["flash_attention_2"]
        return next((name for name in (*quick, "sdpa") if getattr(kind, NEEDS[name], False)), "eager")
    if requested in NEEDS and not getattr(kind, NEEDS[requested], False):
        raise ValueError(
            f"model.config.policy.attn_implementation = {requested!r}: transformers' {kind.__name__} does not support "
            "it; use 'cosmos' for the best supported one"
        )
    return requested


def check_device(requested: str, device: str) -> None:
    """Raises UserError if the `attn_implementation` given as `requested` does not run on `device`, such as "cpu"."""
    reason = find_flash_obstacle(device) if requested == "flash_attention_2" else None
    if reason is not None:
        raise UserError(
            f"model.config.policy.attn_implementation = 'flash_attention_2': {reason}; use 'sdpa', or 'cosmos' for the "
            "best available implementation"
        )


def find_flash_obstacle(device: str = "") -> str | None:
    """Returns why FlashAttention 2 cannot be used on `device` ("": on any device of this machine); None if it can."""
    import torch

    if find_spec("flash_attn") is None:
        return "the package flash-attn is not installed"
    on_gpu = device.startswith("cuda") if device else torch.cuda.is_available()
    return None if on_gpu else "it needs a GPU"
