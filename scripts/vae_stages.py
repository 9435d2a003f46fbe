"""Parts of an AutoencoderKLWan alone, for the cheap first stages of its training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import MethodType

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders import autoencoder_kl_wan as wan
from torch import Tensor


@contextlib.contextmanager
def replaced(owner: type, forward: Callable) -> Iterator[None]:
    before, owner.forward = owner.forward, forward
    try:
        yield
    finally:
        owner.forward = before


@contextlib.contextmanager
def quick_layers() -> Iterator[None]:
    """The same normalisation and convolution with less memory traffic."""

    def norm(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32)
        return x * (self.scale / length.clamp_min(1e-12)).to(x.dtype) * self.gamma.to(x.dtype)

    def convolution(self, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        missing = self._padding[4]  # frames before the first
        if missing and cache_x is not None:
            x, missing = torch.cat([cache_x, x], 2), missing - cache_x.shape[2]
        if missing:
            x = F.pad(x, (0, 0, 0, 0, missing, 0))
        return F.conv3d(x, self.weight, self.bias, self.stride, (0, self._padding[2], self._padding[0]))

    with replaced(wan.WanRMS_norm, norm), replaced(wan.WanCausalConv3d, convolution):
        yield


@torch.no_grad()
def prepare(vae: AutoencoderKLWan) -> None:
    """An encoder whose residual branches start at zero, a posterior of a fixed small width, fast memory layouts.

    Without its branches the encoder is a linear network up to its head, and a large constant channel keeps the
    normalisation of the head from changing the contrast.
    """
    for module in vae.encoder.modules():
        if isinstance(module, wan.WanResidualBlock):
            module.conv2.weight.zero_()
            module.conv2.bias.zero_()
        elif isinstance(module, wan.WanAttentionBlock):
            module.proj.weight.zero_()
            module.proj.bias.zero_()
    vae.encoder.mid_block.resnets[-1].conv2.bias[0] = 8.0
    vae.quant_conv.weight[48:].zero_()
    vae.quant_conv.bias[48:].fill_(-6.0)
    for module in vae.modules():
        if isinstance(module, torch.nn.Conv3d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last_3d)
        elif isinstance(module, torch.nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)


@contextlib.contextmanager
def without_branches(part: torch.nn.Module) -> Iterator[None]:
    """Residual blocks do no more than what they do while their last convolution has zero weights."""

    def shortcut(self, x: Tensor, feat_cache: list | None = None, feat_idx: list | None = None) -> Tensor:
        return self.conv_shortcut(x) + self.conv2.bias.view(1, -1, 1, 1, 1)

    blocks = [m for m in part.modules() if isinstance(m, wan.WanResidualBlock)]
    attentions = [m for m in part.modules() if isinstance(m, wan.WanAttentionBlock)]
    for block in blocks:
        block.forward = MethodType(shortcut, block)
    for attention in attentions:
        attention.forward = lambda x: x
    try:
        yield
    finally:
        for module in (*blocks, *attentions):
            del module.forward


def decoder_features(vae: AutoencoderKLWan, latents: Tensor, depth: int) -> Tensor:
    """What the first `depth` up-blocks of the decoder make of latents: [B, channels, T, H, W] of that resolution."""
    vae.clear_cache()
    decoder, cache, parts = vae.decoder, vae._feat_map, []
    for number, x in enumerate(vae.post_quant_conv(latents).split(1, dim=2)):
        index = [1]
        kept = x if cache[0] is None else torch.cat([cache[0][:, :, -1:], x], 2)
        x = decoder.conv_in(x, cache[0])
        cache[0] = kept
        x = decoder.mid_block(x, feat_cache=cache, feat_idx=index)
        for block in decoder.up_blocks[:depth]:
            x = block(x, feat_cache=cache, feat_idx=index, first_chunk=number == 0)
        parts.append(x)
    vae.clear_cache()
    return torch.cat(parts, 2)
