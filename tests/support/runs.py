"""Starts runs in processes of their own and looks at what they leave; see fork_server.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import toy_runs

from worldsmith.files.checksum_manifest import find_damage

STEPS = 40
"""Length of a run that is not told another one."""


class Runs:
    """Starts runs in processes of their own, over one small data set."""

    def __init__(self, folder: Path, *, samples: int = 6, family: str = "toy", steps: int = STEPS) -> None:
        """`steps`: of a run that is not told how many it has. `family`: as fork_server.py knows it."""
        self.folder, self.steps = folder, steps
        if family == "toy":
            self.world = toy_runs.make_world(folder / "world", rows=samples)
        elif family == "reasoner":
            import reasoner_runs

            self.world = reasoner_runs.make_world(folder / "world", samples=samples)
        elif family != "tiny":
            import pipeline_runs

            self.world = pipeline_runs.make_world(family, folder / "world")
        else:
            import tiny_runs

            self.world = tiny_runs.make_world(folder / "world", clips=samples)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "fork_server.py"), family]
        self.errors = (folder / "stderr.txt").open("w+")
        self.server = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def start(
        self,
        name: str,
        *,
        workers: int = 0,
        kill: tuple[int, str] | None = None,
        job: dict[str, Any] | None = None,
        **checkpoint: int | bool | str,
    ) -> str:
        """Runs the run `name`, to its end or until it is killed; returns what it said on stderr.

        `job` are further entries for fork_server.py, `checkpoint` settings of that section.
        """
        whole = {"world": str(self.world), "run": str(self.folder / name), "steps": self.steps, "workers": workers}
        whole |= {"checkpoint": {"save_iter": self.steps // 2, **checkpoint}, "kill": kill, **(job or {})}
        before = self.errors.seek(0, os.SEEK_END)
        self.server.stdin.write(json.dumps(whole) + "\n")
        self.server.stdin.flush()
        code = int(self.server.stdout.readline())
        self.errors.seek(before)
        said = self.errors.read()
        assert code == (0 if kill is None else -signal.SIGKILL), f"exit code {code}: {said}"
        return said

    def done(self, name: str) -> int:
        """How many steps the checkpoint holds that the pointer names."""
        pointer = self.folder / name / "checkpoints" / "latest_checkpoint.txt"
        return int(pointer.read_text().strip().removeprefix("iter_")) if pointer.exists() else 0

    def usable(self, name: str, *, below: int | None = None) -> int:
        """How many steps the checkpoint holds that a resume takes (of those under `below` steps); 0 without any."""
        found = {int(path.name[5:]): path for path in (self.folder / name / "checkpoints").glob("iter_*")}
        most = self.steps + 1 if below is None else below
        steps = [step for step in sorted(found, reverse=True) if step < most and find_damage(found[step]) is None]
        return self.done(name) if self.done(name) in steps else next(iter(steps), 0)

    def checkpoint(self, name: str, step: int) -> Path:
        return self.folder / name / "checkpoints" / f"iter_{step:09d}"

    def close(self) -> None:
        self.server.terminate()  # processes that were forked meanwhile hold its input open
        self.server.wait()
        self.server.stdin.close()
        self.errors.close()
