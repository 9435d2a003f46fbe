"""`FrozenVAE`: a VAE that is used and never trained; its memory can be freed and comes back when it is needed."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import Configurable
from worldsmith.models.video_vae.kept_memory import keep_freed_memory
from worldsmith.models.weights.finite import non_finite, require_finite

if TYPE_CHECKING:
    from pathlib import Path

    import torch


class FrozenVAE(Configurable):
    """Works on one clip at a time, so that its bits never depend on what else is in a batch."""

    class Config(Configurable.Config):
        keeps_moments: ClassVar[bool]
        """Whether what is encoded are mean and log variance, and not latents."""

        vae_path: str = ""
        """A folder of diffusers with this VAE, a pipeline's folder, or a repository of the hub that holds one."""
        precision: Literal["bfloat16", "float16", "float32"] = "bfloat16"
        """Type of weights and arithmetic; what is encoded comes out as float32 either way."""

    config: Config
    source: Path
    """The folder or file of the weights; a subclass sets it before `__init__`."""

    def __init__(self, config: Config, *, device: str | torch.device = "cpu") -> None:
        import torch

        self.config, self.device, self.dtype = config, torch.device(device), getattr(torch, config.precision)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.idle = 0
        """Steps since the weights were last needed."""
        self.settings: dict[str, Any] = dict(self.model.config)  # what is wrong with the weights is said now

    @abstractmethod
    def load(self) -> Any:
        """The VAE of diffusers on the device, in `dtype`."""

    @cached_property
    def model(self) -> Any:
        """The VAE of diffusers. Raises UserError for weights that are not finite."""
        model = self.load().eval().requires_grad_(False)
        require_finite(f"vae_path: {self.source}", non_finite(model.state_dict()))
        return model

    @property
    def modules(self) -> list[Any]:
        """What is loaded."""
        return [self.model] if "model" in vars(self) else []

    @property
    def library_model(self) -> Any:
        """The VAE of diffusers as a pipeline has it."""
        return self.model

    def release(self) -> bool:
        """Gives the weights' memory back, until they are needed again; False: there are none."""
        return vars(self).pop("model", None) is not None
