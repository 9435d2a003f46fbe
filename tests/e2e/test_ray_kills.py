"""`worldsmith encode` on a Ray cluster loses nothing, whatever is killed: a process, the command, or the node."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import tiny_runs

from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
CLIPS, KILLS = 600, 30
KINDS = ["process", "command", "node"]


def kept(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*.safetensors")}


def with_name(part: str) -> list[psutil.Process]:
    """The running processes with this text in their command line."""
    return [each for each in psutil.process_iter(["cmdline"]) if part in " ".join(each.info["cmdline"] or [])]


def kill_all(victims: list[psutil.Process]) -> None:
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    psutil.wait_procs(victims, timeout=60)


class Cluster:
    """A Ray cluster of one node, beside the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            self.port = opened.getsockname()[1]

    @property
    def processes(self) -> list[psutil.Process]:
        return with_name(str(self.folder))

    def workers(self) -> list[psutil.Process]:
        """The processes of the command on this cluster, of which there is at least one."""
        while True:
            family = [child for each in self.processes for child in each.children(recursive=True)]
            if found := [each for each in with_name("MapWorker") if each in family]:
                return found
            time.sleep(0.05)

    def start(self) -> None:
        words = ["start", "--head", f"--port={self.port}", "--num-cpus=2", f"--temp-dir={self.folder}"]
        words += ["--include-dashboard=false", "--object-store-memory=200000000", "--disable-usage-stats"]
        subprocess.run([str(Path(sys.executable).with_name("ray")), *words], check=True, capture_output=True)

    def kill(self) -> None:
        kill_all(self.processes)


def test_thirty_random_kills_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each kill, no file is partial or different; at the end all are there, and the command says so."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # a Ray that was started on this machine may have left a token
    world = tiny_runs.make_world(tmp_path / "world", clips=CLIPS)
    config = tiny_runs.tiny_config(world, steps=3, save_iter=3, workers=0)
    config.dataloader_train.latent_cache = str(tmp_path / "reference")
    (tmp_path / "local.yaml").write_text(to_yaml(config))
    assert main(["encode", str(tmp_path / "local.yaml")]) == 0
    reference = kept(tmp_path / "reference")
    assert len(reference) == CLIPS

    cache = tmp_path / "cache"
    config.dataloader_train.latent_cache = str(cache)
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    rng, killed = random.Random(0), Counter[str]()
    cluster = Cluster(Path("/tmp") / f"kills_{time.time_ns()}")  # a short path, for the sockets of Ray
    words = ["encode", str(tmp_path / "run.yaml"), "--on", f"ray://127.0.0.1:{cluster.port}", "--processes", "2"]
    command = [sys.executable, "-m", "worldsmith", *words]
    running: subprocess.Popen[bytes] | None = None
    try:
        for number in range(KILLS):
            if not cluster.processes:
                cluster.start()
            if running is None or running.poll() is not None:
                running = subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=(tmp_path / "errors.txt").open("ab")
                )
            before, kind = len(kept(cache)), KINDS[number % 3]
            until = time.monotonic() + 120
            while len(kept(cache)) == before and running.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            assert running.poll() is None, (tmp_path / "errors.txt").read_text()[-2000:]
            time.sleep(rng.uniform(0, 0.3))
            if kind == "process":
                kill_all([rng.choice(cluster.workers())])
            elif kind == "node":
                cluster.kill()
            if kind != "process":
                running.kill()
                running.wait()
            killed[kind] += 1
            found = kept(cache)
            assert found.items() <= reference.items()
            assert len(found) > before
        if not cluster.processes:
            cluster.start()
        for _ in range(2):  # the second finds all
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        assert f"0 samples encoded, {CLIPS} already cached, 0 skipped" in done.stdout
        assert kept(cache) == reference
    finally:
        if running is not None:
            running.kill()
        cluster.kill()
    assert killed == dict.fromkeys(KINDS, KILLS // 3)
