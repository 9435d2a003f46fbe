"""CogVideoX as SAT names and computes it, in plain torch: checkpoints with random weights, and their answers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

VARIANTS: dict[str, dict[str, Any]] = {
    "2b": {},
    "5b": {"use_rotary_positional_embeddings": True},
    "5b_i2v": {
        "in_channels": 8,
        "use_rotary_positional_embeddings": True,
        "use_learned_positional_embeddings": True,
    },
    "1.5": {
        "patch_size_t": 2,
        "patch_bias": False,
        "use_rotary_positional_embeddings": True,
        "sample_frames": 13,
    },
    "1.5_i2v": {
        "in_channels": 8,
        "patch_size_t": 2,
        "patch_bias": False,
        "use_rotary_positional_embeddings": True,
        "sample_frames": 13,
        "ofs_embed_dim": 8,
    },
}
TINY: dict[str, Any] = {
    "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "num_layers": 2,
    "time_embed_dim": 8, "text_embed_dim": 32, "max_text_seq_length": 16, "sample_width": 8, "sample_height": 8,
    "sample_frames": 9,
}  # fmt: skip
WIDTH, HEADS, SIZE, LAYERS, TEXT = 32, 2, 16, 2, 16
PREFIX = "model.diffusion_model."


def sat_state(variant: str, *, lora: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """Random weights of a tiny network, by SAT's names (with prefix) and in SAT's forms."""
    more = VARIANTS[variant]
    channels, newer = more.get("in_channels", 4), "patch_size_t" in more
    draw = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}

    def linear(name: str, out: int, inside: int, *kernel: int) -> None:
        state[f"{name}.weight"] = torch.randn(out, inside, *kernel, generator=draw) / inside**0.5
        state[f"{name}.bias"] = torch.randn(out, generator=draw) / 10

    def norm(name: str, size: int) -> None:
        state[f"{name}.weight"] = 1 + torch.randn(size, generator=draw) / 10
        state[f"{name}.bias"] = torch.randn(size, generator=draw) / 10

    linear("time_embed.0", 8, WIDTH)
    linear("time_embed.2", 8, 8)
    if "ofs_embed_dim" in more:
        linear("ofs_embed.0", 8, 8)
        linear("ofs_embed.2", 8, 8)
    linear("mixins.patch_embed.proj", WIDTH, channels * 8 if newer else channels, *(() if newer else (2, 2)))
    linear("mixins.patch_embed.text_proj", WIDTH, 32)
    if variant == "2b":
        state["mixins.pos_embed.pos_embedding"] = sine_table()
    if variant == "5b_i2v":
        state["mixins.pos_embed.pos_embedding"] = torch.randn(1, TEXT + 48, WIDTH, generator=draw) / 10
    if variant in ("5b", "5b_i2v"):
        angles = rotary_angles(3)
        state |= {"mixins.pos_embed.freqs_sin": angles.sin(), "mixins.pos_embed.freqs_cos": angles.cos()}
    for block in range(LAYERS):
        layer = f"transformer.layers.{block}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(f"{layer}.{name}", WIDTH)
        linear(f"{layer}.attention.query_key_value", 3 * WIDTH, WIDTH)
        linear(f"{layer}.attention.dense", WIDTH, WIDTH)
        linear(f"{layer}.mlp.dense_h_to_4h", 4 * WIDTH, WIDTH)
        linear(f"{layer}.mlp.dense_4h_to_h", WIDTH, 4 * WIDTH)
        linear(f"mixins.adaln_layer.adaLN_modulations.{block}.1", 12 * WIDTH, 8)
        for name in ("query_layernorm_list", "key_layernorm_list"):
            norm(f"mixins.adaln_layer.{name}.{block}", SIZE)
    norm("transformer.final_layernorm", WIDTH)
    norm("mixins.final_layer.norm_final", WIDTH)
    linear("mixins.final_layer.adaLN_modulation.1", 2 * WIDTH, 8)
    linear("mixins.final_layer.linear", 4 * 4 * (2 if newer else 1), WIDTH)
    return {PREFIX + name: tensor for name, tensor in with_adapters(state, lora, draw).items()}


def with_adapters(state: dict[str, Tensor], rank: int, draw: torch.Generator) -> dict[str, Tensor]:
    """Weights of attention move below `.original`, and get matrices A and B, one pair for each of q, k and v."""
    if not rank:
        return state
    adapted: dict[str, Tensor] = {}
    for name, tensor in state.items():
        layer, _, leaf = name.rpartition(".")
        parts = {"query_key_value": 3, "dense": 1}.get(layer.rpartition(".")[2], 0)
        adapted[f"{layer}.original.{leaf}" if parts else name] = tensor
        for part in range(parts if leaf == "weight" else 0):
            adapted[f"{layer}.matrix_A.{part}"] = torch.randn(rank, WIDTH, generator=draw) / 5
            adapted[f"{layer}.matrix_B.{part}"] = torch.randn(WIDTH, rank, generator=draw) / 5
    return adapted


def merged(state: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The state of the same network without adapters."""
    plain = {name.replace(".original.", "."): tensor.clone() for name, tensor in state.items() if "matrix" not in name}
    for name, low in state.items():
        if ".matrix_A." in name:
            high, part = state[name.replace("matrix_A", "matrix_B")], int(name[-1])
            plain[f"{name.partition('.matrix_')[0]}.weight"][part * WIDTH : (part + 1) * WIDTH] += scale * high @ low
    return plain


