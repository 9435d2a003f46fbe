"""`SatWeights`: reads a SAT checkpoint of CogVideoX under internal parameter names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.families.cogvideox.sat_keys import FREQUENCIES, NETWORK, SAT_TABLE, TABLE, locate_tensors
from worldsmith.files.json_file import read_json_object, section
from worldsmith.models.fill_parameters import fill
from worldsmith.models.lora import is_adapter
from worldsmith.models.weights.torch_file import FILE_ENDINGS, read_torch_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor

logger = logging.getLogger(__name__)

LATEST, STATES = "latest", "mp_rank_{:02d}_model_states.pt"
AVERAGED = "-ema"
"""Suffix of the folder with the EMA weights of an iteration."""
OTHER_COMPONENTS = {
    "conditioner.": "the text encoder",
    "first_stage_model.": "the VAE",
    "denoiser.": "the noise schedule",
}
"""Name prefixes of tensors outside of the network in a full SAT checkpoint → component name in messages."""
ALPHA = 1
"""SAT's default `lora_alpha`; a checkpoint does not state it."""


class SatWeights(WeightSource):
    """Weight source for a SAT checkpoint of CogVideoX; tensors are mapped from the file and read when needed.

    The attribute `settings` contains the fields of `NetworkConfig` that follow from tensor shapes, without the sizes of
    position embeddings.

    Args:
        file: Path `NAME/mp_rank_00_model_states.pt`. EMA weights are read from `NAME-ema/mp_rank_00_model_states.pt` if
            this file exists.

    Raises:
        UserError: If the file is damaged, contains code, or has no CogVideoX network.
    """

    family = "cogvideox"

    def __init__(self, file: Path) -> None:
        self.path = file.parent
        self.raw = SatTensors(file)
        average = file.parent.with_name(f"{file.parent.name}{AVERAGED}") / file.name
        self.ema = SatTensors(average) if average.is_file() else None
        self.describe = f"SAT checkpoint {file.parent}"
        self.shapes = self.raw.shapes()
        self.average_shapes = self.ema.shapes() if self.ema else {}
        self.unknown = self.raw.unknown
        self.settings = settings_from_shapes(self.raw.stored)
        if self.raw.excluded:
            parts = [f"{count} tensors of {component}" for component, count in self.raw.excluded.items()]
            logger.warning(
                "%s: skipped tensors of components that are not trained: %s", self.describe, ", ".join(parts)
            )
        if any(map(is_adapter, self.shapes)):
            self.adapter_alpha = ALPHA
            rank = next(shape[0] for name, shape in self.shapes.items() if name.endswith("lora_A.weight"))
            logger.warning(
                "%s: adapters of rank %d; SAT scales them by lora_alpha / %d, where lora_alpha is %d unless the "
                "SAT config set another value. Use the same lora_alpha in this run", self.describe, rank, rank, ALPHA,
            )  # fmt: skip

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        for name, tensor in tensors.items():
            fill(tensor, self._find(name, average)(name))

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        tensors = self._find(name, average)
        return tensors.stored[tensors.locations[name].key].dtype

    def _find(self, name: str, average: bool) -> SatTensors:
        if average and self.ema is not None and name in self.average_shapes:
            return self.ema
        if name not in self.shapes:
            raise KeyError(f"{self.describe} has no weight {name}")
        return self.raw


