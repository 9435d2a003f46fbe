"""The config, the command and the program of docs/robot_actions.md work as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/robot_actions.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_page(tmp_path: Path) -> None:
    (config,), (command,), (program,) = blocks("yaml"), blocks("bash"), blocks("python")
    (tmp_path / "robot.yaml").write_text(config)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "DATASET_PATH": "clips", "OMP_NUM_THREADS": "1"}
    for words in (["bash", "-euo", "pipefail", "-c", command], [sys.executable, "-c", program]):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout in ("OK: robot.yaml\n", "torch.Size([8, 2]) torch.Size([3, 9, 64, 64])\n")
