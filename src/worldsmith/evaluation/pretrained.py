"""Pretrained weights of metrics: where to download them, checks of a folder, and loading with transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.config.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.files.untrusted_folder import load_from_folder

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class PretrainedWeights:
    """Pretrained weights that a metric requires: the flag for their folder, and where to download them."""

    option: str
    """Name of the field of the metric's Config that holds the folder."""
    repository: str
    """Hub repository with weights that the metric can use."""
    model_type: str | None = None
    """`model_type` in the config.json of a transformers model; None: the folder only needs a weight file."""

    @property
    def flag(self) -> str:
        return f"--{self.option.replace('_', '-')}"

    @property
    def advice(self) -> str:
        return f"add {self.flag} FOLDER; `hf download {self.repository} --local-dir FOLDER` downloads such weights"

    def folder(self, config: Any) -> str | None:
        """Returns the folder of the weights that the metric's `config` names; None if it is not set."""
        return getattr(config, self.option)

    def require(self, folder: str) -> None:
        """Raises UserError if `folder` lacks a required file or has another model type; loads no weights."""
        path, advice = Path(folder), f"A{self.advice[1:]}"
        if not path.is_dir():
            raise UserError(f"{self.flag} {folder}: no such folder. {advice}")
        needed: list[tuple[str, ...]] = [WEIGHTS]
        if self.model_type is not None:
            needed = [("config.json",), ("preprocessor_config.json",), WEIGHTS[:2]]
        for names in needed:
            if not any(any(path.glob(name)) for name in names):
                raise UserError(f"{self.flag} {folder}: {' or '.join(names)} is missing. {advice}")
        if self.model_type is None:
            return
        found = read_json_object(path / "config.json").get("model_type")
        if found != self.model_type:
            raise UserError(
                f"{self.flag} {folder}: expected a model of type {self.model_type}, found {found}. {advice}"
            )


def load_network(model_class: Any, folder: Path, device: str) -> Any:
    """Loads a transformers model in float32 and eval mode.

    Args:
        model_class: Model class, such as `CLIPModel`.
        folder: Local folder of the model.
        device: Device such as "cuda".

    Returns:
        The model.

    Raises:
        UserError: If the folder lacks some of the weights.
    """
    model, report = load_from_folder(model_class, folder, output_loading_info=True)
    differing = sorted({*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])})
    if differing:
        raise UserError(
            f"{folder}: its weights lack {len(differing)} tensors of {model_class.__name__}, such as {differing[0]}. "
            "Download the folder again, or use another one"
        )
    return model.float().eval().to(device)


def video_frames(video: Tensor) -> list[np.ndarray]:
    """Returns the frames of a video (uint8 [3, T, H, W]) as NumPy arrays, each uint8 [H, W, 3]."""
    return [frame.permute(1, 2, 0).cpu().numpy() for frame in video.unbind(1)]
