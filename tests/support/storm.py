"""A storm of random attacks on runs of the toy family, in an order that a seed gives.

    python tests/support/storm.py FOLDER [SEED [ATTACKS]]

A run is stopped, killed, moved, robbed of its lock, damaged, planned and exported while it trains, on one process or
two, and always started again. After each attack: the exit code is one that the documents promise, no process is left,
no traceback was printed, no complete checkpoint is lost. At the end the run equals one that nobody disturbed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import toy_runs
from logged_command import call

from worldsmith.checkpoint.run.find_checkpoint import checkpoint_folders, folder_iteration
from worldsmith.config.tree.plain import to_yaml
from worldsmith.distributed.stop_signals import PREEMPTED
from worldsmith.files.checksum_manifest import find_damage
from worldsmith.training.trainer import Trainer

STEPS, SAVE_ITER, KEPT = 600, 10, 3
PATIENCE = 120.0
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
DONE_OR_STOPPED = {0, PREEMPTED}


class Storm:
    """Attacks one run, which one process trains, and another, which two do."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.world = toy_runs.make_world(folder / "world")
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(
            ["worldsmith.training.trainer", "worldsmith.training.start_run", "toy_runs"]
        )
        self.number = 0
        self.told: list[str] = []
        os.environ["WORLDSMITH_OUTPUT_ROOT"] = str(folder / "runs")
        os.environ["OMP_NUM_THREADS"] = "1"
        for name in ("one", "two"):
            (folder / f"{name}.yaml").write_text(to_yaml(self.config(name)))

    def config(self, name: str) -> Trainer.Config:
        config = toy_runs.toy_config(self.world, steps=STEPS, save_iter=SAVE_ITER, workers=1)
        config.job.name, config.checkpoint.keep_latest_k = name, KEPT
        return config

    def run_folder(self, name: str) -> Path:
        return self.folder / "runs/tests/tiny" / name

    # Commands

    def start(self, *words: str) -> BaseProcess:
        """`worldsmith` with these words, in a process group of its own."""
        self.number += 1
        self.log = self.folder / f"log_{self.number}"
        process = self.context.Process(
            target=call_apart, args=(["--import", "toy_family", *words], self.log, dict(os.environ))
        )
        process.start()
        while process.is_alive() and not self.log.exists():
            time.sleep(0.01)
        return process

    def train(self, name: str) -> BaseProcess:
        launch = ["launch", "--nproc-per-node", "2"] if name == "two" else []
        return self.start(*launch, "train", "--base", str(self.folder / f"{name}.yaml"))

    def end(self, process: BaseProcess, codes: set[int]) -> int:
        """Its exit code, which is one of `codes`."""
        process.join(PATIENCE)
        said = self.log_of(process)
        assert process.exitcode in codes, f"{process.exitcode} is none of {codes}\n{said}"
        assert "Traceback" not in said, said
        deadline = time.monotonic() + PATIENCE
        while left := [p.pid for p in psutil.process_iter() if group_of(p.pid) == process.pid]:
            assert time.monotonic() < deadline, f"{left} outlive {process.pid}\n{said}"
            time.sleep(0.05)
        return process.exitcode

    def log_of(self, process: BaseProcess) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for_steps(self, name: str, process: BaseProcess) -> None:
        """Until the run has done a few steps more, or has ended."""
        goal = self.steps(name) + self.random.randint(1, 40)
        deadline = time.monotonic() + PATIENCE
        while process.is_alive() and self.steps(name) < goal:
            assert time.monotonic() < deadline, self.log_of(process)
            time.sleep(0.01)

    def steps(self, name: str) -> int:
        path = self.run_folder(name) / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        return json.loads(lines[-2])["step"] if len(lines) > 1 else 0

    def whole(self, name: str) -> list[int]:
        """The steps of the complete checkpoints."""
        folders = checkpoint_folders(self.run_folder(name) / "checkpoints")
        return [folder_iteration(folder) for folder in folders if find_damage(folder) is None]

    # Attacks: each starts a run and returns when nothing of it is left

    def stop(self, name: str) -> None:
        process = self.train(name)
        if self.random.random() < 0.5:
            self.wait_for_steps(name, process)
        else:
            time.sleep(self.random.uniform(0, 3))
        signal_to(process, self.random.choice(STOPS))
        self.end(process, DONE_OR_STOPPED)

    def kill(self, name: str) -> None:
        process = self.train(name)
        self.wait_for_steps(name, process)
        signal_to(process, signal.SIGKILL)
        self.end(process, {0, -signal.SIGKILL})

    def kill_a_child(self, name: str) -> None:
        """A worker or the writing process is replaced; a rank is not."""
        process = self.train(name)
        self.wait_for_steps(name, process)
        children = psutil.Process(process.pid).children(recursive=True) if process.is_alive() else []
        for child in self.random.sample(children, min(1, len(children))):
            child.kill()
        self.wait_for_steps(name, process)
        signal_to(process, signal.SIGTERM)
        self.end(process, {*DONE_OR_STOPPED, *([1] if name == "two" else [])})

    def move_the_run_folder(self, name: str) -> None:
        process = self.train(name)
        self.wait_for_steps(name, process)
        folder, away = self.run_folder(name), self.folder / "away"
        folder.rename(away)
        self.end(process, {0, 1})
        assert not folder.exists(), f"{list(folder.rglob('*'))} after it was moved"
        away.rename(folder)

    def take_the_lock_away(self, name: str) -> None:
        process = self.train(name)
        self.wait_for_steps(name, process)
        (self.run_folder(name) / ".lock").unlink()
        self.end(process, {0, 1})

    def start_twice(self, name: str) -> None:
        process = self.train(name)
        self.wait_for_steps(name, process)
        log = self.log
        if process.is_alive():
            self.end(self.train("one"), {0, 2} if name == "one" else DONE_OR_STOPPED)
        self.log = log
        signal_to(process, signal.SIGTERM)
        self.end(process, DONE_OR_STOPPED)

    def plan_beside(self, name: str) -> None:
        self.beside(name, "train", "--base", str(self.folder / f"{name}.yaml"), "--dryrun")

    def export_beside(self, name: str) -> None:
        if self.whole(name):
            out = str(self.folder / f"export_{self.number}")
            self.beside(name, "export", str(self.run_folder(name)), "--format", "native", "-o", out)

    def beside(self, name: str, *words: str) -> None:
        """A command that looks at a run which saves and retires checkpoints meanwhile."""
        process = self.train(name)
        self.wait_for_steps(name, process)
        log = self.log
        self.end(self.start(*words), {0})
        self.log = log
        signal_to(process, signal.SIGTERM)
        self.end(process, DONE_OR_STOPPED)

    def damage(self, name: str) -> None:
        """A byte of the newest checkpoint flips; the one before it is taken."""
        folders = checkpoint_folders(self.run_folder(name) / "checkpoints")
        if len(self.whole(name)) > 1 and not self.finished(name):
            file = self.random.choice(sorted(path for path in folders[0].rglob("*.distcp") if path.stat().st_size))
            data = bytearray(file.read_bytes())
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            file.write_bytes(data)
        self.stop(name)

    def finished(self, name: str) -> bool:
        return self.whole(name)[:1] == [STEPS]

    def attack(self) -> None:
        """One attack, and what must hold after it."""
        name = "two" if self.random.random() < 0.15 else "one"
        attacks: list[Callable[[str], None]] = [
            *(self.stop, self.kill, self.kill_a_child, self.move_the_run_folder, self.take_the_lock_away),
            *(self.start_twice, self.plan_beside, self.export_beside, self.damage),
        ]
        attack = self.random.choice(attacks)
        before = [] if self.finished(name) else self.whole(name)
        self.told.append(f"{attack.__name__} {name}, {before[:1]} before")
        try:
            if self.finished("one"):
                self.finish()
            if self.finished("two"):
                shutil.rmtree(self.run_folder("two"))
            attack(name)
            after = self.whole(name)
            lost = before[1:2] if attack == self.damage else before[:1]
            assert not lost or max(after) >= lost[0], f"{before} before, {after} after"
        except AssertionError as error:
            raise AssertionError(f"{'; '.join(self.told)}:\n{error}") from None

    def finish(self) -> None:
        """Brings the run of one process to its end, which is that of an undisturbed one, and removes it."""
        while not self.finished("one"):
            self.end(self.train("one"), {0})
        calm = self.folder / "calm"
        if not calm.exists():
            Trainer(self.config("calm"), run_folder=calm).train()
        toy_runs.require_same_end(self.run_folder("one"), calm, STEPS)
        shutil.rmtree(self.run_folder("one"))


def call_apart(words: list[str], log: Path, environment: dict[str, str]) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # the interpreter's own start is nobody's fault
    call(words, log, environment, nohup=False)


def signal_to(process: BaseProcess, number: int) -> None:
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, number)


def group_of(pid: int) -> int:
    """The session of a process: that of its command. 0 when it has gone."""
    try:
        return os.getsid(pid) if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else 0
    except (ProcessLookupError, psutil.NoSuchProcess):
        return 0


def main(folder: str, seed: str = "0", attacks: str = "200") -> None:
    storm = Storm(Path(folder), int(seed))
    for number in range(int(attacks)):
        storm.attack()
        print(f"{number + 1:4d} {storm.told[-1]}", flush=True)
    storm.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
