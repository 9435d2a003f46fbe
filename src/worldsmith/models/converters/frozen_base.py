"""`FrozenBase`: LoRA adapters on base weights quantized to 4 or 8 bits, as in QLoRA (Dettmers et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import WrongValueError
from worldsmith.files.errors import require_libraries
from worldsmith.models.converters.converter import Converter, linear_layers, replace_modules
from worldsmith.models.real_values import real_values

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.models.network_parts import NetworkParts


BLOCK = 32
"""Number of consecutive weights (of the flattened matrix) that share a bfloat16 scale and an int8 zero point."""


class FrozenBase(Converter):
    """Quantizes the frozen base weights of linear layers to 4 or 8 bits; adapters are trained on the quantized network.

    - Converts all linear layers of the repeated layers, adapted or not. Weights are read and quantized one by one: the
      network never exists in full precision. Each rank stores all quantized weights; FSDP shards the other parameters.
    - Checkpoints contain only the adapters. Merging adds them to the original weights that the run was started from.
    """

    class Config(Converter.Config):
        training_only: ClassVar[bool] = True

        bits: Literal[4, 8] = 4
        """Bits per quantized weight; 32 neighboring weights share a scale and a zero point."""
        leave_out: list[str] = field(default_factory=list)
        """Substrings of the names of layers that are not quantized, such as to_out or transformer_blocks.0."""

        def check_run(self, run: Any) -> None:
            model = run.model.config
            if not model.lora_enabled:
                raise WrongValueError(
                    {"model.config.lora_enabled": False},
                    why="frozen_base freezes the weights that it quantizes, but without adapters they would be trained",
                    remedy="set lora_enabled = true, or omit the converter",
                )
            if run.checkpoint.save_weights != "trained":
                raise WrongValueError(
                    {"checkpoint.save_weights": run.checkpoint.save_weights},
                    why="frozen_base stores only quantized base weights, which a checkpoint cannot contain",
                    remedy='write "trained": a resumed run reads the base weights from the initial weights',
                )
            if model.ema.enabled and not model.ema.trainable_only:
                raise WrongValueError(
                    {"model.config.ema.trainable_only": False},
                    why="EMA weights of quantized weights would need as much memory as the unquantized weights",
                    remedy="set it to true, or ema.enabled to false",
                )

        def check_files(self) -> None:
            """Raises UserError if compressed-tensors is not installed."""
            require_libraries("frozen_base", "quantize", "compressed_tensors")

        def quantized_bytes(self, layers: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
            kept = {path: shape for path, shape in layers.items() if not any(part in path for part in self.leave_out)}
            return {path: packed_bytes(math.prod(shape), self.bits) for path, shape in kept.items()}

    config: Config

    def convert(self, network: nn.Module, parts: NetworkParts) -> Sequence[str]:
        import torch

        self.config.check_files()
        # compressed-tensors creates a constant tensor when it is imported, and needs its values for NVFP4 later.
        # The network is built on the meta device, where that constant would have none.
        with real_values(), torch.device("cpu"):
            from worldsmith.models.converters.quantized_linear import QuantizedLinear

        layers = linear_layers(network, parts, self.config.leave_out)
        bits = self.config.bits
        quantized = {
            path: QuantizedLinear(
                layer, bits=bits, block=BLOCK, quantized_bytes=packed_bytes(layer.weight.numel(), bits)
            )
            for path, layer in layers.items()
        }
        return replace_modules(network, quantized)


def packed_bytes(numbers: int, bits: int) -> int:
    """Returns the bytes of `numbers` elements quantized to `bits` bits, including scales and zero points."""
    return -(-numbers // BLOCK) * (BLOCK * bits // 8 + 2 + 1)
