"""`worldsmith launch --nnodes MIN:MAX`: a run that loses a machine, and gets another one, has the same losses."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import toy_runs
from logged_command import call

from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml
from worldsmith.training.trainer import Trainer

PACKS = 6
"""Per step: two for each of three machines."""
LIMITS = "last_call_timeout=5,keep_alive_interval=2,keep_alive_max_attempt=5"
"""A lost machine is noticed after ten seconds; the others then wait five more for another one."""


def elastic_config(folder: Path) -> Trainer.Config:
    config = toy_runs.toy_config(toy_runs.make_world(folder / "world"), steps=100_000, save_iter=2)
    config.trainer.grad_accum_iter, config.trainer.logging_iter = PACKS // 3, 1
    return config


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.timeout(600)
def test_a_run_continues_without_a_machine_and_with_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = elastic_config(tmp_path)
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    folder, log, port = tmp_path / "runs/tests/tiny/run", tmp_path / "log", free_port()
    elastic = ["--nnodes", "2:3", "--max-restarts", "3", "--local-addr", "127.0.0.1"]
    words = ["--rdzv-endpoint", f"127.0.0.1:{port}", "train", "--base", str(tmp_path / "run.yaml")]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.run"])
    launchers: list[BaseProcess] = []

    def start() -> None:
        """The first one hosts the store and survives."""
        limits = f"{LIMITS},is_host={int(not launchers)}"
        given = ["--import", "slow_steps", "launch", *elastic, "--rdzv-conf", limits, *words]
        launchers.append(context.Process(target=call, args=(given, log, dict(os.environ), False)))
        launchers[-1].start()

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 200
        while not condition():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    def saved(after: int = 0) -> dict[int, int]:
        """Step of the newest checkpoint -> number of processes that wrote it, for steps after `after`."""
        steps = (int(path.name.removeprefix("iter_")) for path in (folder / "checkpoints").glob("iter_*"))
        files = ((step, list((folder / f"checkpoints/iter_{step:09d}/dataloader").glob("rank_*"))) for step in steps)
        return {step: len(found) for step, found in files if step > after}

    try:
        for _ in range(3):
            start()
        wait_for(lambda: 3 in saved().values())
        launchers[2].kill()
        wait_for(lambda: 2 in saved().values())
        start()
        shrunk = max(step for step, count in saved().items() if count == 2)
        wait_for(lambda: 3 in saved(shrunk).values())
        os.kill(launchers[0].pid or 0, signal.SIGTERM)
        for launcher in launchers:
            launcher.join(100)
        assert [launcher.exitcode for launcher in launchers] == [75, 75, -signal.SIGKILL, 75], log.read_text()
    finally:
        for launcher in launchers:
            launcher.kill()

    messages = [json.loads(line)["text"] for line in (folder / "messages.jsonl").read_text().splitlines()]
    for now, before in ((2, 3), (3, 2)):
        line = f"packs per step: {now} × {PACKS // now} = {PACKS}, before {before} × {PACKS // before} = {PACKS} "
        assert any(line in message for message in messages), messages
    found = toy_runs.read_losses(folder)
    assert [step for step, *_ in found] == list(range(1, max(saved()) + 1))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config.job.name, config.trainer.grad_accum_iter, config.trainer.max_iter = "whole", PACKS, len(found)
    config.build().train()
    torch.set_num_threads(threads)
    expected = toy_runs.read_losses(folder.with_name("whole"))
    assert [(step, samples) for step, _, _, samples in found] == [(step, samples) for step, _, _, samples in expected]
    assert [loss for _, loss, *_ in found] == pytest.approx([loss for _, loss, *_ in expected], rel=1e-5)


def test_all_mistakes_are_in_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    config = elastic_config(tmp_path)
    config.job.name, config.trainer.grad_accum_iter = "", 1
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    train = ["train", "--base", str(tmp_path / "run.yaml")]
    assert main(["--import", "toy_family", "launch", "--nnodes", "2:4", "--node-rank", "1", *train]) == 2
    said = capfd.readouterr().err
    for mistake in (
        "--max-restarts is 0",
        "--rdzv-endpoint HOST:PORT is missing",
        "--node-rank has no effect",
        "job.name is empty",
        "the 4 packs of a step with 4 machines (1 for each of 4 data-parallel processes) cannot be divided evenly "
        "among 3 (3 machines); set a multiple of 3,",
    ):
        assert mistake in said
    words = ["--nnodes", "2:3", "--max-restarts", "1", "--rdzv-endpoint", "a:1", *train, "--", "job.name=x"]
    shards = "model.config.parallelism.data_parallel_shard_degree=2"
    assert main(["--import", "toy_family", "launch", *words, "trainer.grad_accum_iter=2", shards]) == 2
    assert "3 machines: model.config.parallelism" in capfd.readouterr().err
    assert main(["--import", "toy_family", "launch", "--nnodes", "1:2", "generate", "x"]) == 2
    assert "--nnodes MIN:MAX is for train; generate needs one number" in capfd.readouterr().err
