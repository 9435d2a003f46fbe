"""Quantization of models: the quantizer, and the protocol of families whose models can be quantized."""

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
        """Size before quantization divided by the size after it."""
        return self.bytes_before / self.bytes_after


class Quantizer(ABC):
    """Quantizes one model with one scheme."""

    needs_data: bool
    """Whether the inputs of layers must be observed before quantization."""
    sizes: Sizes

    @abstractmethod
    def observe(self, model: Any, samples: Iterable[Any], *, normalize: Callable[[Tensor, str], Tensor]) -> None:
        """Records the inputs of the layers while the loaded model processes samples (calibration).

        Args:
            model: Loaded model.
            samples: Samples for calibration.
            normalize: Normalizes the patches of an "image" or "video".
        """

    @abstractmethod
    def fill(self, folder: Path, name: str) -> dict[str, Any]:
        """Writes the quantized model into `folder`; `name` is its final name. Returns the description of the folder."""


@runtime_checkable
class QuantizesModels(Protocol):
    """Formats of a family whose models can be quantized; they also read the folders (`QuantizedFolders`)."""

    def quantizer(self, model: StoredModel, scheme: Scheme, group_size: int | None, method: Method) -> Quantizer:
        """Returns the quantizer of a model.

        Args:
            model: Model to quantize.
            scheme: Scheme of compressed-tensors.
            group_size: Number of weights that share a scale; None: the default of the scheme.
            method: "nearest" rounds to the nearest value, "gptq" uses calibration data.

        Raises:
            UserError: If the model cannot be quantized.
        """

    def load_quantized(self, folder: Path, device: str | torch.device) -> Any:
        """Loads the quantized model in a folder."""


def quantizing(family: str) -> QuantizesModels:
    """Returns the formats of a family whose models can be quantized; raises UserError for other families."""
    formats = weight_formats(family)
    if not isinstance(formats, QuantizesModels):
        raise UserError(f"models of the family '{family}' cannot be quantized")
    return formats
