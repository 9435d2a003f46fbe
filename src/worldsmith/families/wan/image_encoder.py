"""`WanImageEncoder`: encodes the first frame with CLIP, an additional input of Wan 2.1 image-to-video networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.config import Configurable
from worldsmith.families.diffusers_pipeline.published import CLIP_H_VISION, CLIP_PICTURES
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.model_files import SubstituteComponent, find_layout, find_layout_without_download, read_settings
from worldsmith.models.real_values import in_simulation, real_values, without_values
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PARTS = ENCODER, PROCESSOR = "image_encoder", "image_processor"
"""Pipeline subfolders of the image encoder and of the image processor."""
PLACES = ((f"{ENCODER}/config.json", f"{ENCODER}/*.safetensors*", f"{PROCESSOR}/preprocessor_config.json"),)
FIELD = "model.config.image_encoder.path"


class WanImageEncoder(Configurable):
    """Frozen CLIP image encoder of a Wan 2.1 image-to-video pipeline; the weights are loaded on first use.

    Args:
        config: Location and precision of the encoder.
        device: Device of the weights.

    Raises:
        FileNotFoundError: If the pipeline in `config.path` has no image encoder or no image processor.
    """

    class Config(Configurable.Config):
        path: str = ""
        """A pipeline with image_encoder/ and image_processor/, or a hub repository; "": no image encoder."""
        precision: Literal["bfloat16", "float16", "float32"] = "float32"
        """Number format of weights and computation."""

        def substitute(self) -> SubstituteComponent:
            """Returns the substitute (configs without weights) that `worldsmith plan` uses if the files are missing."""
            contents = {f"{ENCODER}/config.json": CLIP_H_VISION, f"{PROCESSOR}/preprocessor_config.json": CLIP_PICTURES}
            return SubstituteComponent("path", "the image encoder of CLIP ViT-H/14", PLACES, contents)

        def check_files(self) -> None:
            """Raises FileNotFoundError if the encoder or the image processor does not exist; downloads no files."""
            found = find_layout_without_download(self.path, PLACES, field=FIELD) if self.path else None
            if found is not None:
                require_parts(found)

    config: Config

    def __init__(self, config: Config, *, device: str | torch.device = "cpu") -> None:
        config.check()
        self.config, self.device = config, device
        self.folder = find_layout(config.path, PLACES, field=FIELD)
        require_parts(self.folder)

    @property
    def channels(self) -> int:
        """Channels of the encoder's hidden states."""
        return int(read_settings(self.folder / ENCODER).get("hidden_size", 768))  # the default of transformers

    @cached_property
    def model(self) -> Any:
        import torch
        from transformers import CLIPVisionConfig, CLIPVisionModel

        dtype, folder = getattr(torch, self.config.precision), self.folder / ENCODER
        read_settings(folder)
        if in_simulation():
            config = load_from_folder(CLIPVisionConfig, folder)
            model: Any = without_values(partial(CLIPVisionModel, config), dtype, self.device)
            return model.eval().requires_grad_(False)
        model = load_from_folder(CLIPVisionModel, folder, dtype=dtype)
        require_finite(f"{FIELD}: {folder}", non_finite(model.state_dict()))
        return model.to(self.device).eval().requires_grad_(False)

    @property
    def modules(self) -> list[Any]:
        """Encoder modules that are loaded; empty before the first use."""
        return [self.model] if "model" in vars(self) else []

    @cached_property
    def processor(self) -> Any:
        from transformers import CLIPImageProcessorPil  # the same on every machine, with torchvision or without

        return load_from_folder(CLIPImageProcessorPil, self.folder / PROCESSOR)

    def states(self, images: Sequence[Tensor]) -> Tensor:
        """Encodes uint8 images [3, 1, H, W] one by one; returns the input of the last CLIP layer, [n, tokens, d]."""
        import torch

        found = []
        for image in images:
            with real_values():
                pixels = self.processor(images=image[:, 0].cpu().numpy(), input_data_format="channels_first",
                                        return_tensors="pt").pixel_values  # fmt: skip
            with torch.no_grad():
                answer = self.model(pixels.to(self.device, self.model.dtype), output_hidden_states=True)
            found.append(answer.hidden_states[-2][0])
        return torch.stack(found)


def require_parts(folder: Path) -> None:
    """Raises FileNotFoundError if the encoder or the image processor does not exist in `folder`."""
    for file in (f"{ENCODER}/config.json", f"{PROCESSOR}/preprocessor_config.json"):
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{FIELD}: no {file} in '{folder}'; use a Wan 2.1 image-to-video pipeline")
