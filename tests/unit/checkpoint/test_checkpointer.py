"""Checkpoints are complete or invisible, and what is read back is what was written, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from mortal import Mortal
from stored_checkpoints import checkpointer, save, weights
from torch import nn

from worldsmith.checkpoint.dcp.tensor_reader import stored_shapes
from worldsmith.checkpoint.run.checkpointer import Checkpointer, load_positions
from worldsmith.checkpoint.run.find_checkpoint import POINTER
from worldsmith.checkpoint.run.optimizer_state import empty_optimizer_state, optimizer_state, restore_optimizer_state
from worldsmith.checkpoint.run.rng_state import rng_state, seed_everything, set_rng_state
from worldsmith.checkpoint.sources.warm_start import load_weights
from worldsmith.config.errors import UserError
from worldsmith.files import atomic
from worldsmith.files.checksum_manifest import find_damage
from worldsmith.training.optimizer import AdamW


def test_layout_pointer_and_round_trip(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    folder = one.save(20, {"model": weights(1), "trainer": {"iteration": torch.tensor(20)}}, dataloader={"position": 7})
    assert folder.name == "iter_000000020"
    assert sorted(p.name for p in folder.iterdir()) == ["dataloader", "manifest.json", "model", "trainer"]
    assert (tmp_path / POINTER).read_text() == "iter_000000020\n"
    assert one.latest() == folder
    read = {name: torch.zeros_like(tensor) for name, tensor in weights().items()}
    one.load_part(folder, "model", read)
    assert all(torch.equal(read[name], tensor) for name, tensor in weights(1).items())
    assert load_positions(folder) == [{"position": 7}]
    assert stored_shapes(folder / "model") == {"net.a": [4, 6], "net.b": [3]}


def test_torch_reads_our_checkpoint_without_us(tmp_path: Path) -> None:
    """The independent reader of PyTorch turns the model folder into a plain torch.save file."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = save(checkpointer(tmp_path), 5)
    dcp_to_torch_save(folder / "model", tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {name: tensor.shape for name, tensor in read.items()} == {n: t.shape for n, t in weights().items()}
    assert torch.equal(read["net.a"], weights(5)["net.a"])


def test_pointer_chooses_among_complete_checkpoints(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    previous, newest = save(one, 10), save(one, 20)
    assert one.latest() == newest
    (tmp_path / POINTER).write_text("iter_000000010\n")
    assert one.latest() == previous
    (tmp_path / POINTER).unlink()
    assert one.latest() == newest


def test_a_save_that_was_complete_and_had_no_name_yet_is_kept(tmp_path: Path) -> None:
    """Killed between the removal of an older folder of the same step and the rename: what was written is not lost."""
    folder = save(checkpointer(tmp_path), 7)
    os.replace(folder, tmp_path / f"{atomic.SAVING}{folder.name}")
    assert checkpointer(tmp_path).latest() == folder
    os.replace(folder, tmp_path / f"{atomic.SAVING}{folder.name}")
    (tmp_path / f"{atomic.SAVING}{folder.name}" / "model" / "__0_0.distcp").unlink()
    with pytest.raises(UserError, match="no checkpoint exists"):
        checkpointer(tmp_path).latest()


def test_saving_again_replaces(tmp_path: Path) -> None:
    one = checkpointer(tmp_path)
    save(one, 3)
    one.save(3, {"model": weights(99)})
    read = weights()
    one.load_part(one.latest(), "model", read)
    assert torch.equal(read["net.a"], weights(99)["net.a"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["iter_000000003", POINTER]


def kill_during_save(folder: Path, point: int, *, background: bool) -> bool:
    """Saves in a forked process that kills itself (SIGKILL) at the `point`-th file operation; True when killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Mortal().arm(point)
            one = checkpointer(folder, keep_latest_k=2)
            one.save(20, {"model": weights(20), "trainer": {"i": torch.tensor(20)}}, background=background)
            one.wait_for_background_save()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("background", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_kill_at_any_moment_of_a_save_leaves_a_complete_checkpoint(tmp_path: Path, background: bool) -> None:
    """Every file operation of a save is a kill point, from the first file to the removal of the oldest checkpoint."""
    outcomes: list[str] = []
    for point in range(1, 100):
        folder = tmp_path / str(point)
        one = checkpointer(folder)
        save(one, 5)
        save(one, 10)
        killed = kill_during_save(folder, point, background=background)
        latest = checkpointer(folder).latest()
        assert find_damage(latest) is None
        read = weights()
        one.load_part(latest, "model", read)
        assert torch.equal(read["net.a"], weights(int(latest.name[-2:]))["net.a"])
        assert not [p.name for p in folder.iterdir() if p.name.startswith(".")], "leftovers are removed at start"
        save(one, 20)
        assert one.latest().name == "iter_000000020"
        if not killed:
            break
        outcomes.append(latest.name)
    assert len(outcomes) > 20
    assert set(outcomes) == {"iter_000000010", "iter_000000020"}


def test_rng_state_continues_every_generator() -> None:
    def draw() -> list:
        return [random.random(), random.gauss(0, 1), np.random.randn(3).tolist(), torch.randn(3).tolist()]

    seed_everything(5)
    random.gauss(0, 1)
    np.random.randn()
    state = {name: tensor.clone() for name, tensor in rng_state().items()}
    expected = [draw(), draw()]
    seed_everything(6)
    set_rng_state(state)
    assert [draw(), draw()] == expected


def test_optimizer_state_by_name_continues_exactly() -> None:
    """AdamW with restored state takes the same next step; a frozen and an unused parameter are left alone."""

    def make() -> tuple[nn.Module, torch.optim.AdamW]:
        torch.manual_seed(0)
        network = nn.ModuleDict({"frozen": nn.Linear(3, 3), "used": nn.Linear(3, 2), "unused": nn.Linear(2, 2)})
        trained = [p for name, p in network.named_parameters() if not name.startswith("frozen")]
        return network, torch.optim.AdamW(trained, lr=0.1)

    def step(network: nn.Module, optimizer: torch.optim.AdamW, seed: int) -> None:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        network["used"](x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    network, optimizer = make()
    step(network, optimizer, 1)
    saved = {key: value.clone() for key, value in optimizer_state(network, optimizer).items()}
    assert sorted(saved) == sorted(
        f"state.used.{name}.{quantity}" for name in ("weight", "bias") for quantity in ("step", "exp_avg", "exp_avg_sq")
    )
    weights_then = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    step(network, optimizer, 2)

    again, resumed = make()
    again.load_state_dict(weights_then)
    template = empty_optimizer_state(again, resumed, saved)
    for key, value in saved.items():
        template[key].copy_(value)
    restore_optimizer_state(again, resumed, template)
    step(again, resumed, 2)
    assert all(
        torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values(), strict=True)
    )
    with pytest.raises(UserError, match=r"frozen\.weight"):
        empty_optimizer_state(again, resumed, ["state.frozen.weight.exp_avg"])


def test_optimizer_state_of_another_number_of_bits_is_refused() -> None:
    network = nn.Linear(64, 64)
    optimizers = {
        name: AdamW.Config(name=name, fused=False).build(network=network).optimizer for name in ("AdamW", "AdamW8bit")
    }
    network.weight.grad = torch.ones_like(network.weight)
    for optimizer in optimizers.values():
        optimizer.step()
    saved = {name: list(optimizer_state(network, optimizer)) for name, optimizer in optimizers.items()}
    for name, optimizer in optimizers.items():
        assert list(empty_optimizer_state(network, optimizer, saved[name])) == saved[name]
        (other,) = saved.keys() - {name}
        with pytest.raises(UserError, match=rf'state of {other}, but optimizer.name is {name}; .*name = "{other}"'):
            empty_optimizer_state(network, optimizer, saved[other])


class TestWarmStart:
    def source(self, folder: Path) -> Path:
        one = checkpointer(folder / "run" / "checkpoints")
        return one.save(7, {"model": {**weights(1), "net_ema.a": torch.full((4, 6), 5.0)}})

    @pytest.mark.parametrize("level", ["run", "iter", "model"])
    def test_run_iter_or_model_folder(self, tmp_path: Path, level: str) -> None:
        iteration = self.source(tmp_path)
        path = {"run": tmp_path / "run", "iter": iteration, "model": iteration / "model"}[level]
        target = weights(2)
        report = load_weights(str(path), target)
        assert torch.equal(target["net.a"], weights(1)["net.a"])
        assert (sorted(report.loaded), report.unexpected) == (["net.a", "net.b"], ["net_ema.a"])
        assert "net_ema.a" in "\n".join(report.lines())

    def test_skipped_average_starts_from_live_weights(self, tmp_path: Path) -> None:
        target = {**weights(2), "net_ema.a": torch.zeros(4, 6)}
        report = load_weights(str(self.source(tmp_path)), target, keys_to_skip=["net_ema."])
        assert torch.equal(target["net_ema.a"], weights(1)["net.a"])
        assert report.skipped == ["net_ema.a"]

    def test_missing_and_mismatched_are_errors_unless_skipped(self, tmp_path: Path) -> None:
        source = str(self.source(tmp_path))
        with pytest.raises(UserError, match=r"Not in the checkpoint: 1 \(net.new_head\)"):
            load_weights(source, {**weights(), "net.new_head": torch.zeros(2)})
        with pytest.raises(UserError, match=r"net.b \(here \[4\], stored \[3\]\)"):
            load_weights(source, {"net.b": torch.zeros(4)})
        target = {**weights(2), "net.new_head": torch.zeros(2)}
        assert load_weights(source, target, keys_to_skip=["new_head"]).skipped == ["net.new_head"]

    def test_wrong_paths_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no such folder"):
            load_weights(str(tmp_path / "nowhere"), weights())
        with pytest.raises(FileNotFoundError, match="no checkpoint in this folder"):
            load_weights(str(tmp_path), weights())
        (tmp_path / "model.pt").write_bytes(b"")
        with pytest.raises(UserError, match="is a file"):
            load_weights(str(tmp_path / "model.pt"), weights())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"load_training_state": True}, "load_training_state = true and load_path = null"),
        ({"load_ema_to_reg": True}, "load_ema_to_reg = true and load_path = null"),
        ({"keep_every": 5}, "keep_every = 5 and keep_latest_k = null: all checkpoints are kept"),
        ({"stop_file": "../STOP"}, "plain file name"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpointer.Config(init="scratch", **settings).check()


def test_manifest_lists_every_file(tmp_path: Path) -> None:
    folder = checkpointer(tmp_path).save(1, {"model": weights()}, texts={"config.yaml": "job: {}\n"})
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    present = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {"manifest.json"}
    assert set(listed) == present
    assert "config.yaml" in listed
