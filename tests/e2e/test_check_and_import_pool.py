"""`worldsmith check` and `worldsmith dataset import` say and write the same in processes of this machine and of Ray."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import damaged_data
import pytest
import tiny_runs
from import_sources import SOURCES, clip

from worldsmith.actions.ray_processes import connect_ray
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import resolve
from worldsmith.data.stream.errors import DataError
from worldsmith.tools.check.check import CheckData
from worldsmith.tools.check.inspect_data import fetch_on_ray
from worldsmith.tools.datasets.imports import importer

pytestmark = pytest.mark.timeout(900)
PLACES = [["--processes", "2"], ["--on", "ray", "--processes", "2"]]


@pytest.fixture(scope="module", autouse=True)
def ray_of_two() -> Iterator[None]:
    """One Ray for the tests of this file, as its start takes seconds."""
    with connect_ray("ray", 2):
        yield


def test_the_check_on_ray_reports_what_local_workers_report(tmp_path: Path) -> None:
    config = tiny_runs.tiny_config(tiny_runs.make_world(tmp_path / "world", clips=1))
    config.dataloader_train.dataset.path = str(damaged_data.damaged_clips(tmp_path / "data"))

    def report(**settings: Any) -> dict[str, Any]:
        found = CheckData.Config(**settings).build(run=Loaded(resolve(config))).run().facts["data"]["train"]
        return {name: value for name, value in found.items() if name != "seconds"}

    local = report(workers=0)
    assert local["left_out"]
    assert report(on="ray", workers=2) == local


@pytest.mark.slow
def test_a_sample_that_is_too_slow_on_ray_is_skipped(tmp_path: Path) -> None:
    """A sample may be ready before the process waits for it; then it is in time."""
    config = tiny_runs.tiny_config(tiny_runs.make_world(tmp_path / "world", clips=2))
    action = CheckData.Config(on="ray", workers=1, record_timeout=1e-9).build(run=Loaded(resolve(config)))
    left_out = action.run().facts["data"]["train"]["left_out"]
    assert 1 <= left_out["failed"]["count"] <= 2
    assert "took longer than 1e-09 s" in left_out["failed"]["examples"][0]["detail"]


def test_an_error_that_would_stop_the_run_is_raised() -> None:
    class Broken:
        def __getitem__(self, position: int) -> Any:
            raise DataError("no such pixel")

    inspector: Any = Broken()
    with pytest.raises(DataError, match="no such pixel"):
        list(fetch_on_ray(CheckData.Config(on="ray"), 1, inspector, [0, 1]))


def test_a_cluster_that_cannot_be_reached_is_no_problem_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: Any, **settings: Any) -> Any:
        raise UserError("the Ray cluster cannot be reached")

    monkeypatch.setattr("worldsmith.tools.check.check.connect_ray", unreachable)
    config = tiny_runs.tiny_config(tiny_runs.make_world(tmp_path / "world", clips=1))
    with pytest.raises(UserError, match="cannot be reached"):
        CheckData.Config(on="ray").build(run=Loaded(resolve(config))).run()


def imported(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", ["sidecar", pytest.param("lerobot_v3", marks=pytest.mark.slow)])
def test_the_same_dataset_is_imported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SOURCES[name][0](tmp_path / "source")
    if name == "sidecar":
        (tmp_path / "source/broken.mp4").write_bytes(b"no video")
        (tmp_path / "source/broken.txt").write_text("Nothing.")
    words = ["dataset", "import", "source", "-o", "out", "--window-frames", "5"]
    assert main(words) == 0
    alone = imported(tmp_path / "out")
    assert len(alone) >= 3
    for place in PLACES:
        shutil.rmtree("out")
        assert main([*words, *place]) == 0
        assert imported(tmp_path / "out") == alone


@pytest.mark.parametrize("place", [PLACES[0], pytest.param(PLACES[1], marks=pytest.mark.slow)])
def test_a_file_whose_reading_breaks_is_counted(
    place: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        clip(tmp_path / f"source/{name}.mp4")
    monkeypatch.setattr("worldsmith.tools.datasets.import_clips.make_opener", breaking("ray" in place))
    words = ["dataset", "import", "source", "-o", "out", "--caption", "A clip.", *place]
    assert main(words) == 2
    assert "1 file cannot be imported" in capsys.readouterr().err
    assert main([*words, "--max-failures", "1"]) == 0
    assert "skipped: failed 1" in capsys.readouterr().out


def breaking(kills: bool) -> Callable[[importer.Cut, int], Callable[[importer.ClipsOfFile], importer.OpenedFile]]:
    """A `make_opener` whose function fails at b.mp4: it ends its process, or raises an unexpected error."""

    def make(cut: importer.Cut, number: int) -> Callable[[importer.ClipsOfFile], importer.OpenedFile]:
        def open_file(file: importer.ClipsOfFile) -> importer.OpenedFile:
            if file[0].endswith("b.mp4"):
                if kills:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("no such pixel")
            return importer.open_file(cut, file)

        return open_file

    return make
