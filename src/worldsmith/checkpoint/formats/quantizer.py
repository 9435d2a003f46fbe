"""Quantization of a model: the protocol of a family's formats that can do it, and its quantizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from worldsmith.checkpoint.formats.weight_formats import weight_formats
from worldsmith.config.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.checkpoint.formats.stored_model import StoredModel

Scheme = Literal["FP8_DYNAMIC", "FP8", "W8A8", "W8A16", "W4A16", "NVFP4", "NVFP4A16"]
"""Scheme names of compressed-tensors: bits of weights (W) and activations (A)."""

Method = Literal["nearest", "gptq"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model's weights before and after quantization."""

    numbers: int
    quantized: int
    """Number of elements in quantized layers."""
    bytes_before: int
    """Size of all weights in bfloat16, in bytes."""
    bytes_after: int

    @property
    def factor(self) -> float:
        return self.bytes_before / self.bytes_after


class Quantizer(ABC):
    """One scheme for one model."""

    needs_data: bool
    """Whether the inputs of layers must be observed before quantization."""
    sizes: Sizes

    @abstractmethod
    def observe(self, model: Any, samples: Iterable[Any], *, normalize: Callable[[Tensor, str], Tensor]) -> None:
        """Notes what the layers of the loaded model get when it reads the samples."""

    @abstractmethod
    def fill(self, folder: Path, name: str) -> dict[str, Any]:
        """Writes all files of a folder that will be called `name`; returns what it says about itself."""


@runtime_checkable
class QuantizesModels(Protocol):
    """Formats of a family whose models can be quantized; it reads the folders too (`QuantizedFolders`)."""

    def quantizer(self, model: StoredModel, scheme: Scheme, group_size: int | None, method: Method) -> Quantizer:
        """Returns the quantizer of a model. Raises UserError for a model that cannot be quantized."""

    def load_quantized(self, folder: Path, device: str | torch.device) -> Any:
        """Loads the quantized model in a folder."""


def quantizing(family: str) -> QuantizesModels:
    """Returns the formats of a family that quantize its models. Raises UserError if they cannot."""
    formats = weight_formats(family)
    if not isinstance(formats, QuantizesModels):
        raise UserError(f"models of the family '{family}' cannot be quantized")
    return formats
