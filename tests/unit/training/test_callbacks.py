"""What callbacks write, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_runs

from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.iter_speed import IterSpeed
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps, logged every second one, with all callbacks; one clip is damaged."""
    folder = tmp_path_factory.mktemp("callbacks")
    world = tiny_runs.make_world(folder / "world")
    (world / "data/videos/1.mp4").write_text("no video")
    config = tiny_runs.tiny_config(world, steps=5)
    config.trainer.logging_iter = 2
    config.trainer.callbacks = {
        "grad_clip": GradClip.Config(clip_norm=0.01),
        "iter_speed": IterSpeed.Config(),
        "metrics": Metrics.Config(),
    }
    Trainer(config, run_folder=folder / "run").train()
    return folder / "run"


def test_metrics_hold_every_figure_of_the_logged_steps(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 4, 5]
    last = lines[-1]
    assert last["rejected"] == {"not_a_video": 1}
    assert last["loaded"]["samples"] >= last["samples"]
    assert last["skipped"] is False
    assert last["grad_norm"] > 0.01, "the norm before clipping"
    assert last["samples"] >= 2
    assert 0 <= last["data_seconds"] < last["step_seconds"]
    assert last["tokens_per_second"] == pytest.approx(last["tokens"] / last["step_seconds"])
    assert last["peak_memory_bytes"] > 10**8
    assert lines[0]["lr"] < lines[1]["lr"]


def test_each_callback_has_its_folder_and_tensorboard_has_the_curve(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert all((run / name).is_dir() for name in ("grad_clip", "iter_speed", "metrics"))
    events = EventAccumulator(str(run / "metrics"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 4, 5]


def test_clip_norm_must_be_positive() -> None:
    with pytest.raises(ValueError, match="above 0"):
        GradClip.Config(clip_norm=0.0).check()
