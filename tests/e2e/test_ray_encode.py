"""`worldsmith encode --on ray` leaves the same files as local processes, also when something is killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny_runs

from worldsmith.actions.processes import FailedItem
from worldsmith.actions.ray_processes import RAY_ATTEMPTS, connect_ray, map_on_ray
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.files.errors import WorkerProcessError
from worldsmith.tools.encode.encode import Encode
from worldsmith.training.trainer import Trainer

pytestmark = pytest.mark.timeout(900)
"""A pool of Ray starts in seconds alone, and in a minute or more beside other tests."""
CLIPS = 6


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("encode") / "world", clips=CLIPS)


@pytest.fixture(scope="module")
def ray_of_two() -> Iterator[None]:
    """One Ray for the tests of this file, as its start takes seconds."""
    with connect_ray("ray", 2):
        yield


def config_for(world: Path, cache: Path) -> Trainer.Config:
    config = tiny_runs.tiny_config(world, steps=3, save_iter=3, workers=0)
    config.dataloader_train.latent_cache = str(cache)
    return config


def encode(world: Path, cache: Path, **settings: Any) -> dict[str, Any]:
    return dict(Encode.Config(**settings).build(run=Loaded(resolve(config_for(world, cache)))).run().facts)


def kept(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*.safetensors")}


@pytest.fixture(scope="module")
def by_local(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("local") / "cache"
    facts = encode(world, folder)
    assert (facts["encoded"], facts["failed"], facts["on"]) == (CLIPS, 0, "local")
    return kept(folder)


def processes_on_ray() -> list[psutil.Process]:
    """Processes of the pool: Ray names them after their class."""
    return [each for each in psutil.process_iter(["cmdline"]) if "MapWorker" in " ".join(each.info["cmdline"] or [])]


@pytest.mark.usefixtures("ray_of_two")
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_bytes_as_by_local_processes_and_nothing_twice(
    world: Path,
    by_local: dict[str, bytes],
    tmp_path: Path,
    processes: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    facts = encode(world, tmp_path / "cache", on="ray", processes=processes)
    assert facts["on"] == "ray"
    assert (facts["encoded"], facts["found"], facts["left_out"], facts["failed"]) == (CLIPS, 0, 0, 0)
    assert kept(tmp_path / "cache") == by_local
    assert "encoding: 100 %\n" in capfd.readouterr().err
    if processes == 2:
        facts = encode(world, tmp_path / "cache", on="ray", processes=processes)
        assert (facts["encoded"], facts["found"]) == (0, CLIPS)
        assert kept(tmp_path / "cache") == by_local


def sleeper(folder: Path) -> Callable[[int], int]:
    """A function that leaves the ID of its process for each item, and takes a while."""

    def work(item: int) -> int:
        (folder / f"{item}.{os.getpid()}").touch()
        time.sleep(0.2)
        return item

    return work


@pytest.mark.slow
@pytest.mark.usefixtures("ray_of_two")
def test_a_killed_process_is_replaced_and_no_item_is_lost(tmp_path: Path) -> None:
    found = []
    for item in map_on_ray(lambda: sleeper(tmp_path), range(40), 2):
        found.append(item)
        if len(found) == 5:
            victims = {int(path.suffix[1:]) for path in tmp_path.iterdir()}
            os.kill(min(victims), signal.SIGKILL)
    assert sorted(found) == list(range(40))
    assert len({path.suffix for path in tmp_path.iterdir()}) >= len(victims) + 1


def faulty(folder: Path) -> Callable[[int], int]:
    def work(item: int) -> int:
        (folder / f"{item}.{time.time_ns()}").touch()
        if item == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 2:
            raise RuntimeError("no such pixel")
        if item == 3:
            time.sleep(60)
        return item

    return work


@pytest.mark.usefixtures("ray_of_two")
def test_items_that_fail_kill_or_take_too_long_do_not_stop_the_others(tmp_path: Path) -> None:
    found = list(map_on_ray(lambda: faulty(tmp_path), range(6), 2, timeout=5))
    failed = {each.item: each.reason for each in found if isinstance(each, FailedItem)}
    assert failed == {
        1: f"{RAY_ATTEMPTS} processes ended while they processed it",
        2: "RuntimeError: no such pixel",
        3: "it took longer than 5 s",
    }
    assert sorted(each for each in found if not isinstance(each, FailedItem)) == [0, 4, 5]
    assert len(list(tmp_path.glob("1.*"))) == RAY_ATTEMPTS


def refuse() -> Callable[[int], int]:
    raise UserError("the disk is full")


def fail() -> Callable[[int], int]:
    raise RuntimeError("no CUDA")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_of_two")
def test_what_a_process_refuses_is_raised() -> None:
    with pytest.raises(UserError, match="the disk is full"):
        list(map_on_ray(refuse, range(4), 1))
    with pytest.raises(WorkerProcessError, match=r"(?s)Traceback.*RuntimeError: no CUDA"):
        list(map_on_ray(fail, range(4), 1))
    assert list(map_on_ray(refuse, [], 1)) == []


def test_what_cannot_run_is_refused_with_the_reason(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(to_yaml(config_for(world, tmp_path / "cache")))
    for words, reason in {
        ("--on", "slurm"): "local, ray or ray://HOST:PORT",
        ("--on", "ray://"): "local, ray or ray://HOST:PORT",
        ("--record-timeout", "5"): "the work of a local process is not interrupted",
    }.items():
        assert main(["encode", str(tmp_path / "run.yaml"), *words]) == 2
        assert reason in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="use it without `worldsmith launch`"):
        encode(world, tmp_path / "cache", on="ray")


def test_ray_that_is_not_installed_or_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new program, where no other test has started Ray."""
    code = (
        "import sys\nfrom worldsmith.actions.ray_processes import connect_ray\n"
        "from worldsmith.config.errors import UserError\n"
        "try:\n    connect_ray(sys.argv[1], 1).__enter__()\nexcept UserError as error:\n    print(error)\n"
        "if sys.argv[2:]:\n"
        "    import importlib.util\n    importlib.util.find_spec = lambda name: None\n"
        "    try:\n        connect_ray('ray', 1).__enter__()\n    except UserError as error:\n        print(error)\n"
    )
    command = [sys.executable, "-c", code, "ray://127.0.0.1:1", "more"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}  # Ray itself sets it
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    unreachable, missing = done.stdout.splitlines()
    assert unreachable.startswith("--on ray://127.0.0.1:1: the Ray cluster 127.0.0.1:1 cannot be reached: ")
    assert "`ray start --address=127.0.0.1:1`" in unreachable
    assert "set RAY_AUTH_MODE=token" in unreachable
    assert missing == "--on ray needs ray, which is not installed: `pip install 'worldsmith[ray]'`"


