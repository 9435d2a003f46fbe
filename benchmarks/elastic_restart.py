"""How long does an elastic run do no steps when it loses a process, or a machine?

`worldsmith launch --nnodes 2:3` trains the demo with three launchers on this machine, one process each, default waits
and a save every 5 steps. First one process is killed: all processes end, and start again with the same launchers. Then
one launcher is killed with its process: the others notice, wait for another machine, and start again with two. The time
runs from the signal to the end of the first step after it.

    python benchmarks/elastic_restart.py [--quick]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from demo_run import demo_config

from worldsmith.config.tree.plain import to_yaml
from worldsmith.training.callbacks.metrics import Metrics

PAUSE = 2.0
"""Seconds without a step, at least, when processes start again."""
LIMIT = 600.0
"""Max seconds to wait for a step."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short waits for machines: checks the program only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = demo_config(folder / "data", clips=6, layers=1)
        config.job.name = "elastic"
        config.dataloader_train.max_samples_per_batch = 1
        config.trainer.max_iter, config.trainer.grad_accum_iter = 1_000_000, 2
        config.trainer.callbacks = {"metrics": Metrics.Config()}
        config.checkpoint.save_iter = 5
        (folder / "run.yaml").write_text(to_yaml(config))
        launchers: list[subprocess.Popen[bytes]] = []
        try:
            port, began = free_port(), time.monotonic()
            for number in range(3):
                launchers.append(launch(folder, port, is_host=not number, quick=arguments.quick))
            steps = Steps(folder / "runs/benchmarks/demo/elastic/metrics.jsonl")
            print(f"start: {steps.wait() - began:.0f} s to the first step", flush=True)
            for victim in ("process", "launcher"):
                for _ in range(10):
                    steps.wait()
                killed = time.monotonic()
                if victim == "process":
                    processes_of(launchers[1])[-1].kill()
                else:
                    kill_family(launchers[2])
                print(f"a {victim} is killed: {steps.wait(pause=PAUSE) - killed:.0f} s to the next step", flush=True)
        finally:
            for launcher in launchers:
                kill_family(launcher)
    print(f"load of the machine {os.getloadavg()[0]:.1f}")
    return 0


class Steps:
    """The steps of a run, as its file of metrics grows; all its processes restart within one file."""

    def __init__(self, file: Path) -> None:
        self.file, self.size, self.time = file, 0, time.monotonic()

    def wait(self, pause: float = 0.0) -> float:
        """Waits for a step that follows a pause of at least these seconds; returns its time (of `time.monotonic`)."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            size, now = self.file.stat().st_size if self.file.exists() else 0, time.monotonic()
            if size != self.size:
                since, self.size, self.time = now - self.time, size, now
                if since >= pause:
                    return now
            time.sleep(0.02)
        raise TimeoutError(f"no step in {LIMIT:.0f} s")


def launch(folder: Path, port: int, *, is_host: bool, quick: bool) -> subprocess.Popen[bytes]:
    limits = f"is_host={int(is_host)}"
    if quick:
        limits += ",last_call_timeout=5,keep_alive_interval=2,keep_alive_max_attempt=5"
    words = ["launch", "--nnodes", "2:3", "--max-restarts", "9", "--local-addr", "127.0.0.1", "--rdzv-conf", limits]
    words += ["--rdzv-endpoint", f"127.0.0.1:{port}", "train", str(folder / "run.yaml")]
    environment = {**os.environ, "WORLDSMITH_OUTPUT_ROOT": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "worldsmith", *words], stdout=log, stderr=log, env=environment)


def processes_of(launcher: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(launcher.pid).children(recursive=True)


def kill_family(launcher: subprocess.Popen[bytes]) -> None:
    if launcher.poll() is None:
        for process in processes_of(launcher):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    launcher.kill()
    launcher.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
