"""A disk that fills up while a run trains on it, a real one: the run goes on, and says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_runs
from small_disk import run_beside_disk

SCRIPT = """
import logging, os, sys
from pathlib import Path

import toy_runs
from metrics_files import read_metrics
from worldsmith.config.errors import UserError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.trainer import Outcome, Trainer

logging.basicConfig(level=logging.INFO, format="%(message)s")
disk, world = Path(sys.argv[1]), Path(sys.argv[2])
filler = disk / "filler"


def fill():
    with open(filler, "ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


class Filler(Callback):
    def on_training_step_start(self, trainer, inputs):
        if inputs.index + 1 == 3:
            fill()
            trainer.state.loader.quarantine.add(Rejection("lost", "truncated", "", "x.mp4"))
        if inputs.index + 1 == 14:
            filler.unlink()
            trainer.state.loader.quarantine.add(Rejection("listed", "truncated", "", "y.mp4"))


def config(steps):
    config = toy_runs.toy_config(world, steps=steps, save_iter=8)
    config.scheduler.cycle_lengths = [16]
    config.checkpoint.async_save = False  # so that it is known which save meets the full disk
    config.trainer.callbacks["metrics"].tensorboard = True
    return config


trainer = Trainer(config(16), run_folder=disk / "run")
trainer.callbacks = {"filler": Filler(Filler.Config(), folder=disk), **trainer.callbacks}
assert trainer.train() is Outcome.FINISHED
assert trainer.failed_saves == 1, trainer.failed_saves
records = read_metrics(disk / "run/metrics.jsonl")
steps = [record["step"] for record in records]
assert steps[:2] == [1, 2] and steps[-3:] == [14, 15, 16] and len(steps) < 16, steps
assert records[-1]["unwritten"] == 16 - len(steps), records[-1]
assert records[-1]["loaded"]["quarantine_unwritten"] == 1, records[-1]
assert "listed" in (disk / "run/quarantine.jsonl").read_text()

fill()
for name in ("run", "new"):
    try:
        Trainer(config(17), run_folder=disk / name)
    except UserError as error:
        assert "cannot be written: No space left on device" in str(error), error
    else:
        raise AssertionError("the start on a full disk was not refused")
"""


@pytest.mark.slow
def test_side_files_that_cannot_be_written_do_not_end_the_run(tmp_path: Path) -> None:
    """The disk is full from step 3 to 13: what is lost is counted, what comes later is there; a start is refused."""
    said = run_beside_disk(tmp_path, SCRIPT, str(toy_runs.make_world(tmp_path / "world", rows=3)), mebibytes=6)
    for part in ("metrics.jsonl cannot be written", "quarantine.jsonl cannot be written", "SAVE FAILED (1 so far)"):
        assert said.count(part) == 1, said
    assert "writes have failed, and their metrics are missing" in said
