"""`Float8`: computes matmuls in float8 with torchao."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import WrongValueError
from worldsmith.config.errors import UserError
from worldsmith.files.errors import require_libraries
from worldsmith.models.converters.converter import Converter, linear_layers

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.models.network_parts import NetworkParts

logger = logging.getLogger(__name__)

MULTIPLE = 16
"""Required divisor of the input and output sizes of a layer with float8 matmuls on NVIDIA GPUs."""
CAPABILITY = (8, 9)
"""Minimum compute capability (major, minor) of NVIDIA GPUs with float8 matmuls."""


class Float8(Converter):
    """Computes the matmuls of linear layers, forward and backward, in float8; weights keep their dtype.

    - Converts the linear layers in the repeated layers of the network, if input and output size are multiples of 16.
    - Adapters are not converted, but the base layers that they adapt are.
    - Training is faster only on GPUs with float8 matmuls, with large layers and compile.enabled. On a CPU, matmuls of
      factors in float8 are computed as float32 matmuls: slower, with the same rounding.
    """

    class Config(Converter.Config):
        training_only: ClassVar[bool] = True

        recipe: Literal["rowwise", "tensorwise"] = "rowwise"
        """`rowwise`: one scale per row; `tensorwise`: one scale per tensor, faster and less accurate."""
        leave_out: list[str] = field(default_factory=list)
        """Substrings of the names of layers that are not converted, such as to_out or transformer_blocks.0."""

        def check_run(self, run: Any) -> None:
            if run.model.config.precision != "bfloat16":
                raise WrongValueError(
                    {"model.config.precision": run.model.config.precision},
                    why="float8 requires bfloat16 computation",
                    remedy='write "bfloat16", or omit the converter',
                )

        def check_files(self) -> None:
            """Raises UserError if torchao is not installed."""
            require_libraries("float8 training", "float8", "torchao")

        def check_device(self, device: str) -> None:
            import torch

            if device == "cpu":
                logger.info("Float8: no GPU: matmuls of float8 factors are computed in float32, which is slow")
                return
            found = torch.cuda.get_device_capability(device) if device.startswith("cuda") else None
            if found is None or found < CAPABILITY:
                kind = "no NVIDIA GPU" if found is None else f"a GPU of {found[0]}.{found[1]}"
                raise UserError(
                    "model.config.converters: Float8 needs a CPU, or a GPU of compute capability "
                    f"{CAPABILITY[0]}.{CAPABILITY[1]} or higher, but '{device}' is {kind}; omit the converter"
                )

        def quantized_bytes(self, layers: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
            return {}

    config: Config

    def convert(self, network: nn.Module, parts: NetworkParts) -> Sequence[str]:
        self.config.check_files()
        import torchao.float8 as library

        layers = linear_layers(network, parts, self.config.leave_out)
        paths = [path for path, layer in layers.items() if supports_float8(layer)]
        if layers and not paths:
            raise ValueError(f"no linear layer has input and output sizes that are multiples of {MULTIPLE}; omit it")
        if skipped := len(layers) - len(paths):
            self.remark = f"{skipped} skipped, whose sizes are not multiples of {MULTIPLE}"
        settings: Any = library.Float8LinearConfig.from_recipe_name(self.config.recipe)
        settings = replace(settings, pad_inner_dim=True)  # the weight gradient is a sum over any number of tokens
        library.convert_to_float8_training(network, module_filter_fn=lambda layer, path: path in paths, config=settings)
        return paths


def supports_float8(layer: nn.Linear) -> bool:
    """Returns whether the input and output sizes of a layer are multiples of 16, which float8 matmuls require."""
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0
