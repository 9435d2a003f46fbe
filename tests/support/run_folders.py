"""Run folders as runs leave them, written by hand: what a page shows of them is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worldsmith.data.video_writer import write_video

CONFIG = """\
type: worldsmith.training.trainer.Trainer
job: {task: vfm, project: shapes, group: tests, name: NAME}
trainer: {max_iter: 40}
optimizer: {lr: 0.001}
checkpoint: {stop_file: STOP, init: scratch}
"""
EVIL = "</script><script>document.title = 'broken'</script><img src=http://example.invalid/x onerror=alert(1)>"


def write_run(root: Path, name: str = "first", *, steps: int = 40, status: Mapping[str, Any] | None = None) -> Path:
    """A run of which `steps` of 40 are done. Returns its folder."""
    folder = root / "shapes/tests" / name
    (folder / "checkpoints/iter_000000020").mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG.replace("NAME", name))
    (folder / "launch_info.yaml").write_text(f"cmd: worldsmith train x.toml\nworking_directory: {root}\n")
    lines = [{"step": step, "loss": 40 / step, "lr": 1e-3, "grad_norm": 0.5} for step in range(1, steps + 1)]
    lines.append({"step": steps // 2, "val/loss": 3.0, "val_ema/loss": 2.5, "val/samples": 4})
    lines.append({"step": steps, "val/loss": 1.5, "val_ema/loss": 1.25, "val/samples": 4})
    write_lines(folder / "metrics.jsonl", lines)
    if status is not None:
        (folder / "status.json").write_text(json.dumps({"step": steps, "max_iter": 40, **status}))
    return folder


def write_lines(path: Path, entries: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def add_samples(folder: Path, *, steps: tuple[int, ...] = (20, 40), prompt: str = "A red square.") -> list[Path]:
    """Videos of one prompt that were drawn after these steps."""
    files = [folder / f"EveryNDrawSample/step_{step:09d}/0 live #1.mp4" for step in steps]
    for file, step in zip(files, steps, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_video(file, np.full((4, 16, 16, 3), step, np.uint8), 4)
    about = {"weights": "live", "guidance": 3.0, "kind": "video", "prompt": prompt, "answer": None, "media": None}
    samples = [
        {"step": step, **about, "file": str(file.relative_to(folder)), "expected": None}
        for file, step in zip(files, steps, strict=True)
    ]
    write_lines(folder / "EveryNDrawSample/samples.jsonl", samples)
    return files
