"""What the callbacks that only watch write into their folders, and that they change nothing."""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import toy_runs

from worldsmith.config.errors import ConfigError
from worldsmith.config.load import load
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.callbacks.failures import BadBatches, FirstStepWatchdog
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.metrics import DeviceMonitor, NormMonitor, ParamCount, module_path
from worldsmith.training.callbacks.step_speed import ManualGC, Profiler
from worldsmith.training.run_config import default_callbacks
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


def short(world: Path, steps: int) -> Trainer.Config:
    """The first steps of a run of eight."""
    config = toy_runs.toy_config(world)
    config.trainer.max_iter = steps
    return config


def trainer(world: Path, run: Path, steps: int = 4, **callbacks: Callback.Config) -> Trainer:
    config = short(world, steps)
    config.trainer.callbacks |= callbacks
    return Trainer(config, run_folder=run)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_what_watches_changes_no_bit(world: Path, tmp_path: Path) -> None:
    trainer(world, tmp_path / "plain", steps=8).train()
    watched: dict[str, Callback.Config] = {
        **{name: config for name, config in default_callbacks().items() if name not in ("grad_clip", "metrics")},
        "norm_monitor": NormMonitor.Config(every=2, updates=True),
        "profiler": Profiler.Config(first_step=3, steps=1),
        "manual_gc": ManualGC.Config(every=2),
    }
    trainer(world, tmp_path / "watched", steps=8, **watched).train()
    toy_runs.require_same_end(tmp_path / "watched", tmp_path / "plain")
    assert gc.isenabled()


