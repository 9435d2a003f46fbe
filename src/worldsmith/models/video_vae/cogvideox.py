"""`CogVideoXVAE`: diffusers' video VAE of CogVideoX (8× in space, 4× in time)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.models.model_files import SCHEME, PublishedPart, local_path
from worldsmith.models.real_values import in_simulation
from worldsmith.models.torch_file import FILE_ENDINGS, require_fit
from worldsmith.models.video_vae.cogvideox_pt import FIELD, read_pt, read_settings
from worldsmith.models.video_vae.moments import MomentsVAE
from worldsmith.models.video_vae.published import COGVIDEOX, vae_part

if TYPE_CHECKING:
    from torch import Tensor

TEMPORAL_FACTOR, SPATIAL_FACTOR = 4, 8
DECODED_FRAMES = 2
"""Latent frames that diffusers decodes together: clips of 8k+1 frames alone come out as long as they went in."""


class CogVideoXVAE(MomentsVAE):
    """Clips of 4k+1 frames become k+1 latent frames. The published scale is 1.15258426 for 2B, 0.7 for 5B.

    `vae_path` may also be a file of SAT's, such as `3d-vae.pt`, which does not say the scale.
    """

    recipe = "cogvideox-moments-1"

    class Config(MomentsVAE.Config):
        class_name: ClassVar[str] = "AutoencoderKLCogVideoX"

        def sat_file(self) -> Path | None:
            """The file of SAT's that `vae_path` names; None for a name of anything else."""
            is_file = self.vae_path.endswith(FILE_ENDINGS) and not self.vae_path.startswith(SCHEME)
            return local_path(self.vae_path) if is_file else None

        def check_files(self) -> None:
            file = self.sat_file()
            if file is None:
                super().check_files()
            elif "scaling_factor" not in read_settings(file) and self.scaling_factor is None:
                raise ValueError(
                    f"{FIELD}: '{file}' does not say what latents are multiplied by; set "
                    "model.config.tokenizer.scaling_factor (1.15258426 for CogVideoX-2B, 0.7 for 5B)"
                )

        def find(self) -> Path:
            file = self.sat_file()
            if file is None:
                return super().find()
            self.check_files()
            return file

        def published(self) -> PublishedPart:
            """The released VAE, for plans."""
            return vae_part("CogVideoX", COGVIDEOX)

    config: Config

    def load(self) -> Any:
        if self.config.sat_file() is None or in_simulation():
            return super().load()
        import torch

        state = read_pt(self.source)
        with torch.device("meta"):
            model = self.library_class.from_config(read_settings(self.source), trust_remote_code=False)
        require_fit(state, model.state_dict(), self.source, field=FIELD)
        own = {name: tensor.to(self.device, self.dtype, copy=True) for name, tensor in state.items()}
        model.load_state_dict(own, assign=True)
        return model

    def library_settings(self) -> dict[str, Any]:
        return super().library_settings() if self.config.sat_file() is None else read_settings(self.source)

    @property
    def image_scaling_factor(self) -> float:
        """What diffusers' pipeline multiplies the latents of a conditioning image by."""
        return 1 / self.scaling_factor if self.settings.get("invert_scale_latents") else self.scaling_factor

    def image_latents(self, moments: Tensor, noise: Tensor, scale: float | None = None) -> Tensor:
        """Those of a conditioning image, times `scale`; None: image_scaling_factor."""
        return self.latents(moments, noise) * ((scale or self.image_scaling_factor) / self.scaling_factor)