def sinusoid(values: Tensor, size: int) -> Tensor:
    """Cosines first, as SAT's timestep embedding has them."""
    rates = torch.exp(-math.log(10000) * torch.arange(size // 2) / (size // 2))
    angles = values[:, None].float() * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def sine_table(frames: int = 3, side: int = 4) -> Tensor:
    """[1, text + frames * side * side, WIDTH]: a quarter for time, then width, then height; zeros for text."""

    def part(positions: Tensor, size: int) -> Tensor:
        rates = 10000 ** -(torch.arange(size // 2, dtype=torch.float64) / (size / 2))
        angles = positions.double()[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], dim=1).float()

    t, h, w = torch.meshgrid(torch.arange(frames), torch.arange(side), torch.arange(side), indexing="ij")
    space = WIDTH * 3 // 4
    table = [
        part(t.flatten(), WIDTH // 4),
        part(w.flatten() / 1.875, space // 2),
        part(h.flatten() / 1.875, space // 2),
    ]
    return torch.cat([torch.zeros(TEXT, WIDTH), torch.cat(table, dim=1)])[None]


def rotary_angles(frames: int, side: int = 4) -> Tensor:
    """[frames * side * side, SIZE], each angle twice in a row."""

    def part(count: int, size: int) -> Tensor:
        rates = 10000 ** -(torch.arange(0, size, 2) / size)
        return (torch.arange(count)[:, None] * rates).repeat_interleave(2, dim=1)

    t, h, w = part(frames, SIZE // 4), part(side, SIZE * 3 // 8), part(side, SIZE * 3 // 8)
    grid = [t[:, None, None].expand(-1, side, side, -1), h[None, :, None].expand(frames, -1, side, -1),
            w[None, None].expand(frames, side, -1, -1)]  # fmt: skip
    return torch.cat(grid, dim=-1).flatten(0, 2)


@torch.no_grad()
def sat_answer(state: dict[str, Tensor], video: Tensor, text: Tensor, steps: Tensor, *, eps: float = 1e-6) -> Tensor:
    """v of latents [B, T, C, H, W], text [B, L, d] and timesteps [B]; `eps` is that of the final layer's norm."""
    w = {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Tensor, name: str, eps: float) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)

    batch, frames, channels, height, width = video.shape
    when = linear(F.silu(linear(sinusoid(steps, WIDTH), "time_embed.0")), "time_embed.2")
    if "ofs_embed.0.weight" in w:
        ofs = sinusoid(torch.full((1,), 2.0), 8)
        when = when + linear(F.silu(linear(ofs, "ofs_embed.0")), "ofs_embed.2")
    when = F.silu(when)
    patches = w["mixins.patch_embed.proj.weight"]
    t = 2 if patches.dim() == 2 else 1
    cells = video.reshape(batch, frames // t, t, channels, height // 2, 2, width // 2, 2)
    cells = cells.permute(0, 1, 4, 6, 3, 2, 5, 7).flatten(4).flatten(1, 3)  # (c, o, p, q)
    tokens = F.linear(cells, patches.flatten(1), w["mixins.patch_embed.proj.bias"])
    x = torch.cat([linear(text, "mixins.patch_embed.text_proj"), tokens], dim=1)
    if "mixins.pos_embed.pos_embedding" in w:
        x = x + w["mixins.pos_embed.pos_embedding"]
    turned = None if sine_used(w) else rotary_angles(frames // t)
    length = text.shape[1]
    for block in range(LAYERS):
        layer = f"transformer.layers.{block}"
        parts = linear(when, f"mixins.adaln_layer.adaLN_modulations.{block}.1").chunk(12, dim=1)
        shift, scale, gate = by_token(parts[0:3], parts[6:9], x, length)
        y = norm(x, f"{layer}.input_layernorm", 1e-5) * (1 + scale) + shift
        q, k, v = linear(y, f"{layer}.attention.query_key_value").chunk(3, dim=-1)
        q, k, v = (part.unflatten(2, (HEADS, SIZE)).transpose(1, 2) for part in (q, k, v))
        q = norm(q, f"mixins.adaln_layer.query_layernorm_list.{block}", 1e-6)
        k = norm(k, f"mixins.adaln_layer.key_layernorm_list.{block}", 1e-6)
        if turned is not None:
            q, k = (torch.cat([part[:, :, :length], turn(part[:, :, length:], turned)], dim=2) for part in (q, k))
        y = F.softmax(q @ k.transpose(2, 3) / SIZE**0.5, dim=-1) @ v
        x = x + gate * linear(y.transpose(1, 2).flatten(2), f"{layer}.attention.dense")
        shift, scale, gate = by_token(parts[3:6], parts[9:12], x, length)
        y = norm(x, f"{layer}.post_attention_layernorm", 1e-5) * (1 + scale) + shift
        y = linear(F.gelu(linear(y, f"{layer}.mlp.dense_h_to_4h"), approximate="tanh"), f"{layer}.mlp.dense_4h_to_h")
        x = x + gate * y
    x = norm(x, "transformer.final_layernorm", 1e-5)[:, length:]
    shift, scale = linear(when, "mixins.final_layer.adaLN_modulation.1").chunk(2, dim=1)
    x = norm(x, "mixins.final_layer.norm_final", eps) * (1 + scale[:, None]) + shift[:, None]
    x = linear(x, "mixins.final_layer.linear").unflatten(1, (frames // t, height // 2, width // 2))
    x = x.unflatten(4, (-1, t, 2, 2)).permute(0, 1, 5, 4, 2, 6, 3, 7)
    return x.reshape(batch, frames, -1, height, width)


def by_token(of_video: Sequence[Tensor], of_text: Sequence[Tensor], x: Tensor, length: int) -> list[Tensor]:
    """Modulations [B, D] of video and text as one [B, tokens, D] each, text first."""
    rest = x.shape[1] - length
    pairs = zip(of_text, of_video, strict=True)
    return [torch.cat([t[:, None].expand(-1, length, -1), v[:, None].expand(-1, rest, -1)], dim=1) for t, v in pairs]


def sine_used(w: dict[str, Tensor]) -> bool:
    return "mixins.pos_embed.pos_embedding" in w and "mixins.pos_embed.freqs_sin" not in w


def turn(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.unflatten(3, (-1, 2)).unbind(-1)
    rotated = torch.stack([-second, first], dim=-1).flatten(3)
    return x * angles.cos() + rotated * angles.sin()


def save_sat(folder: Path, state: dict[str, Tensor], *, average: dict[str, Tensor] | None = None, **more: Any) -> Path:
    """A checkpoint as SAT writes it, with the random states that it keeps; `config.json` states a tiny network."""
    for name, tensors in (("1000", state), ("1000-ema", average)):
        if tensors is not None:
            (folder / name).mkdir(parents=True)
            states = {"np_rng_state": np.random.get_state(), "random_rng_state": random.getstate()}
            content = {"iteration": 1000, "module": tensors, **states, **more}
            torch.save(content, folder / name / "mp_rank_00_model_states.pt")
    (folder / "latest").write_text("1000")
    return folder


def draw_inputs(variant: str) -> tuple[Tensor, Tensor, Tensor]:
    """Latents, text and timesteps of two samples."""
    draw = torch.Generator().manual_seed(1)
    frames, channels = 4 if "1.5" in variant else 3, VARIANTS[variant].get("in_channels", 4)
    video = torch.randn(2, frames, channels, 8, 8, generator=draw)
    return video, torch.randn(2, TEXT, 32, generator=draw), torch.tensor([3, 800])
