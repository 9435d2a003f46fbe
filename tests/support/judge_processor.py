"""transformers' own Qwen3-VL processor, without torchvision: its PIL backend, and videos that were read already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BatchFeature
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata


class ReadVideos(Qwen3VLVideoProcessor):
    """Takes [T, 3, H, W] of the right size as they are; the judge's arithmetic without its resizing."""

    def __init__(self, fps: float, indices: list[list[int]]) -> None:
        self.rate, self.indices = fps, indices

    def __call__(self, videos: Any, **_: Any) -> BatchFeature:
        videos = videos[0] if isinstance(videos[0], list) else videos
        metadata = [VideoMetadata(total_num_frames=0, fps=self.rate, frames_indices=list(i)) for i in self.indices]
        found = [self.patchify(torch.as_tensor(video)[None], 16, 2, 2) for video in videos]
        data = {
            "pixel_values_videos": torch.cat([patches[0] for patches, *_ in found]),
            "video_grid_thw": torch.tensor([grid for _, *grid in found]),
        }
        return BatchFeature({**data, "video_metadata": metadata}, skip_tensor_conversion=["video_metadata"])


class JudgeProcessor(Qwen3VLProcessor):
    def check_argument_for_proper_class(self, *_: Any) -> None:
        """The table of classes lacks those that need torchvision."""


def judge_processor(folder: Path, fps: float = 1.0, indices: list[list[int]] | None = None) -> JudgeProcessor:
    """The processor of a model folder. `fps`, `indices`: of the videos that it will be given."""
    limits = json.loads((folder / "preprocessor_config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return JudgeProcessor(
        Qwen2VLImageProcessorPil(**limits),
        tokenizer,
        ReadVideos(fps, indices or []),
        chat_template=tokenizer.chat_template,
    )
