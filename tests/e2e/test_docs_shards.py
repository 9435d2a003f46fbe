"""Shards as docs/data.md names them: the check of its command, and a run that trains on them and goes on."""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from pathlib import Path

import pytest

from worldsmith.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")


def test_shards_are_checked_and_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["dataset", "moving-shapes", "shapes", "--clips", "8", "--val-clips", "2"]) == 0
    videos = sorted(Path("shapes/train").rglob("*.mp4"))
    Path("clips").mkdir()
    for shard in range(4):
        with tarfile.open(f"clips/clips-{shard:03d}.tar", "w") as tar:
            for video in videos[2 * shard : 2 * shard + 2]:
                tar.add(video, video.name)
                caption = tarfile.TarInfo(f"{video.stem}.txt")
                caption.size = 7
                tar.addfile(caption, io.BytesIO(b"a shape"))
    (line,) = re.findall(r"^worldsmith (check .*\.tar.*)$", PAGE, flags=re.MULTILINE)
    capfd.readouterr()
    assert main(shlex.split(line)) == 0
    assert "kept         8" in capfd.readouterr().out

    (pattern,) = re.findall(r"^export DATASET_PATH='(clips/.*)'$", PAGE, flags=re.MULTILINE)
    monkeypatch.setenv("DATASET_PATH", pattern)
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    few = ["trainer.run_validation=false", "checkpoint.save_iter=1", "scheduler.warm_up_steps=[0]"]
    for steps in (1, 2):
        assert (
            main(["train", "moving_shapes", "--", f"trainer.max_iter={steps}", "scheduler.cycle_lengths=[9]", *few])
            == 0
        )
    (metrics,) = Path("runs").rglob("metrics.jsonl")
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines() if '"loss"' in line] == [1, 2]
