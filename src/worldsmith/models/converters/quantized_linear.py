"""A frozen linear layer with a 4-bit or 8-bit weight (compressed-tensors), which is dequantized for each matmul."""

from __future__ import annotations

from typing import Any

import torch
from compressed_tensors.compressors import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor, nn

from worldsmith.models.converters.quantized_layer import QuantizedLayer
from worldsmith.models.real_values import in_simulation
from worldsmith.models.weight_sum import WeightSum

FORMS = {bits: QuantizationArgs(num_bits=bits, type="int", symmetric=False, strategy="channel") for bits in (4, 8)}
"""Settings of compressed-tensors by bits per weight; each block of weights is passed as one row (a "channel")."""


class QuantizedLinear(nn.Linear, QuantizedLayer):
    """Linear layer whose weight is quantized to 16 or 256 levels between the min and max of each block of weights."""

    def __init__(self, linear: nn.Linear, *, bits: int, block: int, quantized_bytes: int) -> None:
        """Builds the layer from a linear layer, whose parameters it reuses and freezes.

        Args:
            linear: The layer to replace.
            bits: Bits of a stored weight, 4 or 8.
            block: Number of neighboring weights that share a scale and a zero point.
            quantized_bytes: Bytes of the stored weights, scales and zero points.
        """
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bits, self.block, self.quantized_bytes = bits, block, quantized_bytes
        self.weight, self.bias = linear.weight.requires_grad_(False), linear.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)

    def quantize(self, value: Tensor) -> None:
        value = value.to(self.device, torch.float32)
        self.source_checksum = WeightSum.of(value)
        blocks = nn.functional.pad(value.flatten(), (0, -value.numel() % self.block)).view(-1, self.block)
        ends, form = (blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)), FORMS[self.bits]
        scale, self.zero = calculate_qparams(*ends, form)
        self.scale = scale.bfloat16()
        levels = quantize(blocks, self.scale.float(), self.zero, form, dtype=torch.int8)
        if self.bits == 8:
            self.packed = levels
        elif in_simulation():  # the library chooses by values; packing needs less than rounding
            self.packed = levels[:, : self.block * self.bits // 32].int()
        else:
            self.packed = pack_to_int32(levels, self.bits)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Returns the dequantized weight [out, in] in `dtype`.

        The values are those of `dequantize` of compressed-tensors, a function that torch.compile does not support.
        """
        shape = torch.Size((len(self.packed), self.block))
        levels = self.packed if self.bits == 8 else unpack_from_int32(self.packed, self.bits, shape)
        blocks = (levels.float() - self.zero.float()) * self.scale.float()
        return blocks.flatten()[: self.weight.numel()].view(self.weight.shape).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self.bias, self)  # type: ignore[no-any-return, no-untyped-call]


class Product(torch.autograd.Function):
    """Autograd function for x·Wᵀ + bias with a quantized W, which is dequantized again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return nn.functional.linear(x, layer.dense(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return gradient @ ctx.layer.dense(gradient.dtype), None, None
