"""When the figures of an earlier evaluation still hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worldsmith.config.errors import UserError
from worldsmith.demo.adherence import load_prompts
from worldsmith.demo.measure_adherence import RESULT, MeasureAdherence, video_name
from worldsmith.demo.moving_shapes import MovingShapes

FIGURES = {"adherence": 1.0, "prompts": 1, "by_attribute": {"colour": 1.0}, "by_novelty": {}}


@pytest.fixture
def measured(tmp_path: Path) -> MeasureAdherence:
    """What a command would leave that has measured a run."""
    MovingShapes(clips=1, val_clips=1).make(tmp_path / "data")
    run, out = tmp_path / "run", tmp_path / "out"
    for name in ("iter_000000001/model/a.distcp", "iter_000000002/model/a.distcp", "latest_checkpoint.txt"):
        (run / "checkpoints" / name).parent.mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / name).write_text("iter_000000002\n")
    prompts = tmp_path / "data/prompts.jsonl"
    action = MeasureAdherence.Config(model=str(run), prompts=str(prompts), out=str(out)).build()
    (out / "trained").mkdir(parents=True)
    for index, prompt in enumerate(load_prompts(prompts)):
        (out / "trained" / video_name(index, prompt)).touch()
    (out / "contact_sheet.png").touch()
    (out / RESULT).write_text(json.dumps({"signature": action.signature(), "trained": FIGURES}))
    return action


def test_figures_of_the_same_model_hold(measured: MeasureAdherence) -> None:
    assert measured.known() == {"trained": FIGURES}


def test_a_run_that_went_back_to_an_earlier_checkpoint_is_measured_anew(
    measured: MeasureAdherence, tmp_path: Path
) -> None:
    (tmp_path / "run/checkpoints/latest_checkpoint.txt").write_text("iter_000000001\n")
    assert measured.known() == {}


def test_figures_that_cannot_be_read_are_named(measured: MeasureAdherence, tmp_path: Path) -> None:
    signature = measured.signature()
    wrong = [{"trained": [1]}, {"trained": {"adherence": "a"}}, {"trained": FIGURES | {"by_novelty": {"a": 3}}}, {}]
    for content in (b"[1]", b"{", b"\xff", *(json.dumps({"signature": signature} | w).encode() for w in wrong)):
        (tmp_path / "out" / RESULT).write_bytes(content)
        with pytest.raises(UserError, match=rf"{RESULT}.*--force measures again"):
            measured.known()


def test_figures_without_their_videos_do_not_hold(measured: MeasureAdherence, tmp_path: Path) -> None:
    next((tmp_path / "out/trained").iterdir()).unlink()
    assert measured.known() == {}
