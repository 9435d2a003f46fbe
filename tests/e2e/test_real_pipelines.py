"""Short runs of families of diffusers on real clips: `DATASET_PATH` names a folder of clips."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tiny_cogvideox
import tiny_flux
import tiny_runs
import tiny_wan

from worldsmith.training.scheduler import LambdaLinear
from worldsmith.training.trainer import Trainer

CLIPS = Path(os.environ.get("DATASET_PATH", ""))
LISTING = CLIPS / "train/video_dataset_file.jsonl"
STEPS = 20
FAMILIES: dict[str, Any] = {
    **dict.fromkeys(["cogvideox_2b_tiny", "cogvideox_5b_i2v_tiny", "cogvideox1_5_5b_i2v_tiny"], tiny_cogvideox),
    **dict.fromkeys([tiny_wan.T2V, tiny_wan.TI2V, tiny_wan.I2V], tiny_wan),
    "flux_tiny": tiny_flux,
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LISTING.is_file(), reason="DATASET_PATH names no folder of clips"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A listing of the real clips, which stay where they are, and of one that is cut."""
    folder = tmp_path_factory.mktemp("real")
    records = [json.loads(line) for line in LISTING.read_text().splitlines()]
    for record in records:
        record["vision_path"] = str(LISTING.parent / record["vision_path"])
    damaged = folder / "data/cut.mp4"
    damaged.parent.mkdir()
    whole = Path(records[0]["vision_path"]).read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    records.append({**records[0], "uuid": "cut", "vision_path": str(damaged)})
    (folder / "data/video_dataset_file.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.parametrize("recipe", FAMILIES)
def test_some_steps_lower_the_loss_of_what_is_held_fixed(data: Path, tmp_path: Path, recipe: str) -> None:
    family = FAMILIES[recipe]
    if family is tiny_wan:
        tiny_wan.make_parts(tmp_path / recipe, large_cells=recipe == tiny_wan.TI2V)
    else:
        family.make_parts(tmp_path / "pipeline")
    config: Any = family.tiny_config(tmp_path, recipe, steps=STEPS)
    dataset = config.dataloader_train.dataset
    dataset.path = str(data / "data")
    dataset.num_video_frames = dataset.min_frames = 1 if family is tiny_flux else 9
    dataset.temporal_interval_mode = "entire_chunk"
    config.scheduler = LambdaLinear.Config(cycle_lengths=[STEPS], warm_up_steps=[0], f_start=[1], f_max=[1], f_min=[1])
    trainer = Trainer(config, run_folder=tmp_path / "run")
    task: Any = trainer.task
    batch = next(iter(task.loader()))
    first = float(task.loss(batch, seed=0).sum.detach())
    trainer.train()
    assert float(task.loss(batch, seed=0).sum.detach()) < 0.9 * first
    losses = [loss for _, loss, *_ in tiny_runs.read_losses(tmp_path / "run")]
    assert len(losses) == STEPS
    assert all(0 < loss < 10 for loss in losses)
    assert "cut" in (tmp_path / "run/quarantine.jsonl").read_text()
