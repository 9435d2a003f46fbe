"""The video VAE of CogVideoX in a file of SAT's (`3d-vae.pt`), under diffusers' names and back.

The file has no config of its own: it is that of the published VAE, unless a JSON file of the same stem lies beside it
(`3d-vae.json`), which a VAE of another size needs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.json_file import read_json_object
from worldsmith.models.torch_file import read_torch_file

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "model.config.tokenizer.vae_path"
LOSS = "loss."
"""Beginning of the names of what the VAE was trained against."""
STAGES = 4
MIDDLE = {"block_1": "resnets.0", "block_2": "resnets.1"}


def diffusers_name(name: str) -> str | None:
    """The name of a tensor of SAT's in `AutoencoderKLCogVideoX`; None for a name that the file cannot have."""
    match = re.fullmatch(r"(encoder|decoder)\.(.+)", name)
    if match is None:
        return None
    tower, rest = match.groups()
    if middle := re.fullmatch(r"mid\.(block_[12])\.(.+)", rest):
        return f"{tower}.mid_block.{MIDDLE[middle[1]]}.{_inner(middle[2])}"
    stage = re.fullmatch(r"(down|up)\.([0-3])\.(?:block\.(\d+)\.(.+)|(downsample|upsample)\.(.+))", rest)
    if stage is None:
        return name if re.match(r"(conv_in|conv_out|norm_out)\.", rest) else None
    side, number, block, inner, sampler, leaf = stage.groups()
    place = f"{tower}.{side}_blocks.{number if side == 'down' else STAGES - 1 - int(number)}"
    return f"{place}.resnets.{block}.{_inner(inner)}" if block else f"{place}.{sampler}rs.0.{leaf}"


def _inner(path: str) -> str:
    return path.replace("nin_shortcut.", "conv_shortcut.")


def sat_name(name: str) -> str:
    """Inverse of `diffusers_name`, for names of `AutoencoderKLCogVideoX`."""
    name = name.replace("conv_shortcut.", "nin_shortcut.")
    for block, resnet in MIDDLE.items():
        name = name.replace(f".mid_block.{resnet}.", f".mid.{block}.")
    name = re.sub(r"\.up_blocks\.(\d)\.", lambda m: f".up.{STAGES - 1 - int(m[1])}.", name)
    name = re.sub(r"\.down_blocks\.(\d)\.", r".down.\1.", name)
    return re.sub(r"\.(down|up)samplers\.0\.", r".\1sample.", name).replace(".resnets.", ".block.")


def read_settings(file: Path) -> dict[str, Any]:
    """What the JSON file beside a VAE's file says; empty for the published one. Raises FileNotFoundError."""
    if not file.is_file():
        raise FileNotFoundError(f"{FIELD}: there is no file '{file}'")
    config = file.with_suffix(".json")
    return read_json_object(config) if config.is_file() else {}


def read_pt(file: Path) -> dict[str, Tensor]:
    """The tensors of the file under diffusers' names, mapped from disk; those of its loss are left.

    Raises ValueError for a file that is damaged, holds code, or is no such VAE.
    """
    content = read_torch_file(file, field=FIELD, advice="get it anew from its publisher, or give a diffusers folder")
    names = {name: diffusers_name(name) for name in content if not name.startswith(LOSS)}
    unknown = [name for name, found in names.items() if found is None]
    if unknown or not names:
        raise ValueError(
            f"{FIELD}: '{file}' is no VAE of CogVideoX: {len(unknown)} of {len(names)} names are unknown"
            + (f", such as '{unknown[0]}'" if unknown else "")
        )
    return {found: content[name] for name, found in names.items() if found is not None}
