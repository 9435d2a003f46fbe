"""What an action asks of a family to quantize a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Scheme = Literal["FP8_DYNAMIC", "FP8", "W8A8", "W8A16", "W4A16", "NVFP4", "NVFP4A16"]
"""By the names of compressed-tensors: bits of weights and of activations."""

Method = Literal["nearest", "gptq"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What quantization does to the size of a model's weights."""

    numbers: int
    quantized: int
    """How many of the numbers lie in quantized layers."""
    bytes_before: int
    """All of them in bfloat16."""
    bytes_after: int

    @property
    def factor(self) -> float:
        return self.bytes_before / self.bytes_after


class Quantizer(ABC):
    """One scheme for one model."""

    needs_data: bool
    """Whether the inputs of layers must have been observed before anything is written."""
    sizes: Sizes

    @abstractmethod
    def observe(self, model: Any, samples: Iterable[Any], *, normalize: Callable[[Tensor, str], Tensor]) -> None:
        """Notes what the layers of the loaded model get when it reads the samples."""

    @abstractmethod
    def fill(self, folder: Path, name: str) -> dict[str, Any]:
        """Writes all files of a folder that will be called `name`; returns what it says about itself."""
