"""Clips that cannot be are refused before they are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.demo.falling_objects import FallingObjects
from worldsmith.demo.moving_shapes import MovingShapes
from worldsmith.sampling.requests import GenerationRequest


@pytest.mark.parametrize("plan", [MovingShapes, FallingObjects])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 1_000_000}, r"frames of 1000000×1000000 pixels need \d+ GiB, but this machine has \d+ GiB of memory"),
        ({"num_frames": 10**12 + 1}, "GiB of memory"),
        ({"fps": 10**12}, "fps must be from 0.01 to 1000"),
    ],
)
def test_data_sets(plan: type[MovingShapes], settings: dict[str, int], words: str) -> None:
    plan().check()
    with pytest.raises(ValueError, match=words):
        plan(**settings).check()


@pytest.mark.parametrize("kind", ["moving-shapes", "falling-objects"])
@pytest.mark.parametrize("words", [[], ["--dryrun"]])
def test_more_clips_than_the_disk_has_room_for_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, words: list[str]
) -> None:
    out = tmp_path / "some" / "data"
    assert main(["dataset", kind, str(out), "--clips", str(10**12), "--val-clips", "1", *words]) == 2
    said = capsys.readouterr().err
    assert f"{kind}: 1000000000001 clips need at least" in said
    assert f"are free on the disk of {out}. Use fewer" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_frames": 10**9}, "request 'x': 1000000000 frames of 64×64 pixels need"),
        ({"fps": 1e300}, "request 'x': fps must be from 0.01 to 1000"),
        ({"fps": 1e-300}, "request 'x': fps must be from 0.01 to 1000"),
        ({"fps": float("nan")}, "request 'x': fps must be from 0.01 to 1000"),
    ],
)
def test_requests(settings: dict[str, float], words: str) -> None:
    request = {"prompt": "x", "height": 64, "width": 64, "num_frames": 5, "fps": 8}
    GenerationRequest(**request).check(LatentGrid(4, 16, 2))
    with pytest.raises(ValueError, match=words):
        GenerationRequest(**{**request, **settings}).check(LatentGrid(4, 16, 2))
