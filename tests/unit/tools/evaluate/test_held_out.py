"""The held-out loss is that of the run's own validation, and what changes it is noticed."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from generator_run import write_generator_run
from pipeline_runs import FAMILIES, make_world, pipeline_config

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.config.errors import UserError
from worldsmith.tools.evaluate.held_out import HeldOutClips
from worldsmith.tools.export.export import Export
from worldsmith.tools.generate.sample_order import Order, make_order
from worldsmith.training.trainer import Trainer


def order(run: Path, out: Path, **choice: Any) -> Order:
    return make_order(find_model(run, **choice), "cpu", [], out)


def measure(run: Path, dataset: Path, out: Path, *, overwrite: bool = False, **choice: Any) -> dict[str, float | str]:
    one = order(run, out, **choice)
    return HeldOutClips(str(dataset), one.model).measure_loss(one, lambda *_: None, overwrite=overwrite).losses


QUICK = {"cosmos3", "ltx_video"}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ("cosmos3", *FAMILIES)]
)
def test_the_mean_is_that_of_the_validation(tmp_path: Path, family: str) -> None:
    if family == "cosmos3":
        world = tiny_runs.make_world(tmp_path / "world", clips=3)
        config = tiny_runs.tiny_config(world, steps=2)
    else:
        world = make_world(family, tmp_path / "world")
        config = pipeline_config(family, world, steps=2, save_iter=2)
    config.dataloader_val = copy.deepcopy(config.dataloader_train)
    config.dataloader_val.dataset.cfg_dropout_rate = 0.0
    config.trainer.run_validation, config.trainer.validation_iter = True, 2
    Trainer(config, run_folder=tmp_path / "run").train()
    _, live, average, samples = tiny_runs.read_validations(tmp_path / "run")[-1]
    assert live != average
    for weights, expected in (("live", live), ("ema", average)):
        losses = measure(tmp_path / "run", world / "data", tmp_path / weights, weights=weights)
        assert len(losses) == samples > 2
        assert sum(float(loss) for loss in losses.values()) / samples == pytest.approx(expected, rel=2e-3)


def test_unchanged_losses_are_kept_and_changed_ones_measured(tmp_path: Path) -> None:
    run = write_generator_run(tmp_path)
    data = shutil.copytree(tmp_path / "data", tmp_path / "val")
    first = measure(run, data, tmp_path / "out")
    file = tmp_path / "out/held_out_loss.json"
    record = json.loads(file.read_text())
    assert record["losses"] == first == measure(run, data, tmp_path / "again")
    marked = {key: -1.0 for key in first}

    def measured_again(**settings: Any) -> bool:
        file.write_text(json.dumps({**record, "losses": marked}))
        return measure(run, data, tmp_path / "out", **settings) != marked

    assert not measured_again()
    assert measured_again(overwrite=True)
    assert measured_again(weights="live")
    shutil.copy(data / "1.mp4", data / "0.mp4")
    assert measured_again()
    shutil.copytree(tmp_path / "data", data, dirs_exist_ok=True)
    assert not measured_again()
    captions = (data / "video_dataset_file.jsonl").read_text()
    (data / "video_dataset_file.jsonl").write_text(captions.replace("A square.", "A circle.", 1))
    assert measured_again()


def test_clips_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    run = write_generator_run(tmp_path)
    (tmp_path / "data/0.mp4").write_bytes(b"none")
    with open(tmp_path / "data/video_dataset_file.jsonl", "a") as lines:
        lines.write('{"uuid": "odd"}\n')
    one = order(run, tmp_path / "out")
    for _ in range(2):  # the second time from the record
        clips = HeldOutClips(str(tmp_path / "data"), one.model)
        assert list(clips.measure_loss(one, lambda *_: None, overwrite=False).losses) == ["1_w0"]
        assert list(clips.left_out) == ["video_dataset_file.jsonl:3", "0_w0"]
        assert clips.left_out_lines()[1].startswith("skipped 0_w0: ")
    (tmp_path / "data/video_dataset_file.jsonl").write_text('{"uuid": "odd"}\n')
    with pytest.raises(UserError, match=r"no usable clip: skipped video_dataset_file.jsonl:1: bad_record"):
        HeldOutClips(str(tmp_path / "data"), one.model)


def test_clips_of_the_training_are_found_by_path_and_by_content(tmp_path: Path) -> None:
    run = write_generator_run(tmp_path)
    model = find_model(run)
    data = shutil.copytree(tmp_path / "data", tmp_path / "val")
    assert HeldOutClips(str(tmp_path / "data"), model).count_trained_on() == 2
    assert HeldOutClips(str(data), model).count_trained_on() == 2
    (data / "0.mp4").write_bytes(b"another")
    assert HeldOutClips(str(data), model).count_trained_on() == 1
    assert HeldOutClips(str(data), find_model(run, weights="untrained")).count_trained_on() is None


def test_an_export_has_the_loss_of_its_run_while_that_is_known(tmp_path: Path) -> None:
    run = write_generator_run(tmp_path)
    Export.Config(model=str(run), dtype="float32", out=str(tmp_path / "export")).build().run()
    expected = measure(run, tmp_path / "data", tmp_path / "out")
    found = measure(tmp_path / "export", tmp_path / "data", tmp_path / "of_export")
    assert found == pytest.approx(expected, rel=1e-2)  # the run computes in bfloat16
    run.rename(tmp_path / "elsewhere")
    lost = measure(tmp_path / "export", tmp_path / "data", tmp_path / "again")
    assert "export does not state its training objective" in str(lost[""])
    settings = HeldOutClips(str(tmp_path / "data"), find_model(tmp_path / "export")).data.dataset
    assert (settings.resolution, settings.num_video_frames, settings.target_fps) == ("96x64", 9, 8)


def test_losses_of_different_objectives_are_not_compared(tmp_path: Path) -> None:
    run = write_generator_run(tmp_path)
    other = shutil.copytree(run, tmp_path / "other")
    config = other / "config.yaml"
    clips = HeldOutClips(str(tmp_path / "data"), find_model(run))
    assert clips.incomparable_reason(find_model(other), find_model(other).tree) == ""
    config.write_text(config.read_text().replace("resolution: '64'", "resolution: '128'"))
    assert "data settings differ" in clips.incomparable_reason(find_model(other), find_model(other).tree)
