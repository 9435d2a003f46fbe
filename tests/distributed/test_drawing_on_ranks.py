"""Samples that two ranks draw with a sharded network are those of its stored weights in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import drawing_ranks
import pytest
import reasoner_runs
import tiny_runs
from launch import launch
from toy_runs import require_same_end

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.data.conversations.conversation import question
from worldsmith.data.video_decoder import examine
from worldsmith.sampling.generate_answers import Answerer
from worldsmith.sampling.generate_videos import generate
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.sampling.training_data import with_clip_size
from worldsmith.sampling.write_media import few_frames, write_mp4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawing")
    tiny_runs.make_world(folder / "clips")
    reasoner_runs.make_world(folder / "chats")
    launch(Path(drawing_ranks.__file__), 2, [str(folder)])
    return folder


def read(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "EveryNDrawSample/samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["videos", "shared"])
@pytest.mark.parametrize("weights", ["live", "ema"])
def test_videos_are_those_of_one_process(folder: Path, tmp_path: Path, name: str, weights: str) -> None:
    """Also where the ranks share the tokens of a pack."""
    run = folder / name
    found = find_model(str(run), weights=weights)
    model: Any = found.load("cpu")
    model.defaults = size = with_clip_size(model.defaults, found.tree, model.latent_grid)
    drawn = [sample for sample in read(run) if (sample["step"], sample["weights"]) == (2, weights)]
    assert len(drawn) == 2
    common = {side: getattr(size, side) for side in ("height", "width", "num_frames", "fps")}
    requests = [GenerationRequest(prompt=sample["prompt"], seed=seed, **common) for seed, sample in enumerate(drawn)]
    for sample, video in zip(drawn, generate(model, requests, steps=2, guidance=3.0), strict=True):
        write_mp4(tmp_path / "expected.mp4", video, common["fps"])
        frames, expected = few_frames(run / sample["file"], 99), few_frames(tmp_path / "expected.mp4", 99)
        assert frames.shape == expected.shape
        assert (frames.int() - expected.int()).abs().float().mean() < 0.5
        assert examine(str(run / sample["file"]))[1].num_frames == common["num_frames"]


@pytest.mark.parametrize("name", ["videos", "without_interval", "undecodable", "failing"])
def test_two_ranks_train_as_without(folder: Path, name: str) -> None:
    require_same_end(folder / name, folder / "without", step=2)


def test_rank_0_decides_when_samples_are_drawn(folder: Path) -> None:
    samples = read(folder / "without_interval")
    assert {sample["weights"] for sample in samples} == {"ema"}
    assert {sample["step"] for sample in samples} >= {0, 2}
    assert all((folder / "without_interval" / sample["real"]).is_file() for sample in samples)


def test_what_fails_on_rank_0_alone_ends_no_run(folder: Path) -> None:
    assert read(folder / "undecodable") == []
    said = (folder / "undecodable/messages.jsonl").read_text()
    assert "sample generation failed after step 0, but the run continues: OutOfMemoryError" in said


def test_forward_passes_that_fail_end_no_run(folder: Path) -> None:
    """In the middle of a layer on both ranks, then on rank 1 after the last layer."""
    assert read(folder / "failing") == []
    said = (folder / "failing/messages.jsonl").read_text()
    assert "sample generation failed after step 1, but the run continues: OutOfMemoryError: no memory is left" in said
    assert "2 sample generations have failed" in said


def test_a_rank_that_fails_while_the_other_waits_for_it_ends_the_run(folder: Path) -> None:
    launch(Path(drawing_ranks.__file__), 2, [str(folder), "alone"], timeout=60)
    assert (folder / "alone_1.txt").read_text() == "OutOfMemoryError: no memory is left on rank 1"
    assert (folder / "alone_0.txt").read_text().startswith("RuntimeError")


@pytest.mark.parametrize("name", ["answers", "answers_bfloat16"])
def test_answers_are_those_of_one_process(folder: Path, name: str) -> None:
    run = folder / name
    samples = read(run)
    assert [(sample["step"], sample["weights"]) for sample in samples] == [(2, "live")] * 3 + [(2, "ema")] * 3
    assert all(sample["answer"] is not None for sample in samples)
    if name == "answers_bfloat16":  # rounded by layers that are gathered and by those that are not, in other places
        return
    config: Any = drawing_ranks.answers(folder)
    dataset = config.dataloader_train.dataset.build()
    for weights in ("live", "ema"):
        model: Any = find_model(str(run), weights=weights).load("cpu")
        asked = [(str(place), question(dataset.turns(place))) for place in (0, 2, 4)]
        answers = Answerer(model, config.dataloader_train.processor).answers(asked, batch_size=3, max_new_tokens=5)
        assert [a.text for a in answers] == [s["answer"] for s in samples if s["weights"] == weights]
