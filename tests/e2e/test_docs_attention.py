"""The files and commands of docs/attention.md work as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/attention.md").read_text(encoding="utf-8")


def test_the_files_and_commands_of_the_page_work(tmp_path: Path) -> None:
    """Every block with a file name is written, then every command runs and finds no mistake."""
    files = re.findall(r"^```(?:yaml|toml)\n(# file: (\S+)\n.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    for text, name in files:
        (tmp_path / name).write_text(text)
    commands = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert (len(files), len(commands)) == (2, 2)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DATASET_PATH": "clips",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "".join(commands)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK") == 3
