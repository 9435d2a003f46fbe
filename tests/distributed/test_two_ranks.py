"""Two gloo ranks with FSDP train like one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rank
import torch
import toy_runs
from launch import launch
from metrics_files import read_metrics

from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished runs: `single` (one process), `whole` and `resumed` (two ranks)."""
    folder = tmp_path_factory.mktemp("two_ranks")
    world = toy_runs.make_world(folder / "world", rows=5)
    Trainer(rank.two_rank_config(world, steps=3, accumulate=2), run_folder=folder / "single").train()
    launch(Path(rank.__file__), 2, [str(world), str(folder)])
    return folder


def test_three_fp32_steps_equal_a_single_process(folder: Path) -> None:
    """The same twelve samples in three steps: losses, gradient norms, weights and averages agree to 1e-5 relative."""
    single, whole = (toy_runs.read_losses(folder / name) for name in ("single", "whole"))
    assert [line[3] for line in whole] == [4, 4, 4]
    for ours, theirs in zip(whole, single, strict=True):
        assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
        assert ours[2] == pytest.approx(theirs[2], rel=1e-5)
    expected, found = (
        toy_runs.read_checkpoint(folder / name / "checkpoints/iter_000000003") for name in ("single", "whole")
    )
    for name in (name for name in expected if name.startswith(("model/", "optim/"))):
        error = (found[name] - expected[name]).norm()
        assert error <= 1e-5 * expected[name].norm() + 1e-9, name


def test_ranks_agree_on_what_overflows_float16(folder: Path) -> None:
    """Both skip the same steps and halve the scale, as one process does; each has twice its gradients before the mean,
    so that half its scale is what they overflow at.
    """
    Trainer(rank.half_config(folder / "world", accumulate=2, scale=2.0**18), run_folder=folder / "half_single").train()
    single, half = (read_metrics(folder / name / "metrics.jsonl") for name in ("half_single", "half"))
    assert [line["skipped"] for line in half] == [line["skipped"] for line in single]
    assert [line["skipped"] for line in half].count(True) in range(1, 6)
    assert [2 * line["loss_scale"] for line in half] == [line["loss_scale"] for line in single]
    assert [line["loss"] for line in half] == pytest.approx([line["loss"] for line in single], rel=2e-3)
    ours, theirs = (
        toy_runs.read_checkpoint(folder / name / "checkpoints/iter_000000006") for name in ("half", "half_single")
    )
    assert 2 * ours["trainer/loss_scale[scale]"] == theirs["trainer/loss_scale[scale]"]
    assert (folder / "overflow.txt").read_text() == "[(True, 2.0), (True, 2.0)]"


def test_a_step_has_two_sums_on_the_host_besides_the_calls_of_fsdp(folder: Path) -> None:
    """Losses, counts and padding are one sum; the flags of the step boundary and the next weight are the other.

    A counter of data loading that is new on some rank makes its name known to all, once. The norm of sharded gradients,
    which is reduced on the device, is not seen here.
    """
    steps = json.loads((folder / "collectives.json").read_text())
    usual = {"allgather_base": 4, "reduce_scatter_base": 2, "allreduce": 2}
    assert [steps[str(number)] for number in (2, 3, 4, 5)] == [usual] * 4
    assert steps["1"] == usual | {"allgather": 2, "allreduce": 3}


def test_norms_of_sharded_parts_are_those_of_a_single_process(folder: Path) -> None:
    single, whole = (read_metrics(folder / name / "norm_monitor/norms.jsonl") for name in ("single", "whole"))
    assert [line["step"] for line in whole] == [line["step"] for line in single] == [1, 2, 3]
    for ours, theirs in zip(whole, single, strict=True):
        assert set(ours["parts"]) == {"layers.0", "layers.1"}
        for part, norms in theirs["parts"].items():
            assert set(norms) == {"weight", "gradient", "update"}
            assert ours["parts"][part] == pytest.approx(norms, rel=1e-4)


def test_every_process_has_its_devices_read(folder: Path) -> None:
    lines = read_metrics(folder / "whole/DeviceMonitor/devices.jsonl")
    assert [len(line["processes"]) for line in lines] == [2, 2, 2]
    greatest = [max(process["ram_bytes"] for process in line["processes"]) for line in lines]
    logged = read_metrics(folder / "whole/metrics.jsonl")
    assert [line["devices"]["ram_bytes"] for line in logged] == greatest


def test_two_ranks_resume_bit_for_bit(folder: Path) -> None:
    """Two steps, a checkpoint of sharded tensors, and one step more equal three steps; every rank has its RNG."""
    assert toy_runs.read_losses(folder / "resumed") == toy_runs.read_losses(folder / "whole")
    expected, found = (
        toy_runs.read_checkpoint(folder / name / "checkpoints/iter_000000003") for name in ("whole", "resumed")
    )
    assert not [name for name in expected if not torch.equal(expected[name], found[name])]
    assert {"trainer/rng_state_0.torch", "trainer/rng_state_1.torch"} <= expected.keys()
    ranks = folder / "whole/checkpoints/iter_000000003/dataloader"
    assert sorted(path.name for path in ranks.iterdir()) == ["rank_0.json", "rank_1.json"]


def test_another_number_of_ranks_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One process that goes on with a run of two, and takes twice the packs, says that its steps are as large."""
    config = rank.two_rank_config(folder / "world", steps=4, accumulate=2)
    trainer = Trainer(config, run_folder=folder / "whole", resume_changed=True)
    assert trainer.iteration == 3
    assert "was saved by 2 data-parallel processes, and now there are 1" in caplog.text
    assert "packs per step: 1 × 2 = 2, before 2 × 1 = 2 (processes" in caplog.text
