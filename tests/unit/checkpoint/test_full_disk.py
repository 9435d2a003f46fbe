"""A full disk, a real one of a few MiB: nothing complete is lost, nothing half is left, and the message helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_disk import run_beside_disk

SCRIPT = """
import os, sys
from pathlib import Path
import torch
from worldsmith.checkpoint.run import checkpointer
from worldsmith.files.checksum_manifest import find_damage
from worldsmith.checkpoint.run.save_error import SaveError

folder, background = Path(sys.argv[1]) / "checkpoints", sys.argv[2] == "True"
one = checkpointer.Checkpointer.Config(init="scratch").build(folder=folder)
small = {"net.a": torch.randn(200_000)}
large = {**small, "net.b": torch.randn(800_000)}


def save(iteration, model):
    try:
        one.save(iteration, {"model": model}, background=background)
        one.wait_for_background_save()
    except SaveError as error:
        return str(error)


def state():
    names = sorted(os.listdir(folder))
    assert all(find_damage(folder / name) is None for name in names if name.startswith("iter_"))
    return names, one.latest().name


assert save(1, small) is None and save(2, small) is None
before = state()
predicted = save(3, large)
assert "there is not enough space" in predicted, predicted
checkpointer.require_space = lambda folder, needed: None  # as if another program took the space meanwhile
met = save(3, large)
assert "No space left on device" in met, met
for message in (predicted, met):
    assert "iter_000000003" in message and "MiB are free" in message and "keep_latest_k" in message, message
assert state() == before == (["iter_000000001", "iter_000000002", "latest_checkpoint.txt"], "iter_000000002")
assert save(4, small) is None
assert state()[1] == "iter_000000004"
"""


@pytest.mark.parametrize("background", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_full_disk(tmp_path: Path, background: bool) -> None:
    """Predicted before a byte is written, and met in the middle of the writing."""
    run_beside_disk(tmp_path, SCRIPT, str(background), mebibytes=4)


WRITES = """
import os, sys
import torch
from pathlib import Path
from safetensors.torch import save_file
from worldsmith.checkpoint.dcp.dcp_folder import planner_of, save_part
from worldsmith.cli.main import file_error
from worldsmith.files.atomic import locked_temporary_folder

target, large = Path(sys.argv[1]) / "out", {"a": torch.randn(1_000_000)}
for write in (
    lambda folder: save_file(large, folder / "x.safetensors"),
    lambda folder: save_part(folder / "model", planner_of(large)),
    lambda folder: (folder / "x").write_bytes(bytes(4_000_000)),
):
    try:
        with locked_temporary_folder(target) as aside:
            write(aside)
    except OSError as error:
        said = file_error(error)
        assert said.startswith("there is no space left on the disk (free disk space"), said
        assert said.endswith(str(target)), said
    else:
        raise AssertionError("it has space")
    assert os.listdir(sys.argv[1]) == []
"""


def test_an_export_and_a_conversion_say_so_in_one_line(tmp_path: Path) -> None:
    run_beside_disk(tmp_path, WRITES, mebibytes=2)


VIDEO = """
import os, sys
from pathlib import Path
import numpy as np
from worldsmith.cli.main import file_error
from worldsmith.data.video_writer import write_video
from worldsmith.files.atomic import write_text

disk, noise = Path(sys.argv[1]), np.random.RandomState(0).randint(0, 256, (49, 256, 256, 3)).astype(np.uint8)
for write in (lambda: write_video(disk / "x", noise, 8.0), lambda: write_text(disk / "x", "x" * 2_000_000)):
    try:
        write()
    except OSError as error:
        said = file_error(error)
        assert said == f"No space left on device: {disk / 'x'}", said
    else:
        raise AssertionError("it has space")
    assert os.listdir(disk) == []
"""


def test_a_file_that_finds_no_space_is_named(tmp_path: Path) -> None:
    run_beside_disk(tmp_path, VIDEO, mebibytes=1)
