"""`worldsmith generate` in several processes, of this machine or of Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from generator_run import write_generator_run
from mp4 import read_mp4

from worldsmith.cli.main import main
from worldsmith.tools.generate.sample_order import Order

PROMPTS = ["--prompt", "A red square.", "--prompt", "A blue one", "--prompt", "Green", "--steps", "1"]
NAMES = ["000_a_red_square", "001_a_blue_one", "002_green"]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generator_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def alone(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """The videos of one process."""
    out = tmp_path_factory.mktemp("alone") / "out"
    assert main(["generate", str(run_folder), *PROMPTS, "--max-num-seqs", "1", "-o", str(out)]) == 0
    return videos(out)


def videos(out: Path) -> list[torch.Tensor]:
    return [read_mp4(out / name / "vision.mp4")[0].float() for name in NAMES]


@pytest.mark.parametrize(
    "words",
    [["--processes", "2"], pytest.param(["--on", "ray"], marks=pytest.mark.slow)],
    ids=["processes", "ray"],
)
def test_the_same_videos_and_nothing_twice(
    run_folder: Path, alone: list[torch.Tensor], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", str(run_folder), *PROMPTS, "-o", str(tmp_path / "out"), *words]
    assert main(command) == 0
    for found, wanted in zip(videos(tmp_path / "out"), alone, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=2)  # the number of threads may differ
    assert (tmp_path / "out/contact_sheet.png").is_file()
    (tmp_path / "out" / NAMES[1] / "sample_outputs.json").unlink()
    capsys.readouterr()
    assert main(command) == 0
    assert "3 samples, 2 of them are already complete" in capsys.readouterr().out


def test_a_sample_that_fails_does_not_stop_the_others(
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_pack = Order.make_pack

    def fail(self: Order, generator: Any, pack: Any) -> None:
        if pack[0].name == NAMES[0]:
            raise RuntimeError("no such pixel")
        make_pack(self, generator, pack)

    command = ["generate", str(run_folder), *PROMPTS, "-o", str(tmp_path / "out"), "--processes", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(Order, "make_pack", fail)
        assert main([*command, "--max-failures", "1"]) == 0
        assert f"{NAMES[0]}: RuntimeError: no such pixel" in caplog.text
        assert "1 failed" in capsys.readouterr().out
        assert main(command) == 2
        assert "1 sample cannot be generated" in capsys.readouterr().err
    assert main(command) == 0
    assert "3 samples, 2 of them are already complete" in capsys.readouterr().out


def test_failures_are_counted_in_one_process_too(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("no such pixel")

    monkeypatch.setattr(Order, "make_pack", fail)
    command = ["generate", str(run_folder), *PROMPTS, "-o", str(tmp_path / "out"), "--max-failures"]
    assert main([*command, "2"]) == 2
    assert "3 samples cannot be generated" in capsys.readouterr().err
    assert main([*command, "3"]) == 2
    assert "all samples have failed" in capsys.readouterr().err


def test_what_cannot_run_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["generate", str(run_folder), *PROMPTS, "-o", str(tmp_path / "out"), "--processes", "2"]
    assert main([*command, "--cfgp-size", "2"]) == 2
    assert "it needs `worldsmith launch`" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command) == 2
    assert "omit --processes, --on and --max-failures" in " ".join(capsys.readouterr().err.split())
