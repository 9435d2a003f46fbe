"""What callbacks write, and what they refuse."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import toy_runs

from worldsmith.training import step, trainer
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.metrics import Metrics, peak_memory_bytes
from worldsmith.training.callbacks.progress import IterSpeed
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of four rows, logged every second one, with all callbacks; one row is damaged. A clock of whole
    seconds moves on by one whenever it is looked at: twice in a step's reading, twice around the whole step."""
    folder = tmp_path_factory.mktemp("callbacks")
    world = toy_runs.make_world(folder / "world")
    rows = (world / "rows.txt").read_text().splitlines()
    (world / "rows.txt").write_text("\n".join([rows[0], "no number", *rows[2:]]) + "\n")
    config = toy_runs.toy_config(world, steps=5)
    config.trainer.logging_iter = 2
    config.trainer.callbacks = {
        "grad_clip": GradClip.Config(clip_norm=0.01),
        "iter_speed": IterSpeed.Config(),
        "metrics": Metrics.Config(),
    }
    clock = SimpleNamespace(perf_counter=map(float, itertools.count()).__next__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "time", clock)
        patch.setattr(trainer, "time", clock)
        Trainer(config, run_folder=folder / "run").train()
    return folder / "run"


def read(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_metrics_hold_every_figure_of_the_logged_steps(run: Path) -> None:
    lines = read(run)
    assert [line["step"] for line in lines] == [1, 2, 4, 5]
    for line in lines:
        assert (line["samples"], line["tokens"], line["skipped"], line["skipped_total"]) == (4, 16, False, 0)
        ahead = 2 if line["step"] < 5 else 0  # the next pack was read, too, but none after the last step
        assert line["loaded"] == {"samples": 4 * line["step"] + ahead}
        seconds = 3.0 if line["step"] == 1 else 2.0  # of this clock; the batches of later steps were read before
        timing = line["data_seconds"], line["step_seconds"], line["tokens_per_second"]
        assert timing == (1.0, seconds, 16 / seconds)
    assert lines[-1]["rejected"] == {"no_number": 1}
    assert [line["lr"] for line in lines] == pytest.approx([3e-8, 1.5e-2, 2.25e-2, 7.5e-3], rel=1e-4)


def test_the_norm_is_that_before_clipping(run: Path, tmp_path: Path) -> None:
    """In the first step the weights are the same, clipped or not."""
    config = toy_runs.toy_config(run.parent / "world", steps=5)
    config.trainer.max_iter = 1
    config.trainer.callbacks = {"metrics": Metrics.Config(tensorboard=False)}
    Trainer(config, run_folder=tmp_path).train()
    assert read(run)[0]["grad_norm"] == read(tmp_path)[0]["grad_norm"] > 0.1


def test_each_callback_has_its_folder_and_tensorboard_has_the_curve(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert all((run / name).is_dir() for name in ("grad_clip", "iter_speed", "metrics"))
    events = EventAccumulator(str(run / "metrics"))
    events.Reload()
    expected = [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in read(run)]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == expected


def test_memory_is_counted_in_bytes_and_a_peak() -> None:
    now = psutil.Process().memory_info().rss
    assert now / 2 < peak_memory_bytes("cpu") < 100 * now


def test_clip_norm_must_be_positive() -> None:
    with pytest.raises(ValueError, match="above 0"):
        GradClip.Config(clip_norm=0.0).check()
