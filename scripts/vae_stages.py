"""An AutoencoderKLWan in training: whole clips at once, parts of it alone, a start that is nearly linear.

`encode` and `decode` compute what the methods of the class compute for one group of frames after the other, in about
half the time and without caches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders import autoencoder_kl_wan as wan
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify
from torch import Tensor, nn


def encode(vae: AutoencoderKLWan, video: Tensor, plain: int = 0) -> Tensor:
    """Means and logarithms of variances [B, 96, t, h, w] of [B, 3, T, H, W].

    The first `plain` blocks (four and the middle one) do without their residual branches, as if these gave zeros.
    """
    encoder = vae.encoder
    x = convolution(encoder.conv_in, patchify(video, 2))
    for number, block in enumerate(encoder.down_blocks):
        x = scaled(block, x, number < plain) + block.avg_shortcut(x)
    x = head(encoder, middle(encoder.mid_block, x, len(encoder.down_blocks) < plain))
    return convolution(vae.quant_conv, x)


def decode(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """Pixel values [B, 3, T, H, W], not clipped."""
    return unpatchify(head(vae.decoder, features(vae, latents, len(vae.decoder.up_blocks))), 2)


def features(vae: AutoencoderKLWan, latents: Tensor, depth: int) -> Tensor:
    """What the first `depth` up-blocks of the decoder make of latents: [B, channels, T, H, W] of that resolution."""
    decoder = vae.decoder
    x = middle(decoder.mid_block, convolution(decoder.conv_in, convolution(vae.post_quant_conv, latents)))
    for block in decoder.up_blocks[:depth]:
        shortcut = block.avg_shortcut(x, first_chunk=True) if block.avg_shortcut is not None else 0.0
        x = scaled(block, x) + shortcut
    return x


def scaled(block: nn.Module, x: Tensor, plain: bool = False) -> Tensor:
    """Residual blocks and a change of size, without the shortcut around them."""
    for part in block.resnets:
        x = residual(part, x, plain)
    change = getattr(block, "downsampler", None) or getattr(block, "upsampler", None)
    return x if change is None else resample(change, x)


def middle(block: wan.WanMidBlock, x: Tensor, plain: bool = False) -> Tensor:
    x = residual(block.resnets[0], x, plain)
    if not plain:
        frames = normalised(block.attentions[0].norm, x).transpose(1, 2)
        x = x + attention(block.attentions[0], frames.flatten(0, 1)).unflatten(0, frames.shape[:2]).transpose(1, 2)
    return residual(block.resnets[1], x, plain)


def head(part: nn.Module, x: Tensor) -> Tensor:
    return convolution(part.conv_out, F.silu(normalised(part.norm_out, x)))


def residual(block: wan.WanResidualBlock, x: Tensor, plain: bool = False) -> Tensor:
    shortcut = x if isinstance(block.conv_shortcut, nn.Identity) else convolution(block.conv_shortcut, x)
    if plain:
        return shortcut + block.conv2.bias.view(1, -1, 1, 1, 1)
    x = convolution(block.conv1, F.silu(normalised(block.norm1, x)))
    return shortcut + convolution(block.conv2, F.silu(normalised(block.norm2, x)))


def normalised(norm: wan.WanRMS_norm, x: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32)
    return x * (norm.scale / length.clamp_min(1e-12)).to(x.dtype) * norm.gamma.view(1, -1, 1, 1, 1).to(x.dtype)


def convolution(layer: wan.WanCausalConv3d, x: Tensor) -> Tensor:
    before = layer._padding[4]  # frames before the first
    if before:
        x = F.pad(x, (0, 0, 0, 0, before, 0))
    return F.conv3d(x, layer.weight, layer.bias, layer.stride, (0, layer._padding[2], layer._padding[0]))


def attention(block: wan.WanAttentionBlock, frames: Tensor) -> Tensor:
    """Every position of [B * T, C, H, W] looks at all positions of its frame."""
    query, key, value = block.to_qkv(frames).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, dim=-1)
    seen = F.scaled_dot_product_attention(query, key, value)
    return block.proj(seen.squeeze(1).transpose(1, 2).reshape(frames.shape))


def resample(layer: wan.WanResample, x: Tensor) -> Tensor:
    """Half or double the height and width, and frames after the first where the layer says so."""
    if layer.mode == "upsample3d":
        pairs = convolution(layer.time_conv, x[:, :, 1:]).unflatten(1, (2, x.shape[1]))
        x = torch.cat([x[:, :, :1], pairs.movedim(1, 3).flatten(2, 3)], 2)
    frames = x.transpose(1, 2)
    x = layer.resample(frames.flatten(0, 1)).unflatten(0, frames.shape[:2]).transpose(1, 2)
    if layer.mode == "downsample3d":
        x = torch.cat([x[:, :, :1], convolution(layer.time_conv, x)], 2)
    return x


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
        if isinstance(module, nn.Conv3d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last_3d)
        elif isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
