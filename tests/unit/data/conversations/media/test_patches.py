"""Pixels to patches: transformers' PIL image processor is the judge, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folder import IMAGES, write_limits
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from worldsmith.data.conversations.media.image_patches import normalize, patchify
from worldsmith.data.conversations.media.media_processor import MediaProcessor


@pytest.mark.parametrize("size", [(64, 64), (300, 417), (417, 300), (33, 1000), (1200, 900)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "LA"])
def test_an_image(tmp_path: Path, size: tuple[int, int], mode: str) -> None:
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (*size, 4), np.uint8), "RGBA").convert(mode)
    image.save(tmp_path / "a.png")
    media = MediaProcessor.Config().build(folder=write_limits(tmp_path))
    plan = media.plan_image(str(tmp_path / "a.png"))
    patches = torch.from_numpy(media.read(plan))
    expected = Qwen2VLImageProcessorPil(**IMAGES)(Image.open(tmp_path / "a.png"), return_tensors="pt")
    assert [list(plan.grid)] == expected["image_grid_thw"].tolist()
    assert plan.tokens == len(patches) // 4
    assert torch.equal(media.normalize(patches, "image"), expected["pixel_values"])


def test_every_level_is_normalized_as_by_the_judge() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16).repeat(3, axis=0)
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    judge = Qwen2VLImageProcessorPil(patch_size=16, merge_size=1, do_resize=False, image_mean=mean, image_std=std)
    expected = judge(levels, input_data_format="channels_first", return_tensors="pt")["pixel_values"]
    patches = torch.from_numpy(patchify(levels[None], patch=16, merge=1, temporal=2))
    assert torch.equal(normalize(patches, mean, std), expected)


def test_images_and_videos_are_normalized_by_their_own_numbers(tmp_path: Path) -> None:
    media = MediaProcessor.Config().build(folder=write_limits(tmp_path))
    media.videos = replace(media.videos, mean=(0.1, 0.2, 0.3))
    patches = torch.arange(24, dtype=torch.uint8).reshape(2, 12)
    for kind, limits in (("image", media.images), ("video", media.videos)):
        assert torch.equal(media.normalize(patches, kind), normalize(patches, limits.mean, limits.std))
    assert not torch.equal(media.normalize(patches, "image"), media.normalize(patches, "video"))


@pytest.mark.parametrize("frames", [1, 2, 5, 8])
def test_a_video(frames: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (frames, 3, 64, 96), np.uint8)
    expected = Qwen3VLVideoProcessor.patchify(None, torch.from_numpy(pixels)[None], 16, 2, 2)
    assert np.array_equal(patchify(pixels, patch=16, merge=2, temporal=2), expected[0][0].numpy())
    assert expected[1:] == (-(-frames // 2), 4, 6)
