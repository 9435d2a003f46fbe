"""RMSNorm, in the two flavours of the backbones, with a short backward pass on CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, computed in float32.

    Qwen-style: cast back before the multiplication. With `scale_in_fp32` (Edge): cast back after it.
    """

    def __init__(self, size: int, eps: float, *, scale_in_fp32: bool) -> None:
        super().__init__()
        self.eps, self.scale_in_fp32 = eps, scale_in_fp32
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        shape = self.weight.shape
        if x.dtype == torch.float32 == self.weight.dtype:
            if x.device.type == "cpu":
                return CpuRMSNorm.apply(x, self.weight, self.eps)
            return F.rms_norm(x, shape, self.weight, self.eps)
        if self.scale_in_fp32:
            return F.rms_norm(x.float(), shape, self.weight.float(), self.eps).to(x.dtype)
        return F.rms_norm(x.float(), shape, None, self.eps).to(x.dtype) * self.weight.to(x.dtype)


class CpuRMSNorm(torch.autograd.Function):
    """`F.rms_norm` with a closed-form backward: torch has no fused one on CPU and runs a dozen passes instead.

    With n = x / rms(x): d weight = sum g n, dx = (g w - n mean(g w n)) / rms(x).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        weight_grad = (grad * normed).flatten(0, -2).sum(0)
        grad = grad * weight
        overlap = (grad * normed).mean(-1, keepdim=True)
        return grad.addcmul_(normed, overlap, value=-1).mul_(scale), weight_grad, None
