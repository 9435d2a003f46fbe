"""The examples for Kubernetes and SkyPilot: each machine gets a command that `worldsmith launch` takes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from worldsmith.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def words_of(command: list[str], folder: Path, **variables: str) -> list[str]:
    """What the machine with these variables calls `worldsmith` with."""
    recorder = folder / "worldsmith"
    recorder.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    recorder.chmod(0o755)
    environment = {**os.environ, **variables, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.check_output(command, env=environment, text=True).splitlines()


def require_plan(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The plan of the launch, on a few clips."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DATASET_PATH", "my_clips")
    monkeypatch.setenv("WORLD_SIZE", "")  # put back in the end
    assert main(["dataset", "moving-shapes", "my_clips", "--clips", "3", "--val-clips", "0", "--num-frames", "5"]) == 0
    assert main([*words, "--dryrun"]) == 0
    return words[words.index("--master-addr") + 1]


def test_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The names of the service, its pods and the address of machine 0 fit, and exit codes mean what they do here."""
    service, job = documents("k8s_job.yaml")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"] == 2
    rules = {rule["onExitCodes"]["values"][0]: rule["action"] for rule in spec["podFailurePolicy"]["rules"][:2]}
    assert rules == {2: "FailJob", 75: "Ignore"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    words = words_of([*container["command"], *container["args"]], tmp_path, JOB_COMPLETION_INDEX="1")
    assert words[words.index("--node-rank") + 1] == "1"
    address = require_plan(words, tmp_path, monkeypatch)
    assert address == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert re.search(r"^processes +16 ", capsys.readouterr().out, flags=re.MULTILINE)


def test_skypilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (task,) = documents("skypilot.yaml")
    place = {"SKYPILOT_NUM_NODES": str(task["num_nodes"]), "SKYPILOT_NODE_RANK": "1"}
    place |= {"SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    words = words_of(["bash", "-c", task["run"]], tmp_path, **place)
    assert require_plan(words, tmp_path, monkeypatch) == "10.0.0.1"
    assert re.search(r"^processes +16 ", capsys.readouterr().out, flags=re.MULTILINE)
    assert Path(task["envs"]["WORLDSMITH_OUTPUT_ROOT"]).parts[1] == next(iter(task["file_mounts"])).strip("/")
