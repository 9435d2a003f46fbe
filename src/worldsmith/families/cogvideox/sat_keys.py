"""Maps tensor names of SAT's CogVideoX checkpoints to diffusers' names and back.

SAT stores the projections of queries, keys and values in one tensor, and the twelve modulations of a block in another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NETWORK = "model.diffusion_model."
"""Prefix of all network parameters in a SAT checkpoint."""
TABLE = "patch_embed.pos_embedding"
SAT_TABLE = "mixins.pos_embed.pos_embedding"
FREQUENCIES = ("mixins.pos_embed.freqs_sin", "mixins.pos_embed.freqs_cos")
"""SAT names of the rotary tables of CogVideoX 1.0, which are computed and not loaded."""
ATTENTION = ("to_q", "to_k", "to_v")
MODULATION = (("norm1", (0, 1, 2, 6, 7, 8)), ("norm2", (3, 4, 5, 9, 10, 11)))
"""(Norm in diffusers, indices of its chunks) of the twelve modulation chunks (shift, scale, gate) of a SAT block."""
ENDS = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "ofs_embed.0": "ofs_embedding.linear_1",
    "ofs_embed.2": "ofs_embedding.linear_2",
    "mixins.patch_embed.proj": "patch_embed.proj",
    "mixins.patch_embed.text_proj": "patch_embed.text_proj",
    "transformer.final_layernorm": "norm_final",
    "mixins.final_layer.norm_final": "norm_out.norm",
    "mixins.final_layer.adaLN_modulation.1": "norm_out.linear",
    "mixins.final_layer.linear": "proj_out",
}
LAYER = {
    "input_layernorm": "norm1.norm",
    "post_attention_layernorm": "norm2.norm",
    "attention.dense": "attn1.to_out.0",
    "mlp.dense_h_to_4h": "ff.net.0.proj",
    "mlp.dense_4h_to_h": "ff.net.2",
}
MIXINS = {"query_layernorm_list": "attn1.norm_q", "key_layernorm_list": "attn1.norm_k"}
TensorChunks = tuple[str, tuple[int, ...]]
"""(Tensor name in diffusers, indices of the chunks of a SAT tensor that form this tensor)."""


@dataclass(frozen=True, slots=True)
class SatLocation:
    """Location of a network tensor in a SAT checkpoint: chunks of the SAT tensor `key` along its first dimension."""

    key: str
    parts: tuple[int, ...] = (0,)
    """Indices of the network tensor's chunks along the first dimension of the SAT tensor, in this order."""
    of: int = 1
    """Number of equal chunks in the SAT tensor."""

    def extract(self, stored: Tensor) -> Tensor:
        """Extracts the network tensor from the SAT tensor `stored`; a single chunk is returned as a view."""
        import torch

        parts = [stored.chunk(self.of)[part] for part in self.parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def list_network_tensors(key: str) -> list[TensorChunks]:
    """Returns the network tensors that a SAT tensor contains: (diffusers name, chunk indices) of each.

    The SAT tensor consists of equal chunks along its first dimension; the indices are (0,) for a single network tensor.

    Args:
        key: Name of the SAT tensor without `model.diffusion_model.`; an unknown name gives an empty list.
    """
    if key == SAT_TABLE:
        return [(TABLE, (0,))]
    path, _, leaf = key.replace(".original.", ".").rpartition(".")
    if found := ENDS.get(path):
        return [(f"{found}.{leaf}", (0,))]
    if match := re.fullmatch(r"transformer\.layers\.(\d+)\.(.+)", key):
        return _list_layer_tensors(f"transformer_blocks.{match[1]}", match[2].replace(".original.", "."))
    if match := re.fullmatch(r"mixins\.adaln_layer\.(\w+)\.(\d+)(\.1)?\.(weight|bias)", key):
        mixin, block, inner, leaf = match.groups()
        block = f"transformer_blocks.{block}"
        if mixin in MIXINS and not inner:
            return [(f"{block}.{MIXINS[mixin]}.{leaf}", (0,))]
        if mixin == "adaLN_modulations" and inner:
            return [(f"{block}.{norm}.linear.{leaf}", parts) for norm, parts in MODULATION]
    return []


def _list_layer_tensors(block: str, rest: str) -> list[TensorChunks]:
    path, _, leaf = rest.rpartition(".")
    if path in LAYER:
        return [(f"{block}.{LAYER[path]}.{leaf}", (0,))]
    if path == "attention.query_key_value":
        return [(f"{block}.attn1.{name}.{leaf}", (index,)) for index, name in enumerate(ATTENTION)]
    if match := re.fullmatch(r"attention\.(query_key_value|dense)\.matrix_([AB])", path):
        layers = ATTENTION if match[1] == "query_key_value" else ("to_out.0",)
        if leaf.isdecimal() and int(leaf) < len(layers):
            return [(f"{block}.attn1.{layers[int(leaf)]}.lora_{match[2]}.weight", (0,))]
    return []


def locate_tensors(keys: Iterable[str]) -> dict[str, SatLocation]:
    """Returns the location of each network tensor in a SAT checkpoint, by diffusers name.

    Args:
        keys: Names of the tensors in the checkpoint, without `model.diffusion_model.`; unknown names are ignored.
    """
    found = {}
    for key in keys:
        tensors = list_network_tensors(key)
        for name, parts in tensors:
            found[name] = SatLocation(key, parts, sum(len(other) for _, other in tensors))
    return found


def sat_keys(names: Iterable[str]) -> dict[str, list[TensorChunks]]:
    """Returns which tensors a SAT checkpoint of a network has, and which network tensors each of them contains.

    Args:
        names: Diffusers names of all parameters of a network, including those of LoRA adapters.

    Returns:
        SAT name without `model.diffusion_model.` -> (diffusers name, chunk indices) of each network tensor in the SAT
        tensor. SAT names of base weights of layers with adapters contain `.original`.

    Raises:
        ValueError: If SAT has no name for a tensor.
    """
    wanted = set(names)
    blocks = 1 + max((int(name.split(".")[1]) for name in wanted if name.startswith("transformer_blocks.")), default=-1)
    known = {key: list_network_tensors(key) for key in list_sat_keys(blocks)}
    existing = {key: found for key, found in known.items() if all(name in wanted for name, _ in found)}
    rest = sorted(wanted - {name for found in existing.values() for name, _ in found})
    if rest:
        raise ValueError(
            f"{len(rest)} of {len(wanted)} tensors have no equivalent in a SAT checkpoint, such as {rest[0]}"
        )
    matrices = [key for key in existing if ".matrix_" in key]
    if len(matrices) not in (0, 8 * blocks):
        raise ValueError("SAT supports adapters only on to_q, to_k, to_v and to_out.0 of every block")
    adapted = {key.rpartition(".matrix_")[0] for key in matrices}
    return {
        base_weight_name(key) if key.rpartition(".")[0] in adapted else key: found for key, found in existing.items()
    }


def base_weight_name(key: str) -> str:
    """Returns the SAT name of the base weight of a layer with adapters: `PATH.LEAF` becomes `PATH.original.LEAF`."""
    path, _, leaf = key.rpartition(".")
    return f"{path}.original.{leaf}"


def list_sat_keys(blocks: int) -> list[str]:
    """Returns all tensor names that a SAT checkpoint of a network with `blocks` transformer blocks can contain.

    Included are a position table, LoRA matrices, and weight and bias of every module. The names do not have the prefix
    `model.diffusion_model.`, and base weights do not have `.original`.
    """
    paths = list(ENDS)
    keys = [SAT_TABLE]
    for block in range(blocks):
        layer, mixins = f"transformer.layers.{block}", "mixins.adaln_layer"
        paths += [f"{layer}.{name}" for name in (*LAYER, "attention.query_key_value")]
        paths += [f"{mixins}.{name}.{block}" for name in MIXINS] + [f"{mixins}.adaLN_modulations.{block}.1"]
        for name, number in (("query_key_value", 3), ("dense", 1)):
            keys += [f"{layer}.attention.{name}.matrix_{m}.{index}" for m in "AB" for index in range(number)]
    return keys + [f"{path}.{leaf}" for path in paths for leaf in ("weight", "bias")]


def concatenate_chunks(chunks: Sequence[TensorChunks], tensors: Mapping[str, Tensor]) -> Tensor:
    """Returns the SAT tensor that contains the given network tensors, by concatenating their chunks.

    Args:
        chunks: (diffusers name, indices of its chunks in the SAT tensor) of each network tensor.
        tensors: Network tensors by diffusers name.
    """
    import torch

    parts: dict[int, Tensor] = {}
    for name, order in chunks:
        parts |= zip(order, tensors[name].chunk(len(order)), strict=True)
    return torch.cat([parts[index] for index in sorted(parts)]) if len(parts) > 1 else parts[0]
