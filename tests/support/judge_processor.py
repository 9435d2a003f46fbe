"""transformers' own processors of Qwen3-VL and Qwen2.5-VL, without torchvision: their PIL backend, and videos that were
read already."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from transformers import AutoTokenizer, BatchFeature
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.utils import is_torchvision_available
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


def qwen2_videos() -> Any:
    """The class of Qwen2.5-VL's video processor; torchvision, which it imports, only scales frames."""
    is_torchvision_available()  # asked once, before the name can be found
    parts = ["torchvision", "transforms", "v2", "functional"]
    modules = {}
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        modules[name] = ModuleType(name)
        modules[name].__spec__ = ModuleSpec(name, None)
        if count < len(parts):
            setattr(modules[name], parts[count], modules[".".join(parts[: count + 1])])
    with mock.patch.dict(sys.modules, modules):
        from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    return Qwen2VLVideoProcessor


def judge_of_frames(height: int, width: int, frames: int, settings: dict[str, Any]) -> tuple[int, int]:
    """(height, width) to which Qwen2.5-VL's video processor with these settings brings a video's frames."""
    from transformers.image_utils import SizeDict

    kind = qwen2_videos()
    judge = object.__new__(kind)
    judge.max_video_tokens = settings.get("max_video_tokens", kind.max_video_tokens)
    found: list[Any] = []
    with mock.patch.object(kind.__mro__[1], "resize", lambda *_, size, **__: found.append(size)):
        judge.resize(
            torch.empty(1, frames, 3, height, width, device="meta"),
            SizeDict(**settings["size"]),
            None,
            factor=28,
            cap_pixels_per_frame=settings.get("cap_pixels_per_frame"),
        )
    return found[0].height, found[0].width


class ReadFrames(ReadVideos):
    """The same of Qwen2.5-VL, whose processor needs the rate at which frames were taken."""

    temporal_patch_size, merge_size = 2, 2

    def __init__(self, fps: float, indices: list[list[int]], total: int) -> None:
        super().__init__(fps, indices)
        self.total = total

    def __call__(self, videos: Any, **_: Any) -> BatchFeature:
        videos = videos[0] if isinstance(videos[0], list) else videos
        found = [qwen2_videos().patchify(self, torch.as_tensor(video)[None], 14, 2, 2) for video in videos]
        data = {
            "pixel_values_videos": torch.cat([patches[0] for patches, *_ in found]),
            "video_grid_thw": torch.tensor([grid for _, *grid in found]),
        }
        metadata = [VideoMetadata(total_num_frames=self.total, fps=self.rate, frames_indices=i) for i in self.indices]
        return BatchFeature({**data, "video_metadata": metadata}, skip_tensor_conversion=["video_metadata"])


class JudgeProcessor25(Qwen2_5_VLProcessor):
    def check_argument_for_proper_class(self, *_: Any) -> None:
        """The table of classes lacks those that need torchvision."""


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


def judge_processor_25(
    folder: Path, fps: float = 1.0, indices: list[list[int]] | None = None, total: int = 1
) -> JudgeProcessor25:
    """That of a Qwen2.5-VL folder. `fps`, `total`: rate and frames of the files from which frames were taken."""
    limits = json.loads((folder / "preprocessor_config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return JudgeProcessor25(
        Qwen2VLImageProcessorPil(**limits),
        tokenizer,
        ReadFrames(fps, indices or [], total),
        chat_template=tokenizer.chat_template,
    )
