"""`LoraNames`: names of a network's linear layers in LoRA files of other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

PREFIX = "base_model.model"
"""Prefix of the adapted model's names in PEFT."""
FILE_PREFIX = re.compile(r"transformer\.|diffusion_model\.|base_model\.model\.|lora_unet_+|lora_transformer_")
"""Prefixes of layer names in LoRA files: diffusers, ComfyUI, PEFT, kohya's trainers, OneTrainer."""
BLOCK = re.compile(r"(?<=blocks[._])\d+(?=[._])")
"""The number of a block in the name of a layer."""


@dataclass(frozen=True)
class LoraNames:
    """Names of a network's linear layers in LoRA files; `N` stands for the number of a block."""

    original: Mapping[str, str] = field(default_factory=dict)
    """Path of a layer in diffusers → path in the network's original code; empty: ComfyUI does not have the network."""
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Path in the original code of a layer that diffusers splits → paths in diffusers, in the order of output rows."""
    reads_diffusers: bool = False
    """Whether ComfyUI reads diffusers' paths for this network, instead of those of the original code."""
    scaled_copy: str = ""
    """Suffix of a second file with diffusers' paths, in which B is multiplied by alpha / rank, for a custom node of
    ComfyUI that ignores alpha; empty: no such file."""

    def comfyui_layer(self, path: str) -> str:
        """Returns a layer's name in LoRA files for ComfyUI from its path in diffusers.

        Raises ValueError if ComfyUI has no name for the layer.
        """
        if self.reads_diffusers:
            return f"transformer.{path}"
        name, number = without_block(path)
        if name not in self.original:
            raise ValueError(f"ComfyUI has no name for the layer {path}; omit it from model.config.lora_target_modules")
        return f"diffusion_model.{self.original[name].replace('N', number)}"

    def find_layer(self, name: str) -> list[str]:
        """Returns the paths in diffusers of a layer in a LoRA file of any program; [] for an unknown name.

        Several paths are those of a layer that diffusers splits.
        """
        bare = FILE_PREFIX.sub("", name, count=1)
        if not self.original:
            return [bare] if name.startswith(("transformer.", f"{PREFIX}.")) else []
        layer, number = without_block(bare)
        return [path.replace("N", number) for path in self._known.get(layer, ())]

    @cached_property
    def _known(self) -> Mapping[str, Sequence[str]]:
        """Path of a layer, in diffusers or in the original code, with dots or with underscores → paths in diffusers."""
        known = {original: paths for original, paths in self.joined.items()}
        known |= {path: [path] for path in (*self.original, *(path for paths in known.values() for path in paths))}
        known |= {original: [path] for path, original in self.original.items()}
        return known | {name.replace(".", "_"): paths for name, paths in known.items()}


def without_block(name: str) -> tuple[str, str]:
    """Returns the name of a layer with `N` instead of the number of its block, and that number, "" without a block."""
    number = BLOCK.search(name)
    return (name, "") if number is None else (name[: number.start()] + "N" + name[number.end() :], number[0])
