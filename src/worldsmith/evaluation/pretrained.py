"""Metrics of videos, uint8 [3, T, H, W], that need pretrained networks: CLIP score and Fréchet video distance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from worldsmith.config.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.files.model_folder import load_from_folder

if TYPE_CHECKING:
    from torch import Tensor

FRAMES_AT_ONCE = 32
ENOUGH_VIDEOS = 2048
"""Videos from which on Fréchet distances are commonly reported: with fewer the distance is biased upwards."""


@dataclass(frozen=True, slots=True)
class PretrainedNetwork:
    """A network of transformers whose folder the user names."""

    flag: str
    model_type: str
    repository: str
    """A repository of the Hugging Face Hub that holds suitable weights."""

    @property
    def advice(self) -> str:
        return f"add {self.flag} FOLDER; `hf download {self.repository} --local-dir FOLDER` downloads such weights"

    def require(self, folder: str) -> None:
        """Raises UserError for a folder that does not hold such a network; reads no weights."""
        path, advice = Path(folder), f"A{self.advice[1:]}"
        if not path.is_dir():
            raise UserError(f"{self.flag} {folder}: there is no such folder. {advice}")
        for names in (("config.json",), ("preprocessor_config.json",), ("*.safetensors", "*.bin")):
            if not any(any(path.glob(name)) for name in names):
                raise UserError(f"{self.flag} {folder}: {' or '.join(names)} is missing. {advice}")
        found = read_json_object(path / "config.json").get("model_type")
        if found != self.model_type:
            raise UserError(
                f"{self.flag} {folder}: expected a model of type {self.model_type}, found {found}. {advice}"
            )


CLIP = PretrainedNetwork("--clip", "clip", "openai/clip-vit-large-patch14")
VIDEOMAE = PretrainedNetwork("--videomae", "videomae", "MCG-NJU/videomae-base-finetuned-ssv2")


def load_network(kind: Any, folder: Path, device: str) -> Any:
    """The network in float32. Raises UserError for a folder that lacks some of its weights."""
    model, report = load_from_folder(kind, folder, output_loading_info=True)
    differing = sorted({*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])})
    if differing:
        raise UserError(
            f"{folder}: its weights lack {len(differing)} tensors of {kind.__name__}, such as {differing[0]}. Download "
            "the folder again, or give another one"
        )
    return model.float().eval().to(device)


class ClipScorer:
    """Measures how well frames fit their caption (CLIP score)."""

    def __init__(self, folder: Path, device: str) -> None:
        from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

        self.model = load_network(CLIPModel, folder, device)
        self.tokenizer = load_from_folder(AutoTokenizer, folder)
        self.processor = load_from_folder(CLIPImageProcessorPil, folder)
        self.limit: int = self.model.config.text_config.max_position_embeddings
        self.truncated: set[str] = set()
        """Captions with more tokens than CLIP reads, of which only the beginning counts."""

    def score(self, prompt: str, video: Tensor) -> float:
        """100 · max(cosine of frame and caption, 0), mean over the frames.

        Source: Hessel et al. 2021, with the factor 100 of torchmetrics.
        """
        import torch

        ids = self.tokenizer(prompt, return_tensors="pt", truncation=True, max_length=self.limit)["input_ids"]
        if len(self.tokenizer(prompt, verbose=False)["input_ids"]) > self.limit:
            self.truncated.add(prompt)
        scores = []
        with torch.inference_mode():
            for frames in video.split(FRAMES_AT_ONCE, dim=1):
                pixels = self.processor(pictures_of(frames), return_tensors="pt")["pixel_values"]
                found = self.model(input_ids=ids.to(self.model.device), pixel_values=pixels.to(self.model.device))
                scores.append((100 * found.image_embeds @ found.text_embeds[0]).clamp(min=0))
        return float(torch.cat(scores).double().mean())


class VideoFeatures:
    """Turns a video into the features that VideoMAE gives its classifier."""

    def __init__(self, folder: Path, device: str) -> None:
        import torch
        from transformers import VideoMAEForVideoClassification, VideoMAEImageProcessorPil

        self.model = load_network(VideoMAEForVideoClassification, folder, device)
        self.model.classifier = torch.nn.Identity()
        self.processor = load_from_folder(VideoMAEImageProcessorPil, folder)
        self.frames: int = self.model.config.num_frames

    def __call__(self, video: Tensor) -> np.ndarray:
        """float64 [width], from frames at equal distances over the video; a shorter video repeats frames."""
        import torch

        chosen = np.linspace(0, video.shape[1] - 1, self.frames).round().astype(int)
        pixels = self.processor(pictures_of(video[:, chosen]), return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            features = self.model(pixels.to(self.model.device)).logits[0]
        return np.asarray(features.double().cpu().numpy())


def pictures_of(video: Tensor) -> list[np.ndarray]:
    """The frames, uint8 [H, W, 3]."""
    return [frame.permute(1, 2, 0).cpu().numpy() for frame in video.unbind(1)]


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
    """|mean difference|² + Tr(A + B - 2·(A·B)^½) of features [videos, width] with covariances A and B.

    The eigenvalues of A·B are the squared singular values of the centered features' product, which needs no matrix
    root and holds for fewer videos than features.

    Source: Dowson and Landau 1982; for videos Unterthiner et al. 2018, with VideoMAE features Ge et al. 2024.
    """
    centered = [(features - features.mean(0)) / np.sqrt(len(features) - 1) for features in (a, b)]
    spread = sum(float((features**2).sum()) for features in centered)
    shared = float(np.linalg.svd(centered[0] @ centered[1].T, compute_uv=False).sum())
    return float(((a.mean(0) - b.mean(0)) ** 2).sum()) + spread - 2 * shared
