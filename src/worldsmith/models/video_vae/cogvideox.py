"""The video VAE of CogVideoX (8× in space, 4× in time), from a diffusers folder or from a file of SAT.

A file of SAT (`3d-vae.pt`) has no config. The config of the released VAE is used, unless a JSON file with the same stem
is next to it (`3d-vae.json`); a VAE of another size needs one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.files.json_file import read_optional_json
from worldsmith.files.remote import in_store
from worldsmith.files.remote_folder import fetch_folder
from worldsmith.models.model_files import SCHEME, SubstituteComponent, local_path
from worldsmith.models.real_values import in_simulation
from worldsmith.models.video_vae.posterior import PosteriorVAE
from worldsmith.models.video_vae.vae_folder import COGVIDEOX, FIELD, vae_substitute
from worldsmith.models.weights.torch_file import FILE_ENDINGS, read_torch_file, require_expected_tensors

if TYPE_CHECKING:
    from torch import Tensor

LOSS = "loss."
"""Name prefix of the discriminator and the other parts of the VAE's training loss."""
STAGES = 4
MIDDLE = {"block_1": "resnets.0", "block_2": "resnets.1"}
TEMPORAL_FACTOR, SPATIAL_FACTOR = 4, 8
DECODED_FRAMES = 2
"""Number of latent frames that diffusers decodes together; only clips of 8k+1 frames keep their length."""


class CogVideoXVAE(PosteriorVAE):
    """VAE of CogVideoX: 4k+1 frames become k+1 latent frames. Released scaling factor: 1.15258426 (2B), 0.7 (5B).

    `vae_path` may also be a file of SAT, such as `3d-vae.pt`, which does not contain the scaling factor.
    """

    recipe = "cogvideox-moments-1"

    class Config(PosteriorVAE.Config):
        class_name: ClassVar[str] = "AutoencoderKLCogVideoX"

        @property
        def is_sat(self) -> bool:
            """Whether `vae_path` names a file of SAT, and not a folder or repository."""
            return self.vae_path.endswith(FILE_ENDINGS) and not self.vae_path.startswith(SCHEME)

        def check_files(self) -> None:
            if not self.is_sat:
                super().check_files()
            elif file := self.sat_file(download=False):
                self.check_sat_file(file)

        def sat_file(self, *, download: bool) -> Path | None:
            """Returns the path of the SAT file; None if it is only in an object store and may not be downloaded."""
            if not in_store(self.vae_path):
                return local_path(self.vae_path)
            return fetch_folder(self.vae_path, field=FIELD, download=download)

        def check_sat_file(self, file: Path) -> None:
            """Raises ValueError if neither the config nor the JSON file of a SAT file states the scaling factor."""
            if "scaling_factor" not in read_sat_config(file) and self.scaling_factor is None:
                raise ValueError(
                    f"{FIELD}: '{file}' does not state the scaling factor of latents; set "
                    "model.config.tokenizer.scaling_factor (1.15258426 for CogVideoX-2B, 0.7 for 5B)"
                )

        def find(self) -> Path:
            file = self.sat_file(download=True) if self.is_sat else None
            if file is None:
                return super().find()
            self.check_sat_file(file)
            return file

        def substitute(self) -> SubstituteComponent:
            """Returns the config of the released VAE, which a simulation uses if `vae_path` is not available."""
            return vae_substitute("CogVideoX", COGVIDEOX)

    config: Config

    def load(self) -> Any:
        if not self.config.is_sat or in_simulation():
            return super().load()
        import torch

        state = read_pt(self.source)
        with torch.device("meta"):
            model = self.library_class.from_config(read_sat_config(self.source), trust_remote_code=False)
        require_expected_tensors(state, model.state_dict(), self.source, field=FIELD)
        own = {name: tensor.to(self.device, self.dtype, copy=True) for name, tensor in state.items()}
        model.load_state_dict(own, assign=True)
        return model

    def library_settings(self) -> dict[str, Any]:
        return read_sat_config(self.source) if self.config.is_sat else super().library_settings()

    @property
    def image_scaling_factor(self) -> float:
        """Scaling factor of the latents of a conditioning image, as in diffusers' pipeline."""
        return 1 / self.scaling_factor if self.settings.get("invert_scale_latents") else self.scaling_factor

    def image_latents(self, moments: Tensor, noise: Tensor, scale: float | None = None) -> Tensor:
        """Samples the normalized latents [C, t, h, w] of a conditioning image.

        Args:
            moments: Mean and log variance [2C, t, h, w], from `encode`.
            noise: Standard normal noise [C, t, h, w].
            scale: Scaling factor of the latents; None: `image_scaling_factor`.
        """
        return self.latents(moments, noise) * ((scale or self.image_scaling_factor) / self.scaling_factor)


def sat_to_diffusers(name: str) -> str | None:
    """Converts a tensor name in SAT's VAE file to the name in `AutoencoderKLCogVideoX`; None for an unknown name."""
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


def diffusers_to_sat(name: str) -> str:
    """Converts a tensor name in `AutoencoderKLCogVideoX` to SAT's VAE file; the inverse of `sat_to_diffusers`."""
    name = name.replace("conv_shortcut.", "nin_shortcut.")
    for block, resnet in MIDDLE.items():
        name = name.replace(f".mid_block.{resnet}.", f".mid.{block}.")
    name = re.sub(r"\.up_blocks\.(\d)\.", lambda m: f".up.{STAGES - 1 - int(m[1])}.", name)
    name = re.sub(r"\.down_blocks\.(\d)\.", r".down.\1.", name)
    return re.sub(r"\.(down|up)samplers\.0\.", r".\1sample.", name).replace(".resnets.", ".block.")


def read_sat_config(file: Path) -> dict[str, Any]:
    """Returns the VAE config in the JSON file next to a SAT file, such as `3d-vae.json` for `3d-vae.pt`.

    Without a JSON file, the result is {}, which stands for the config of the released VAE.

    Raises:
        FileNotFoundError: If the VAE file does not exist.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{FIELD}: the file '{file}' does not exist")
    return read_optional_json(file.with_suffix(".json"))


def read_pt(file: Path) -> dict[str, Tensor]:
    """Returns the VAE tensors of a SAT file by their names in diffusers, mapped from disk.

    Tensors of the training loss, such as the discriminator, are omitted.

    Raises:
        ValueError: If the file is damaged, contains pickled code, or is not a VAE of CogVideoX.
    """
    content = read_torch_file(
        file, field=FIELD, advice="download it again from its publisher, or use a diffusers folder"
    )
    names = {name: sat_to_diffusers(name) for name in content if not name.startswith(LOSS)}
    unknown = [name for name, found in names.items() if found is None]
    if unknown or not names:
        raise ValueError(
            f"{FIELD}: '{file}' is not a VAE of CogVideoX: {len(unknown)} of {len(names)} tensor names are unknown"
            + (f", such as '{unknown[0]}'" if unknown else "")
        )
    return {found: content[name] for name, found in names.items() if found is not None}
