"""Runs with 8-bit optimizer state and with float8 matmuls: exact resume, other numbers of processes, close losses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import eight_bit_ranks
import pytest
import torch
import toy_runs
from diffusers import FluxTransformer2DModel
from launch import launch
from runs import Runs

from worldsmith.cli.main import main

STEPS = 6
LAST = f"checkpoints/iter_{STEPS:09d}"
EIGHT = {"optimizer": {"name": "AdamW8bit"}}
FLOAT8 = {"model": {"precision": "bfloat16"}, "float8": "rowwise"}
JOBS = {
    "AdamW": {},
    "AdamW8bit": EIGHT,
    "bfloat16": {"model": {"precision": "bfloat16"}},
    "rowwise": FLOAT8,
    "both": {**EIGHT, **FLOAT8},
    "adapters": {**EIGHT, **FLOAT8, "model": {"precision": "bfloat16", "lora_enabled": True, "lora_rank": 16}},
}


class Started(Runs):
    """Runs by name, on a number of ranks; each is started once."""

    def losses(self, name: str, ranks: int = 1) -> list[float]:
        return [line[1] for line in toy_runs.read_losses(self.run(name, ranks))]

    def run(self, name: str, ranks: int = 1) -> Path:
        folder = self.folder / f"{name}_{ranks}"
        if not folder.exists():
            self.start(folder.name, job=job(name, ranks, STEPS))
        return folder


def job(name: str, ranks: int, steps: int) -> dict:
    """Two packs of one sample in every step, whatever the number of ranks."""
    settings = {"samples": 1, "cycle": STEPS, "resume_changed": True, **JOBS[name]}
    return {"ranks": ranks, "accumulate": 2 // ranks, "steps": steps, **settings}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    runs = Started(tmp_path_factory.mktemp("eight_bits"), family="flux", steps=STEPS)
    yield runs
    runs.close()


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_weights_and_state_are_the_same_bits_on_any_number_of_ranks(ranks: int, tmp_path: Path) -> None:
    launch(Path(eight_bit_ranks.__file__), ranks, [str(tmp_path)])
    found, expected = torch.load(tmp_path / f"{ranks}.pt"), eight_bit_ranks.take_steps(eight_bit_ranks.make_network())
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    codes = {name for name, value in found.items() if value.dtype == torch.uint8}
    assert codes == {f"{layer}.weight.{name}" for layer in "012" for name in ("exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("AdamW8bit", 1), *(pytest.param(*other, marks=pytest.mark.slow) for other in (("both", 2), ("adapters", 1)))],
)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(runs: Started, name: str, ranks: int) -> None:
    whole, parts = runs.run(name, ranks), f"{name}_parts"
    for steps in (3, STEPS):
        runs.start(parts, job=job(name, ranks, steps))
    toy_runs.require_same_end(runs.folder / parts, whole, STEPS)
    saved = toy_runs.read_checkpoint(whole / LAST)
    codes = [key for key, tensor in saved.items() if tensor.dtype == torch.uint8 and key.startswith("optim/")]
    assert len(codes) >= 8 or name == "adapters"
    assert all(f"{key}_scale" in saved for key in codes)
    weights = {tensor.dtype for key, tensor in saved.items() if key.startswith("model/")}
    assert weights == {torch.float32}


def test_8_bits_on_one_two_one_ranks_equal_an_uninterrupted_run(runs: Started) -> None:
    said = ""
    for number, ranks in enumerate((1, 2, 1), start=1):
        said += runs.start("resharded", job=job("AdamW8bit", ranks, 2 * number))
    for now, before in ((2, 1), (1, 2)):
        assert f"was saved by {before} data-parallel processes, and now there are {now}" in said
    resharded = [line[1] for line in toy_runs.read_losses(runs.folder / "resharded")]
    assert resharded == pytest.approx(runs.losses("AdamW8bit"), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "other", "within"),
    [("AdamW8bit", "AdamW", 1e-4), ("rowwise", "bfloat16", 5e-3), ("both", "rowwise", 5e-3)],
)
def test_losses_are_close_to_those_of_full_precision(runs: Started, name: str, other: str, within: float) -> None:
    found, expected = runs.losses(name), runs.losses(other)
    assert found == pytest.approx(expected, rel=within)
    assert found != expected


def test_float8_on_two_ranks_is_close_to_that_on_one(runs: Started) -> None:
    assert runs.losses("both", 2) == pytest.approx(runs.losses("both"), rel=1e-4)


def test_a_float8_run_is_exported_as_plain_weights(runs: Started, tmp_path: Path) -> None:
    run, out = runs.run("rowwise"), tmp_path / "out"
    assert main(["export", str(run), "-o", str(out), "--dtype", "float32", "--weights", "live"]) == 0
    found = FluxTransformer2DModel.from_pretrained(out / "transformer").state_dict()
    saved = toy_runs.read_checkpoint(run / LAST)
    expected = {key.removeprefix("model/net."): value for key, value in saved.items() if key.startswith("model/net.")}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
