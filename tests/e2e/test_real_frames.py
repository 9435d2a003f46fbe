"""Frames of real clips are images to learn from: `DATASET_PATH` names a folder of clips."""

from __future__ import annotations

import math
import os
import statistics
from pathlib import Path

import pytest
import tiny_flux
import tiny_runs

from worldsmith.data.clips.captions import CAPTION_KEYS
from worldsmith.training.trainer import Trainer

CLIPS = Path(os.environ.get("DATASET_PATH", "")) / "train"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CLIPS / "video_dataset_file.jsonl").is_file(), reason="DATASET_PATH names no folder of clips"
    ),
]


def test_twenty_steps_have_finite_falling_losses(tmp_path: Path) -> None:
    """With VAE and text encoders of random weights."""
    config = tiny_flux.tiny_config(tiny_flux.make_world(tmp_path), steps=20)
    config.dataloader_train.dataset.path, config.dataloader_train.dataset.caption_keys = str(CLIPS), list(CAPTION_KEYS)
    Trainer(config, run_folder=tmp_path / "run").train()
    losses = [line[1] for line in tiny_runs.read_losses(tmp_path / "run")]
    assert len(losses) == 20
    assert all(math.isfinite(loss) for loss in losses)
    assert statistics.mean(losses[-5:]) < 0.95 * statistics.mean(losses[:5]), losses
