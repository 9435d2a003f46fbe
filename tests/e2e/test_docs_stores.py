"""The commands on object stores in docs/data.md and docs/checkpoints.md run as they stand, on a real S3 server.

The server is found by the variables of the page; a run stops after a step because its folder contains the stop file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import CREDENTIALS, ObjectStore, serving

from worldsmith.cli.main import main

pytest.importorskip("s3fs")
pytest.importorskip("moto")

DOCS = Path(__file__).parents[2] / "docs"
RUNS = Path("outputs/train/worldsmith")
STOPPED = 75

pytestmark = pytest.mark.timeout(600)


def blocks(page: str, section: str) -> list[str]:
    """The executed blocks of a section, up to the next heading."""
    (text,) = re.findall(
        rf"^## {section}\n(.*?)(?=^## |\Z)", (DOCS / page).read_text(encoding="utf-8"), flags=re.M | re.S
    )
    return re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S)


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with serving() as server:
        yield server


@pytest.fixture
def environment(store: ObjectStore, programs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with the profile `training` and with clips in the bucket; the current folder is empty."""
    (tmp_path / "home/.aws").mkdir(parents=True)
    (tmp_path / "home/.aws/credentials").write_text(
        f"[training]\naws_access_key_id = {CREDENTIALS['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {CREDENTIALS['AWS_SECRET_ACCESS_KEY']}\n"
    )
    assert main(["dataset", "moving-shapes", f"{tmp_path}/data", "--clips", "4", "--val-clips", "0"]) == 0
    store.put_folder(tmp_path / "data", "clips")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    removed = ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE", "XDG_CACHE_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in (*removed, *store.environment)}
    return {
        **kept,
        "HOME": str(tmp_path / "home"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",  # everything is installed
        "AWS_ENDPOINT_URL": store.url,
    }


def run(script: str, environment: dict[str, str], *, code: int = 0) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def stop_after_one_step(run_folder: Path) -> None:
    run_folder.mkdir(parents=True)
    (run_folder / "STOP").touch()


def test_the_commands_that_train_from_a_store(store: ObjectStore, environment: dict[str, str]) -> None:
    (script,) = blocks("data.md", "Train from an object store")
    folder = RUNS / "sft/vision_sft_tiny"
    stop_after_one_step(folder)
    printed = run(script, environment, code=STOPPED)
    assert "does not provide the extra" not in printed
    assert "kept         4" in printed
    assert "stopped and saved after step 1" in printed
    assert not (folder / "quarantine.jsonl").exists()
    cached = Path(environment["HOME"], ".cache/worldsmith/remote").glob("*/*")
    assert sum(path.is_file() for path in cached) >= 4


@pytest.mark.slow
def test_the_commands_with_checkpoints_in_a_store(store: ObjectStore, environment: dict[str, str]) -> None:
    """The run continues on a machine without its folder; what was uploaded is exported, and the export generates."""
    train, use = blocks("checkpoints.md", "Checkpoints in an object store")
    environment = {**environment, "AWS_PROFILE": "training", "DATASET_PATH": "s3://bucket/clips"}
    folder = RUNS / "demo/moving_shapes"
    for step in (1, 2):
        stop_after_one_step(folder)
        printed = run(train, environment, code=STOPPED)
        assert f"stopped and saved after step {step}" in printed
        assert ("iter_000000001 was downloaded" in printed) is (step == 2)
        shutil.rmtree(folder)
    printed = run(use, environment)
    assert "s3://bucket/exports/shapes" in printed
    assert len(list(Path("videos").glob("*/vision.mp4"))) == 1
    cached = {path.parent.name for path in Path(environment["HOME"], ".cache/worldsmith/models").glob("*/*")}
    assert len(cached) == 2, "the run and the export"