@pytest.mark.slow
def test_a_command_that_is_killed_continues(world: Path, by_local: dict[str, bytes], tmp_path: Path) -> None:
    """Its actors end with it, in the middle of the work; the next start finds what is there and does the rest."""
    cache = tmp_path / "cache"
    (tmp_path / "run.yaml").write_text(to_yaml(config_for(world, cache)))
    words = ["encode", str(tmp_path / "run.yaml"), "--on", "ray", "--processes", "2"]
    command = [sys.executable, "-m", "worldsmith", *words]
    for wanted in (1, 4):
        started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(kept(cache)) < wanted and started.poll() is None:
            time.sleep(0.01)
        family = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
        started.kill()
        started.wait()
        _, left = psutil.wait_procs(family, timeout=30)
        agents = [each for each in left if each.name().endswith("Agent")]  # idle helpers, which Ray may leave
        for each in agents:
            each.kill()
        assert left == agents
    before = len(kept(cache))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{CLIPS - before} samples encoded, {before} already cached, 0 skipped" in done.stdout
    assert kept(cache) == by_local


@pytest.mark.slow
@pytest.mark.usefixtures("ray_of_two")
def test_processes_of_encode_that_are_killed_again_and_again(
    world: Path, by_local: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each new file is followed by the death of a process, as far as one can be found."""
    cache, killed, over = tmp_path / "cache", [], threading.Event()

    def kill() -> None:
        seen = 0
        while not over.wait(0.05):
            if len(kept(cache)) > seen and len(killed) < 3 and (found := processes_on_ray()):
                seen = len(kept(cache))
                killed.append(found[0].pid)
                found[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with caplog.at_level(logging.WARNING):
        facts = encode(world, cache, on="ray", processes=2)
    over.set()
    killer.join()
    assert killed
    assert (facts["encoded"] + facts["found"], facts["failed"]) == (CLIPS, 0)
    assert kept(cache) == by_local
