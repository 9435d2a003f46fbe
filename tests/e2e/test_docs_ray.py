"""The commands of docs/ray.md work, on a Ray cluster and an S3 server of this machine; its cluster files are valid."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import object_store
import psutil
import pytest
import yaml

from worldsmith.cli.main import main
from worldsmith.config.load import load
from worldsmith.config.tree.references import resolve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/ray.md").read_text(encoding="utf-8")
CLUSTER = "127.0.0.1:6379"
CONTAINER = "template", "spec", "containers", 0

pytestmark = pytest.mark.timeout(900)


def commands(language: str) -> list[list[str]]:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return [words for line in "".join(blocks).splitlines() if (words := shlex.split(line))[0] == "worldsmith"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[object_store.ObjectStore]:
    with (
        object_store.serving() as server,
        pytest.MonkeyPatch.context() as patch,
        object_store.connected(server, patch, tmp_path / "cache"),
    ):
        yield server


@pytest.fixture
def cluster(
    store: object_store.ObjectStore, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of the head of a Ray cluster with two CPUs, which has the credentials of the store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # as in the page, where step 1 has made a token
    monkeypatch.setenv("RAY_AUTH_TOKEN", "5" * 64)
    settings = [f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--object-store-memory=200000000"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *settings]
    with (folder / "log.txt").open("wb") as log:
        head = subprocess.Popen([*command, f"--temp-dir={folder}"], stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(600):
            assert head.poll() is None, (folder / "log.txt").read_text()
            if "Ray runtime started" in (folder / "log.txt").read_text():
                break
            psutil.wait_procs([psutil.Process(head.pid)], timeout=0.2)
        yield f"127.0.0.1:{port}"
    finally:
        family = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
        for process in family:
            process.kill()
        psutil.wait_procs(family, timeout=60)


def kept(folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.safetensors")}


def stored(folder: str) -> list[bytes]:
    system = fsspec.filesystem("s3", use_listings_cache=False)
    return [system.cat_file(name) for name in system.find(folder)]


@pytest.mark.slow
def test_the_commands_of_the_page(
    store: object_store.ObjectStore,
    cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clips from the store, encoded by the cluster, have the latents of the same clips on this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLDSMITH_CACHE_GIB", "0")
    make, alone = commands("bash")
    (on_cluster,) = commands("text")
    assert main(make[1:]) == 0
    assert subprocess.run([sys.executable, "-m", "worldsmith", *alone[1:]]).returncode == 0
    store.put_folder(tmp_path / "my_shapes", "clips")
    words = [word.replace(CLUSTER, cluster) for word in on_cluster[1:]]
    assert words != on_cluster[1:]
    for said in ("8 samples encoded, 0 already cached", "0 samples encoded, 8 already cached"):
        done = subprocess.run([sys.executable, "-m", "worldsmith", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(said)
    assert sorted(kept("my_latents").values()) == sorted(stored("bucket/latents")) != []


def find(tree: Any, *keys: Any) -> Any:
    for key in keys:
        tree = tree[key]
    return tree


def test_the_cluster_file_is_one_of_ray_up() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load((ROOT / "examples/ray_cluster.yaml").read_text(encoding="utf-8")))
    validate_config(config)
    assert config["available_node_types"]["gpu"]["resources"]["GPU"] == 1
    assert config["available_node_types"]["head"]["resources"] == {"CPU": 0}


def test_the_job_of_kubernetes_has_a_gpu_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is complete, and all pods have the same folder, clips and credentials."""
    job = yaml.safe_load((ROOT / "examples/ray_job.yaml").read_text(encoding="utf-8"))
    cluster = job["spec"]["rayClusterSpec"]
    head, (group,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    for part in ("env", "envFrom", "volumeMounts", "image", "workingDir"):
        assert find(head, *CONTAINER, part) == find(group, *CONTAINER, part)
    assert find(group, *CONTAINER, "resources", "limits", "nvidia.com/gpu") == 1
    for variable in find(head, *CONTAINER, "env"):
        monkeypatch.setenv(variable["name"], variable["value"])
    program, action, recipe, *words = shlex.split(job["spec"]["entrypoint"])
    assert (program, action) == ("worldsmith", "encode")
    config = resolve(load(recipe, ["dataloader_train.latent_cache=/shared/latents"]).tree)
    assert config.dataloader_train.dataset.path == "s3://bucket/clips"
    assert int(words[words.index("--processes") + 1]) == group["replicas"] == group["minReplicas"]
