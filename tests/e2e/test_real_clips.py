"""Fine-tuning on real clips: `DATASET_PATH` names a folder with `train/video_dataset_file.jsonl` and its videos."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

CLIPS = Path(os.environ.get("DATASET_PATH", "")) / "train"
TOML = Path(__file__).parents[2] / "examples/toml/sft_config/vision_sft_tiny.toml"

pytestmark = [
    pytest.mark.skipif(
        not (CLIPS / "video_dataset_file.jsonl").is_file(),
        reason="DATASET_PATH does not name a folder of real clips with train/video_dataset_file.jsonl",
    ),
    pytest.mark.timeout(600),
]


def train(tmp_path: Path, dataset: Path, steps: int, *overrides: str) -> tuple[list[dict], list[dict]]:
    """The metrics and the quarantined samples of a run of the tiny recipe."""
    environment = {
        **os.environ,
        "DATASET_PATH": str(dataset),
        "WORLDSMITH_OUTPUT_ROOT": str(tmp_path / "runs"),
        "WORLDSMITH_LATENT_CACHE": str(tmp_path.parent / "latent_cache"),
    }
    command = [sys.executable, "-m", "worldsmith", "train", f"--sft-toml={TOML}", "--", f"trainer.max_iter={steps}"]
    done = subprocess.run([*command, *overrides], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs/worldsmith/sft/vision_sft_tiny"
    quarantine = folder / "quarantine.jsonl"
    return read_lines(folder / "metrics.jsonl"), read_lines(quarantine) if quarantine.exists() else []


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_thirty_steps_at_tier_256_have_finite_falling_losses(tmp_path: Path) -> None:
    metrics, rejected = train(tmp_path, CLIPS.parent, 30)
    losses = [entry["loss"] for entry in metrics]
    assert len(losses) == 30
    assert all(math.isfinite(loss) for loss in losses)
    assert statistics.mean(losses[-10:]) < 0.8 * statistics.mean(losses[:10]), losses
    assert not rejected


def test_broken_files_beside_real_clips_are_listed_and_the_rest_trains(tmp_path: Path) -> None:
    folder = tmp_path / "clips/train"
    shutil.copytree(CLIPS, folder)
    lines = (folder / "video_dataset_file.jsonl").read_text().splitlines()
    template = json.loads(lines[0])
    clip = (folder / template["vision_path"]).read_bytes()
    (folder / "videos/text.mp4").write_text("this is no video\n" * 100)
    (folder / "videos/cut.mp4").write_bytes(clip[: len(clip) // 2])
    (folder / "videos/empty.mp4").touch()
    for name in ("text", "cut", "empty"):
        lines.append(json.dumps({**template, "uuid": name, "vision_path": f"videos/{name}.mp4"}))
    (folder / "video_dataset_file.jsonl").write_text("\n".join(lines) + "\n")

    metrics, rejected = train(
        tmp_path, folder.parent, 6, "dataloader_train.dataset.frame_buckets=[17]", "dataloader_train.shuffle=false"
    )
    assert len(metrics) == 6
    assert all(math.isfinite(entry["loss"]) for entry in metrics)
    reasons = {Path(entry["path"]).stem: entry["reason"] for entry in rejected}
    assert set(reasons) == {"text", "cut", "empty"}
    assert all(entry["detail"] for entry in rejected)
