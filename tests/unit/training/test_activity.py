"""What a run says that it does: what the terminal shows below the line of the steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_runs

from worldsmith.monitor.throughput import Activity
from worldsmith.tasks import clip_task
from worldsmith.training.callbacks.progress import current_activity
from worldsmith.training.trainer import Trainer


def test_encoding_and_validation_tell_which_share_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_runs.tiny_config(tiny_runs.make_world(tmp_path / "world"), steps=2, cache=False)
    config.scheduler.warm_up_steps, config.trainer.grad_accum_iter = [1], 1
    config.trainer.max_iter = 1
    config.trainer.run_validation = True
    config.dataloader_val = replace(config.dataloader_train, max_samples_per_batch=3, max_sequence_length=None)
    trainer = Trainer(config, run_folder=tmp_path / "run")
    seen: list[Activity] = []
    encode = clip_task.ClipTask.cached_latents

    def watched(*arguments: Any) -> Any:
        seen.append(current_activity(trainer))
        return encode(*arguments)

    monkeypatch.setattr(clip_task.ClipTask, "cached_latents", watched)
    trainer.train()
    count = sum(found.name == "encoding" for found in seen)
    assert count > 1
    assert seen[:count] == [Activity("encoding", pytest.approx(index / count)) for index in range(count)]
    shares = [found.fraction for found in seen[count:] if found.name == "validation"]
    assert shares == [None] * 3 + [0.25] * 3 + [0.5] * 3 + [0.75] * 3  # two packs of three, with both kinds of weights
    assert current_activity(trainer) == Activity("training")
