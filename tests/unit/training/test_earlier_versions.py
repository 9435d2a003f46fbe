"""Runs and checkpoints of earlier versions load, or are refused with what can still be done.

`golden/earlier_config.yaml` is what the version before wrote for the tiny run of these tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import make_world, read_checkpoint, tiny_config

from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.files import checksum_manifest
from worldsmith.training.trainer import Trainer

EARLIER = Path(__file__).parents[2] / "golden" / "earlier_config.yaml"
GENERATOR = "worldsmith.families.cosmos3.model.Cosmos3Generator"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return make_world(tmp_path / "world", clips=5)


def write_config(run: Path, change: Callable[[str], str]) -> None:
    """Puts another text into config.yaml of a run and of its checkpoints, whose manifest it belongs to."""
    for file in (run / "config.yaml", *run.glob("checkpoints/iter_*/config.yaml")):
        file.write_text(change(file.read_text()))
    for checkpoint in run.glob("checkpoints/iter_*"):
        checksum_manifest.write_manifest(
            checkpoint, checksum_manifest.summarize_files(checkpoint, checksum_manifest.list_files(checkpoint))
        )


def run_of(world: Path, folder: Path, *, steps: int, resume_changed: bool = False, **checkpoint: object) -> Trainer:
    config = tiny_config(world, steps=3)
    config.trainer.max_iter = steps
    for name, value in checkpoint.items():
        setattr(config.checkpoint, name, value)
    trainer = Trainer(config, run_folder=folder, resume_changed=resume_changed)
    trainer.train()
    return trainer


def test_a_run_of_the_version_before_goes_on_bit_for_bit(world: Path, tmp_path: Path) -> None:
    """Though its config.yaml lacks class tags that are written now."""
    text = EARLIER.read_text().replace("WORLD", str(world))
    now = run_of(world, tmp_path / "now", steps=1).run_folder / "config.yaml"
    assert text.count("type: ") < now.read_text().count("type: ")
    run_of(world, tmp_path / "run", steps=1)
    write_config(tmp_path / "run", lambda _: text)
    run_of(world, tmp_path / "run", steps=2)
    run_of(world, tmp_path / "now", steps=2)
    one, two = (read_checkpoint(tmp_path / name / "checkpoints/iter_000000002") for name in ("run", "now"))
    assert one.keys() == two.keys()
    assert all((one[name] == two[name]).all() for name in one)


def test_a_class_that_has_moved_is_found_by_its_name(world: Path, tmp_path: Path) -> None:
    run_of(world, tmp_path / "run", steps=1)
    write_config(tmp_path / "run", lambda text: text.replace("training.scheduler.LambdaC", "training.rates.LambdaC"))
    assert run_of(world, tmp_path / "run", steps=2).iteration == 2


def test_a_class_that_has_gone_is_named_with_what_can_be_done(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No resume, no export; its weights can be trained from, and a checkpoint of trained ones finds its frozen ones."""
    run_of(world, tmp_path / "run", steps=1, save_weights="trained")
    write_config(tmp_path / "run", lambda text: text.replace(GENERATOR, "worldsmith.models.older.OlderGenerator"))
    with pytest.raises(UserError, match=r"config\.yaml was written by another version.*model\.config.*load_path"):
        run_of(world, tmp_path / "run", steps=2, save_weights="trained")
    assert main(["export", str(tmp_path / "run"), "--format", "native"]) == 2
    assert "was written by another version" in capsys.readouterr().err
    run_of(world, tmp_path / "next", steps=1, init="pretrained", load_path=str(tmp_path / "run"))
    report = json.loads((tmp_path / "next" / "load_report.json").read_text())
    assert (len(report["loaded"]), report["unexpected"]) == (2 * 34, [])