class SatTensors:
    """Network tensors of one SAT file; calling the object with an internal parameter name returns the tensor."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            content = read_torch_file(file, field="SAT checkpoint", advice="use one that SAT itself has written")
        except ValueError as error:
            raise UserError(str(error)) from None
        prefix = NETWORK if any(key.startswith(NETWORK) for key in content) else ""
        own = {key.removeprefix(prefix): tensor for key, tensor in content.items() if key.startswith(prefix)}
        others = [key for key in content if not key.startswith(prefix)]
        self.excluded = Counter(kind for key in others if (kind := excluded_component(key)))
        self.locations = locate_tensors(own)
        used = {piece.key for piece in self.locations.values()}
        derived = {*FREQUENCIES, SAT_TABLE} if is_sine_table(own) else set(FREQUENCIES)
        if is_sine_table(own):
            self.locations.pop(TABLE, None)
        self.stored = own
        self.unknown = [key for key in own if key not in used | derived and "embed_tokens" not in key]
        self.unknown += [key for key in others if not excluded_component(key)]
        if "mixins.patch_embed.proj.weight" not in own:
            raise UserError(
                f"SAT checkpoint: expected the tensors of a CogVideoX network in '{file}', found {len(content)} other "
                f"tensors, for example {next(iter(content), 'none')}"
            )

    def shapes(self) -> dict[str, list[int]]:
        sizes = {name: (piece, self.stored[piece.key].shape) for name, piece in self.locations.items()}
        return {
            name: [shape[0] // piece.of * len(piece.parts), *shape[1:]] if piece.of > 1 else list(shape)
            for name, (piece, shape) in sizes.items()
        }

    def __call__(self, name: str) -> Tensor:
        piece = self.locations[name]
        return piece.extract(self.stored[piece.key])


def excluded_component(key: str) -> str:
    """Returns the component that the SAT tensor `key` belongs to, such as "the VAE"; "": the network, or unknown."""
    return next((component for prefix, component in OTHER_COMPONENTS.items() if key.startswith(prefix)), "")


def is_sine_table(tensors: Mapping[str, Tensor]) -> bool:
    """Returns whether the position table is the computed sinusoidal one of CogVideoX-2B, and not a learned one.

    Args:
        tensors: SAT tensors of the network by name without `model.diffusion_model.`.
    """
    return SAT_TABLE in tensors and not any(name in tensors for name in FREQUENCIES) and not _has_image_input(tensors)


def _has_image_input(tensors: Mapping[str, Tensor]) -> bool:
    """Returns whether the network has an image input: twice as many input as output channels per patch.

    `tensors` are the SAT tensors of the network by name without `model.diffusion_model.`.
    """
    proj, end = tensors["mixins.patch_embed.proj.weight"], tensors["mixins.final_layer.linear.weight"]
    return proj.dim() == 4 and proj.shape[1:].numel() == 2 * len(end)


def settings_from_shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Infers fields of `NetworkConfig` from SAT tensors, given by name without `model.diffusion_model.`."""
    patches, end = tensors["mixins.patch_embed.proj.weight"], tensors["mixins.final_layer.linear.weight"]
    newer = patches.dim() == 2
    cells = 8 if newer else int(patches.shape[2:].numel())
    blocks = {int(key.split(".")[2]) for key in tensors if key.startswith("transformer.layers.")}
    norm = tensors.get("mixins.adaln_layer.query_layernorm_list.0.weight")
    size = len(norm) if norm is not None else 64
    found: dict[str, Any] = {
        "num_attention_heads": len(patches) // size,
        "attention_head_dim": size,
        "in_channels": patches.shape[1] // cells if newer else int(patches.shape[1]),
        "out_channels": len(end) // cells,
        "num_layers": 1 + max(blocks, default=-1),
        "time_embed_dim": len(tensors["time_embed.0.weight"]),
        "text_embed_dim": int(tensors["mixins.patch_embed.text_proj.weight"].shape[1]),
        "patch_size": 2 if newer else int(patches.shape[2]),
        "use_rotary_positional_embeddings": not is_sine_table(tensors),
        "norm_elementwise_affine": "transformer.final_layernorm.weight" in tensors,
    }
    if newer:
        found |= {"patch_size_t": 2, "patch_bias": False}
    else:
        found |= {"patch_bias": "mixins.patch_embed.proj.bias" in tensors}
    if "ofs_embed.0.weight" in tensors:
        found["ofs_embed_dim"] = len(tensors["ofs_embed.0.weight"])
    if SAT_TABLE in tensors and not is_sine_table(tensors):
        found["use_learned_positional_embeddings"] = True
    return found


def find_states(root: Path) -> Path | None:
    """Finds the weight file of a SAT checkpoint.

    Args:
        root: Folder of the checkpoint, or the weight file.

    Returns:
        The weight file; None if `root` is not a SAT checkpoint.

    Raises:
        UserError: If `latest` names a missing file, or the weights are split over several files.
    """
    if root.is_file():
        return root if root.suffix in FILE_ENDINGS and is_zipfile(root) else None
    states = root / STATES.format(0)
    if not states.is_file():
        if not (root / LATEST).is_file():
            return None
        name = (root / LATEST).read_text(encoding="utf-8", errors="replace").strip()
        if not (name.isdecimal() or name == "release"):
            raise UserError(f"{root / LATEST}: expected an iteration number or 'release', found {name[:40]!r}")
        states = root / name / STATES.format(0)
        if not states.is_file():
            raise UserError(f"{root / LATEST} names {name}, but {states} does not exist")
    if (states.with_name(STATES.format(1))).is_file():
        raise UserError(f"{states.parent} is split into several files (model parallel), which is not supported")
    return states


def network_settings(source: SatWeights) -> dict[str, Any]:
    """Returns the fields of `NetworkConfig` for a SAT checkpoint.

    They are read from `worldsmith.json` next to the weights, if it exists. Otherwise they are inferred from tensor
    shapes. Sizes of position embeddings do not follow from shapes: they are read from config.json or, without this
    file, are those of the released models.
    """
    for folder in source.raw.file.parents[:2]:
        if (folder / ABOUT).is_file():
            return section(section(section(read_json_object(folder / ABOUT), "model"), "config"), "network")
        if (folder / "config.json").is_file():
            return {**read_json_object(folder / "config.json"), **source.settings}
    newer = {"sample_height": 300, "sample_width": 300, "sample_frames": 81}
    return {**source.settings, **(newer if "patch_size_t" in source.settings else {})}
