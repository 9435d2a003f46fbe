"""The CLIP score and the Fréchet video distance against transformers, SciPy and closed forms."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pretrained_folders import make_clip, make_videomae
from scipy.linalg import sqrtm
from torch import Tensor

from worldsmith.config.errors import UserError
from worldsmith.evaluation.metrics.clip_score import ClipScore
from worldsmith.evaluation.metrics.frechet_distance import FrechetVideoDistance, frechet_distance
from worldsmith.evaluation.pretrained import PretrainedWeights


def video(seed: int, frames: int = 5) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, frames, 40, 56), generator=stream, dtype=torch.uint8)


def test_the_clip_score_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

    folder = make_clip(tmp_path / "clip")
    model, frames, prompt = CLIPModel.from_pretrained(folder).eval(), video(0), "a red square"
    pictures = [frame.permute(1, 2, 0).numpy() for frame in frames.unbind(1)]
    pixels = CLIPImageProcessorPil.from_pretrained(folder)(pictures, return_tensors="pt")["pixel_values"]
    ids = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        image = model.visual_projection(model.vision_model(pixels).pooler_output)
        text = model.text_projection(model.text_model(ids).pooler_output)
    expected = (100 * torch.nn.functional.cosine_similarity(image, text)).clamp(min=0).mean()
    scorer = ClipScore.Config(clip=str(folder)).build()
    assert scorer.score(prompt, frames) == pytest.approx(float(expected), abs=1e-4)
    assert scorer.score("another thing", frames) != pytest.approx(float(expected), abs=1e-4)
    assert scorer.truncated == set()


def test_a_caption_beyond_the_limit_of_clip_is_cut_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    scorer, long = ClipScore.Config(clip=str(make_clip(tmp_path / "clip"))).build(), "a red square moves left " * 20
    assert scorer.score(long, video(0)) == scorer.score(long, video(0)) == scorer.score(long + "up", video(0))
    assert scorer.truncated == {long, long + "up"}
    assert "Token indices" not in caplog.text


def test_video_features_are_those_before_the_classifier(tmp_path: Path) -> None:
    from transformers import VideoMAEForVideoClassification, VideoMAEImageProcessorPil

    folder = make_videomae(tmp_path / "videomae")
    model, frames = VideoMAEForVideoClassification.from_pretrained(folder).eval(), video(0, 7)
    chosen = [0, 2, 4, 6]  # of 7, the 4 that the model reads
    pictures = [frames[:, time].permute(1, 2, 0).numpy() for time in chosen]
    pixels = VideoMAEImageProcessorPil.from_pretrained(folder)(pictures, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model.fc_norm(model.videomae(pixels).last_hidden_state.mean(1))[0]
    features = FrechetVideoDistance.Config(videomae=str(folder)).build().features_of
    np.testing.assert_allclose(features(frames), expected.numpy(), atol=1e-5)
    assert not np.allclose(features(video(1, 7)), expected.numpy(), atol=1e-5)
    assert features(video(0, 2)).shape == (16,)  # its frames are repeated


@pytest.mark.parametrize("samples", [4, 40])
def test_the_distance_is_that_of_scipy(samples: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(samples, 8)), rng.normal(1, 2, size=(samples + 3, 8))
    covariances = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = sqrtm(covariances[0] @ covariances[1] + 0j)
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(covariances[0] + covariances[1] - 2 * root.real)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-4)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(a, a + 3) == pytest.approx(9 * 8)


def test_a_folder_that_does_not_hold_the_weights_is_refused(tmp_path: Path) -> None:
    clip, videomae = make_clip(tmp_path / "clip"), make_videomae(tmp_path / "videomae")
    weights = ClipScore.weights
    assert weights is not None
    weights.require(str(clip))
    PretrainedWeights("videomae", "a/b", "videomae").require(str(videomae))
    with pytest.raises(UserError, match=r"--clip .*none: no such folder.*hf download openai/clip-vit-large"):
        weights.require(str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"--clip .*: expected a model of type clip, found videomae"):
        weights.require(str(videomae))
    shutil.copytree(clip, tmp_path / "cut")
    (tmp_path / "cut/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"cut: \*.safetensors or \*.bin is missing"):
        weights.require(str(tmp_path / "cut"))
    config = json.loads((videomae / "config.json").read_text())
    (videomae / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"videomae: its weights lack .*layer\.2"):
        FrechetVideoDistance.Config(videomae=str(videomae)).build()


def test_weights_of_no_known_type_are_any_weights_of_the_folder(tmp_path: Path) -> None:
    weights = PretrainedWeights("lpips_vgg", "a/b")
    with pytest.raises(
        UserError,
        match=r"--lpips-vgg .*\*.safetensors or .* is missing. Add --lpips-vgg FOLDER; `hf download a/b ",
    ):
        weights.require(str(tmp_path))
    (tmp_path / "vgg.pth").touch()
    weights.require(str(tmp_path))
