"""`FrozenVAE`: a VAE that is not trained; its weights can be freed and are loaded again when needed."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import Configurable
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    from pathlib import Path

    import torch

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of `mallopt` in glibc's malloc.h."""
MOST = 2**31 - 1


class FrozenVAE(Configurable):
    """Base class of a frozen VAE of diffusers; encodes one clip at a time, so that results do not depend on the batch.

    The weights are loaded immediately, and again on the next use after `release`.

    Args:
        config: Config of the VAE.
        device: Device of the weights.
    """

    class Config(Configurable.Config):
        returns_posterior: ClassVar[bool]
        """Whether the encoder returns mean and log variance instead of latents."""

        vae_path: str = ""
        """A diffusers folder with this VAE, a pipeline folder, or a hub repository that contains one."""
        precision: Literal["bfloat16", "float16", "float32"] = "bfloat16"
        """Number format of weights and computation; encoded results are float32 in any case."""

    config: Config
    source: Path
    """Folder or file of the weights; a subclass sets it before it calls the base class's `__init__`."""

    def __init__(self, config: Config, *, device: str | torch.device = "cpu") -> None:
        import torch

        self.config, self.device, self.dtype = config, torch.device(device), getattr(torch, config.precision)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.idle = 0
        """Steps since the weights were last used."""
        self.settings: dict[str, Any] = dict(self.model.config)  # problems of the weights are reported now

    @abstractmethod
    def load(self) -> Any:
        """Returns the diffusers VAE with its weights on `self.device` in `self.dtype`."""

    @cached_property
    def model(self) -> Any:
        """Diffusers VAE in eval mode, loaded on first use.

        Raises:
            UserError: If weights are not finite.
        """
        model = self.load().eval().requires_grad_(False)
        require_finite(f"vae_path: {self.source}", non_finite(model.state_dict()))
        return model

    @property
    def modules(self) -> list[Any]:
        """Modules of the VAE whose weights are in memory; [] after `release`."""
        return [self.model] if "model" in vars(self) else []

    @property
    def library_model(self) -> Any:
        """Diffusers VAE with the config that an exported pipeline needs."""
        return self.model

    def release(self) -> bool:
        """Frees the weights, which are loaded again on the next use; returns whether weights were loaded before."""
        return vars(self).pop("model", None) is not None


def weights_digest(model: Any, *, extra: tuple[str, ...] = (), ignored: tuple[str, ...] = ()) -> str:
    """Computes the sha256 hash of a diffusers model's config and tensors.

    Args:
        model: The diffusers model.
        extra: Further strings to include in the hash, such as the precision.
        ignored: Config fields to exclude from the hash.

    Returns:
        The hash as a hexadecimal string; independent of the device and of the file format of the weights.
    """
    import torch

    settings = {
        name: value for name, value in dict(model.config).items() if not name.startswith("_") and name not in ignored
    }
    header = [*extra, settings] if extra else settings
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@functools.cache
def keep_freed_memory() -> bool:
    """Lets this process reuse up to 2 GiB of freed memory instead of returning it to the kernel.

    By default glibc maps a new region for each tensor of 32 MiB and more, and the kernel clears all of its pages: a
    third of the time in which a narrow VAE encodes a clip on a CPU.

    Returns:
        Whether the setting took effect; False if the C library does not support it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(MMAP_MAX, 0) == 1 and mallopt(TRIM_THRESHOLD, MOST) == 1
