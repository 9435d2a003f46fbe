"""The task of FLUX: what it refuses, and a run over images that learns, stops and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_flux
import tiny_runs
import torch

from worldsmith.config import WrongValueError
from worldsmith.families.flux.task import FluxTask
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux.make_world(tmp_path_factory.mktemp("flux"))


def test_clips_of_several_frames_and_captions_of_another_length_are_refused(world: Path) -> None:
    run = tiny_flux.tiny_config(world)
    FluxTask.check(run)
    run.dataloader_train.max_caption_tokens = 16
    with pytest.raises(WrongValueError, match="write 93"):
        FluxTask.check(run)
    run.dataloader_train.max_caption_tokens = 93
    run.dataloader_train.dataset.num_video_frames = 9
    with pytest.raises(WrongValueError, match="generates images"):
        FluxTask.check(run)


def test_a_run_that_was_stopped_goes_on_and_a_cut_image_is_left_out(world: Path, tmp_path: Path) -> None:
    cut = tiny_flux.make_world(tmp_path / "world") / "data/images/1.jpg"
    cut.write_bytes(cut.read_bytes()[:-200])
    config = tiny_flux.tiny_config(tmp_path / "world", steps=6)
    config.checkpoint.save_iter = 3
    config.dataloader_train.dataset.cfg_dropout_rate = 0.3
    Trainer(config, run_folder=tmp_path / "whole").train()
    told = (tmp_path / "whole/quarantine.jsonl").read_text()
    assert "picture1" in told
    assert "truncated" in told

    config.trainer.max_iter = 3
    Trainer(config, run_folder=tmp_path / "parts").train()
    config.trainer.max_iter = 6
    Trainer(config, run_folder=tmp_path / "parts").train()
    ends = [tmp_path / name / "checkpoints/iter_000000006" for name in ("whole", "parts")]
    whole, parts = map(tiny_runs.read_checkpoint, ends)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole if isinstance(whole[name], torch.Tensor))
    assert tiny_runs.read_losses(tmp_path / "whole")[3:] == tiny_runs.read_losses(tmp_path / "parts")[3:]


def test_it_learns_images(world: Path, tmp_path: Path) -> None:
    config = tiny_flux.tiny_config(world, steps=40)
    Trainer(config, run_folder=tmp_path / "run").train()
    losses = [line[1] for line in tiny_runs.read_losses(tmp_path / "run")]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
