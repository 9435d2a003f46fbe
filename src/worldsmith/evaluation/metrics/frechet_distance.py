"""Fréchet video distance of VideoMAE features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from worldsmith.evaluation.generated_video import GeneratedVideo
from worldsmith.evaluation.metrics.base import Metric, Output
from worldsmith.evaluation.pretrained import PretrainedWeights, load_network, video_frames
from worldsmith.files.untrusted_folder import load_from_folder

if TYPE_CHECKING:
    from torch import Tensor

ENOUGH_VIDEOS = 2048
"""Usual min number of videos for Fréchet distances: with fewer the distance is biased upwards."""
DISTANCE = "fvd_videomae"


class FrechetVideoDistance(Metric):
    """Fréchet distance between the generated videos of a model and their real videos, in VideoMAE features."""

    outputs = {
        DISTANCE: Output(
            "", "Fréchet distance of VideoMAE features of generated and real videos (Ge et al. 2024)", "lower"
        )
    }
    weights = PretrainedWeights("videomae", "MCG-NJU/videomae-base-finetuned-ssv2", "videomae")
    for_images = False

    class Config(Metric.Config):
        videomae: str | None = None
        """Folder of a VideoMAE classifier for the evaluator fvd, such as MCG-NJU/videomae-base-finetuned-ssv2."""

    def __init__(self, config: Config, *, device: str = "cpu") -> None:
        import torch
        from transformers import VideoMAEForVideoClassification, VideoMAEImageProcessorPil

        super().__init__(config, device=device)
        folder = Path(str(config.videomae))
        self.model = load_network(VideoMAEForVideoClassification, folder, device)
        self.model.classifier = torch.nn.Identity()
        self.processor = load_from_folder(VideoMAEImageProcessorPil, folder)
        self.frames: int = self.model.config.num_frames
        self.real: dict[str, np.ndarray] = {}
        """Features of the real videos by sample name; all models use the same ones."""

    def reset(self) -> None:
        super().reset()
        self.generated: dict[str, np.ndarray] = {}
        self.lengths: set[int] = set()

    def update(self, batch: Sequence[GeneratedVideo]) -> None:
        for sample in batch:
            frames = sample.args["num_frames"]
            self.lengths.add(frames)
            if frames == 1 or isinstance(sample.real, str):
                continue
            self.generated[sample.name] = self.features_of(sample.video)
            if sample.name not in self.real:
                self.real[sample.name] = self.features_of(sample.real)

    def features_of(self, video: Tensor) -> np.ndarray:
        """Computes the features of a video (uint8 [3, T, H, W]): the input of VideoMAE's classifier, float64 [width].

        Uses as many evenly spaced frames as VideoMAE needs; frames of a shorter video are repeated.
        """
        import torch

        chosen = np.linspace(0, video.shape[1] - 1, self.frames).round().astype(int)
        pixels = self.processor(video_frames(video[:, chosen]), return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            features = self.model(pixels.to(self.model.device)).logits[0]
        return np.asarray(features.double().cpu().numpy())

    def compute(self) -> dict[str, float]:
        self.samples = len(self.generated)
        if self.samples < 2:
            still = self.lengths == {1}
            self.not_measured[DISTANCE] = (
                "they are images" if still else "fewer than two videos have a real video to compare with"
            )
            return {}
        pair = [np.stack([of[name] for name in self.generated]) for of in (self.generated, self.real)]
        return {DISTANCE: frechet_distance(*pair)}

    def unit(self, output: str) -> str:
        return f"of {self.samples} videos" if DISTANCE not in self.not_measured else ""

    def notes(self) -> list[str]:
        notes: list[str] = []
        count = self.samples or 0
        if count < 2:
            return notes
        if count < ENOUGH_VIDEOS:
            notes.append(
                f"{count} videos are too few for a distance that can be compared with other work ({ENOUGH_VIDEOS} "
                "are usual): with fewer videos it is larger. Only compare models on the same clips"
            )
        if (shortest := min(self.lengths)) < self.frames:
            notes.append(f"frames of videos with {shortest} frames are repeated, because VideoMAE needs {self.frames}")
        return notes


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Computes the Fréchet distance |mean(a) - mean(b)|² + Tr(A + B - 2·(A·B)^½), with the covariances A and B.

    The eigenvalues of A·B are the squared singular values of the centered features' product. No matrix root is needed,
    and there may be fewer videos than features.

    Args:
        a: Features of one set of videos [videos, width].
        b: Features of the other set [videos, width].

    Source:
        Dowson and Landau 1982; for videos Unterthiner et al. 2018; with VideoMAE features Ge et al. 2024.
    """
    centered = [(features - features.mean(0)) / np.sqrt(len(features) - 1) for features in (a, b)]
    spread = sum(float((features**2).sum()) for features in centered)
    shared = float(np.linalg.svd(centered[0] @ centered[1].T, compute_uv=False).sum())
    return float(((a.mean(0) - b.mean(0)) ** 2).sum()) + spread - 2 * shared
