"""Four ranks save sharded tensors: the files are those of PyTorch, and what happens to one rank happens to all."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
import saves_on_ranks
from launch import launch
from saves_on_ranks import AGAIN, BACKGROUND, BROKEN, DIES, LAST, TWICE, WAITED, WITHOUT_ONE

from worldsmith.files.checksum_manifest import find_damage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread writes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saves")
    launch(Path(saves_on_ranks.__file__), 4, [str(folder)])
    return folder


def said(folder: Path, iteration: int) -> set[str]:
    return {json.loads((folder / f"said_{rank}.json").read_text())[str(iteration)] for rank in range(4)}


@pytest.mark.parametrize("iteration", [WAITED, BACKGROUND, AGAIN, LAST])
@pytest.mark.parametrize("part", ["model", "trainer"])
def test_files_are_those_of_pytorchs_own_save(folder: Path, part: str, iteration: int) -> None:
    """Bytes of every rank's file and all metadata; also of saves that some ranks' threads write, others' processes."""
    assert said(folder, iteration) == {"saved"}
    ours, theirs = folder / f"checkpoints/iter_{iteration:09d}" / part, folder / "theirs" / part
    names = sorted(path.name for path in theirs.iterdir())
    assert [f"__{rank}_0.distcp" for rank in range(4)] == names[1:]
    assert sorted(path.name for path in ours.iterdir()) == names
    assert not [name for name in names[1:] if (ours / name).read_bytes() != (theirs / name).read_bytes()]
    found, expected = (pickle.loads((path / ".metadata").read_bytes()) for path in (ours, theirs))
    expected.storage_meta = found.storage_meta  # names the folder, and a random number
    assert found == expected


def test_every_position_is_there(folder: Path) -> None:
    for iteration in (WAITED, LAST):
        checkpoint = folder / f"checkpoints/iter_{iteration:09d}"
        assert find_damage(checkpoint) is None
        assert len(list((checkpoint / "dataloader").iterdir())) == 4


@pytest.mark.parametrize(
    ("iteration", "reason"),
    [(BROKEN, "No space left on device"), (WITHOUT_ONE, "has died"), (DIES, "has died"), (TWICE, "a mistake")],
)
def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_nothing(
    folder: Path, iteration: int, reason: str
) -> None:
    for text in said(folder, iteration):
        assert reason in text
        assert "Earlier complete checkpoints are unchanged" in text
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert left == [*(f"iter_{number:09d}" for number in (WAITED, BACKGROUND, AGAIN, LAST)), "latest_checkpoint.txt"]
