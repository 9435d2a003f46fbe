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
"""Quantization schemes by their names in compressed-tensors: W and A are the bits of weights and activations."""

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
    """Base class of quantizers: `observe` records calibration data, if needed; `fill` writes the quantized model."""

    needs_data: bool
    """Whether `observe` must be called before `fill`, because quantization needs calibration data."""
    sizes: Sizes

    @abstractmethod
    def observe(self, model: Any, samples: Iterable[Any], *, normalize: Callable[[Tensor, str], Tensor]) -> None:
        """Records the inputs of the layers while a model processes calibration samples.

        Args:
            model: The loaded model.
            samples: Calibration samples (`ChatSample`).
            normalize: Called as `normalize(patches, kind)`, where kind is "image" or "video"; returns the normalized
                patches.
        """

    @abstractmethod
    def fill(self, folder: Path, name: str) -> dict[str, Any]:
        """Writes the files of the quantized model into `folder` and returns the content of its `worldsmith.json`.

        Args:
            folder: Temporary folder.
            name: Name that the folder gets when it is complete, for the model card.
        """


@runtime_checkable
class QuantizesModels(Protocol):
    """Formats of a family whose models can be quantized, and loaded from the folders of quantized weights."""

    def quantizer(self, model: StoredModel, scheme: Scheme, group_size: int | None, method: Method) -> Quantizer:
        """Returns a quantizer for a model.

        Args:
            model: Model to quantize.
            scheme: Scheme of compressed-tensors.
            group_size: Number of weights that share a scale; None: the default of the scheme.
            method: "nearest" rounds to the nearest value, "gptq" uses calibration data.

        Raises:
            UserError: If the model cannot be quantized.
        """

    def load_quantized(self, folder: Path, device: str | torch.device) -> Any:
        """Loads the quantized model in `folder` onto `device` for inference; returns the model object of the family."""


def quantizing(family: str) -> QuantizesModels:
    """Returns the object that quantizes models of a family; raises UserError if the family does not support it."""
    formats = weight_formats(family)
    if not isinstance(formats, QuantizesModels):
        raise UserError(f"models of the family '{family}' cannot be quantized")
    return formats
