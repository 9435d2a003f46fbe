"""What stands between modalities and the residual stream: patches, timestep embedding, domain-aware linear maps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TIMESTEP_CHANNELS = 256


def patchify(latent: Tensor, patch: int) -> Tensor:
    """[C, t, h, w] to tokens [t*ceil(h/p)*ceil(w/p), p*p*C]; inside a token: patch row, patch column, channel.

    Sides that are not a multiple of the patch are filled up with zeros at the bottom and right.
    """
    channels, _, height, width = latent.shape
    latent = F.pad(latent, (0, -width % patch, 0, -height % patch)) if width % patch or height % patch else latent
    blocks = latent.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
    return blocks.permute(1, 2, 4, 3, 5, 0).reshape(-1, patch * patch * channels)


def unpatchify(tokens: Tensor, shape: tuple[int, int, int], patch: int) -> Tensor:
    """Inverse of `patchify` for a latent of shape (t, h, w); the filled-up rows and columns are cut off."""
    frames, height, width = shape
    rows, columns = -(-height // patch), -(-width // patch)
    blocks = tokens.view(frames, rows, columns, patch, patch, -1).permute(5, 0, 1, 3, 2, 4)
    return blocks.reshape(-1, frames, rows * patch, columns * patch)[:, :, :height, :width]


class TimestepEmbedder(nn.Module):
    """Sinusoid (256 channels, cosines first) → linear → SiLU → linear, in float32 whatever the weights' dtype."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        first, second = nn.Linear(TIMESTEP_CHANNELS, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.mlp = nn.ModuleList([first, nn.SiLU(), second])

    def forward(self, t: Tensor) -> Tensor:
        """t in 0..1, [n]; float32 [n, hidden]."""
        with torch.autocast(t.device.type, enabled=False):
            x = sinusoid(t.float(), TIMESTEP_CHANNELS)
            for module in self.mlp:
                x = linear_fp32(x, module) if isinstance(module, nn.Linear) else module(x)
            return x


def linear_fp32(x: Tensor, linear: nn.Linear) -> Tensor:
    """`linear(x)` in float32 whatever the weights' dtype."""
    return F.linear(x, linear.weight.float(), linear.bias.float())


def sinusoid(t: Tensor, channels: int) -> Tensor:
    """[cos(t f_k), sin(t f_k)] with f_k = 10000^(-k / (channels/2)); [n, channels]."""
    half = channels // 2
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
    angles = t[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class DomainAwareLinear(nn.Module):
    """One affine map per embodiment domain, kept as two embedding tables.

    A row of `fc` is the flattened [in, out] matrix of a domain (not the usual [out, in]).
    """

    def __init__(self, in_features: int, out_features: int, num_domains: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.fc = nn.Embedding(num_domains, in_features * out_features)
        self.bias = nn.Embedding(num_domains, out_features)

    def forward(self, x: Tensor, domain: Tensor) -> Tensor:
        """x [n, in], domain int64 [n]; [n, out]."""
        weight = self.fc(domain).view(-1, self.in_features, self.out_features)
        return torch.bmm(x[:, None], weight)[:, 0] + self.bias(domain)