def test_a_driver_that_refuses_to_answer_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """pynvml.NVMLError, such as on a MIG device, is no RuntimeError."""

    class NVMLError(Exception):
        pass

    def refuse(device: str) -> int:
        raise NVMLError("not supported")

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    for name in ("memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 7)
    monitor = DeviceMonitor(DeviceMonitor.Config(), folder=None)
    monitor.process, monitor.reported = psutil.Process(), False
    readings = [monitor.read("cuda:0") for _ in range(2)]
    assert all(reading["gpu_bytes"] == 7 and "gpu_percent" not in reading for reading in readings)
    assert [record.getMessage() for record in caplog.records] == [
        "GPU utilization is not recorded: NVMLError: not supported"
    ]


def test_devices_are_read_every_so_many_steps_and_once_after_a_resume(world: Path, tmp_path: Path) -> None:
    config = toy_runs.toy_config(world, steps=6, save_iter=3)
    config.trainer.callbacks["DeviceMonitor"] = DeviceMonitor.Config(every=2)
    first = Trainer(config, run_folder=tmp_path)
    first.callbacks["stop"] = Fail(Fail.Config(), folder=tmp_path)
    with pytest.raises(RuntimeError):
        first.train()
    Trainer(config, run_folder=tmp_path).train()
    read = lines(tmp_path / "DeviceMonitor/devices.jsonl")
    assert [line["step"] for line in read] == [2, 4, 6]
    (process,) = read[-1]["processes"]
    assert process["ram_bytes"] > 2**20
    assert process["cpu_percent"] >= 0
    logged = {line["step"]: line.get("devices") for line in lines(tmp_path / "metrics.jsonl")}
    assert logged[6] == {name: process[name] for name in ("cpu_percent", "ram_bytes")}
    assert logged[5] is None


class Fail(Callback):
    def on_training_step_end(self, trainer: Trainer, step: Any) -> None:
        if trainer.iteration == 5:
            raise RuntimeError("the test fails")


def test_norms_are_those_of_torch_by_part_before_clipping(world: Path, tmp_path: Path) -> None:
    """The gradients by hand from a copy of the run whose gradients are not clipped; the updates from its weights."""
    clip, seen = GradClip.Config(clip_norm=0.01), {}

    class Look(Callback):
        def on_before_optimizer_step(self, trainer: Trainer, step: Any) -> None:
            named = dict(trainer.model.network.named_parameters())
            seen["before"] = {name: p.detach().clone() for name, p in named.items()}
            seen["gradient"] = {name: p.grad.clone() for name, p in named.items()}

        def on_training_step_end(self, trainer: Trainer, step: Any) -> None:
            seen["after"] = {name: p.detach().clone() for name, p in trainer.model.network.named_parameters()}

    plain = trainer(world, tmp_path / "plain", steps=1)
    plain.callbacks = {"look": Look(Look.Config(), folder=tmp_path)}
    plain.train()
    gradients = seen["gradient"]
    run = trainer(world, tmp_path / "run", 1, grad_clip=clip, norm_monitor=NormMonitor.Config(every=1, updates=True))
    run.callbacks["look"] = Look(Look.Config(), folder=tmp_path)
    run.train()
    (line,) = lines(tmp_path / "run/norm_monitor/norms.jsonl")
    expected = {"weight": seen["before"], "gradient": gradients}
    expected["update"] = {name: after - seen["before"][name] for name, after in seen["after"].items()}
    for part in ("layers.0", "layers.1"):
        for kind, tensors in expected.items():
            own = torch.cat([tensor.flatten() for name, tensor in tensors.items() if name.startswith(part)])
            assert line["parts"][part][kind] == pytest.approx(float(own.norm()), rel=1e-5)
    assert set(line["parts"]) == {"layers.0", "layers.1"}
    (logged,) = lines(tmp_path / "run/metrics.jsonl")
    assert logged["norms"]["gradient"] == pytest.approx(logged["grad_norm"], rel=1e-5)
    assert logged["grad_norm"] > 0.1


def test_a_part_is_a_path_up_to_its_first_number() -> None:
    assert module_path("model.layers.3.mlp.0.weight") == "model.layers.3"
    assert module_path("vae2llm.bias") == "vae2llm"
    assert module_path("scale") == ""


def test_parameters_are_counted_by_part(world: Path, tmp_path: Path) -> None:
    config = short(world, 1)
    config.optimizer.keys_to_select = ["layers.1"]
    config.trainer.callbacks["param_count"] = ParamCount.Config()
    Trainer(config, run_folder=tmp_path).train()
    assert json.loads((tmp_path / "param_count/parameters.json").read_text()) == {
        "parameters": 40,
        "trained": 20,
        "parts": {"layers.0": {"parameters": 20, "trained": 0}, "layers.1": {"parameters": 20, "trained": 20}},
    }


def test_samples_of_skipped_steps_are_named_up_to_a_limit(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainer(world, tmp_path, steps=6, bad_batches=BadBatches.Config(most=2))
    losses, keys = run.task.objective.losses, []

    def poisoned(answers: torch.Tensor, rows: Any, *, seed: int) -> torch.Tensor:
        keys.append([[row.key, row.position] for row in rows])
        return losses(answers, rows, seed=seed) * (float("nan") if run.iteration in (1, 3, 4) else 1.0)

    run.task.objective.losses = poisoned
    assert run.train() is Outcome.FINISHED
    files = sorted((tmp_path / "bad_batches").iterdir())
    assert [file.name for file in files] == ["step_000000002_rank_0.json", "step_000000004_rank_0.json"]
    found = json.loads(files[0].read_text())
    assert (found["step"], found["loss"]) == (2, None)
    assert found["batches"] == keys[2:4]
    assert caplog.text.count("later ones are not written") == 1


def test_a_profile_is_a_chrome_trace_of_the_steps_that_were_asked_for(world: Path, tmp_path: Path) -> None:
    trainer(world, tmp_path, steps=7, profiler=Profiler.Config(first_step=2, steps=2, every=4)).train()
    files = sorted((tmp_path / "profiler").iterdir())
    assert [file.name for file in files] == ["step_000000002_rank_0.json", "step_000000006_rank_0.json"]
    for file in files:
        events = json.loads(file.read_text())["traceEvents"]
        spans = [event["name"] for event in events if event.get("ph") == "X"]
        assert sum(name.startswith("Optimizer.step") for name in spans) == 2
        assert any("addmm" in name for name in spans)
        assert all({"ts", "dur", "pid", "tid"} <= event.keys() for event in events if event.get("ph") == "X")


@pytest.mark.parametrize("abort", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_first_step_that_hangs_is_shown(world: Path, tmp_path: Path, abort: bool) -> None:
    """In a process of its own, whose first step sleeps in a function of this name."""
    script = f"""
import logging, sys, time
import toy_runs
from pathlib import Path
from worldsmith.training.callbacks.failures import FirstStepWatchdog
from worldsmith.training.trainer import Trainer

logging.basicConfig(level=logging.INFO, format="%(message)s")
config = toy_runs.toy_config(Path({str(world)!r}), steps=4)
config.trainer.callbacks["first_step_watchdog"] = FirstStepWatchdog.Config(after_seconds=0.3, abort={abort})
run = Trainer(config, run_folder=Path({str(tmp_path / "run")!r}))
losses = run.task.objective.losses

def stuck_here(*arguments, **more):
    if run.iteration == 0:
        time.sleep(30 if {abort} else 1)
    return losses(*arguments, **more)

run.task.objective.losses = stuck_here
run.train()
print("trained")
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    path = ":".join([str(Path(toy_runs.__file__).parent), *sys.path])
    done = subprocess.run(command, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert (done.returncode, "trained" in done.stdout) == ((1, False) if abort else (0, True)), done.stderr
    assert "in stuck_here" in (tmp_path / "run/first_step_watchdog/rank_0.txt").read_text()
    assert done.stderr.count("the first step has not ended after 0.3 s;") == 1


def test_a_watchdog_that_saw_nothing_leaves_nothing(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="worldsmith"):
        trainer(world, tmp_path, first_step_watchdog=FirstStepWatchdog.Config(after_seconds=60)).train()
    assert not list((tmp_path / "first_step_watchdog").iterdir())
    assert "first step" not in caplog.text


def test_rates_of_groups_and_shares_are_figures(world: Path, tmp_path: Path) -> None:
    config = short(world, 2)
    config.optimizer.lr_multipliers = {"layers.1": 0.5}
    Trainer(config, run_folder=tmp_path).train()
    last = lines(tmp_path / "metrics.jsonl")[-1]
    assert last["lr_groups"] == {"x1": last["lr"], "x0.5": pytest.approx(last["lr"] / 2)}
    assert last["padding_share"] == 0
    assert last["data_wait_share"] == pytest.approx(last["data_seconds"] / last["step_seconds"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+trainer.callbacks.norm_monitor=NormMonitr"], "did you mean 'NormMonitor'"),
        (["+trainer.callbacks.norm_monitor=NormMonitor", "trainer.callbacks.norm_monitor.evry=3"], "has no .*evry"),
        (["+trainer.callbacks.profiler=Profiler", "trainer.callbacks.profiler.steps=0"], "at least 1"),
        (["+trainer.callbacks.manual_gc=ManualGC", "trainer.callbacks.manual_gc.generation=3"], "at most 2"),
    ],
)
def test_a_callback_or_field_that_does_not_exist_is_an_error(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("toy", words)
