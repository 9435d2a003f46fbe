"""How many processes an action starts: as many as the command asks for, or a spec and the GPUs of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worldsmith.cli.action_command import SETTINGS, load_settings, processes_to_start, sort_action_words
from worldsmith.cli.spec_and_parent import SPEC, read_spec_words
from worldsmith.config import UserError
from worldsmith.dialects.cosmos_rl.spec_formats import form_of
from worldsmith.dialects.cosmos_rl.write.spec_template import spec_template
from worldsmith.tools.evaluate.evaluate_answers import EvaluateAnswers


@pytest.fixture(autouse=True)
def outside_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)


def started(folder: Path, *words: str, spec: bool = True) -> tuple[int, list[str]]:
    """The number of processes and the warnings about it."""
    file = folder / "spec.toml"
    file.write_text(spec_template(form_of("evaluate"), str(file)), encoding="utf-8")
    given = sort_action_words([SPEC, str(file), *words] if spec else ["model", "-o", "out", *words], [EvaluateAnswers])
    if spec:
        read_spec_words("evaluate", given, settings=SETTINGS)
    loaded = load_settings("worldsmith evaluate", EvaluateAnswers, given, [])
    count = processes_to_start(loaded, given.spec)
    return count, [warning for warning in loaded.warnings if "num_gpus" in warning]


@pytest.mark.parametrize(
    ("words", "gpus", "count", "told"),
    [
        ((), 8, 1, ""),
        (("num_gpus=4",), 8, 4, ""),
        (
            ("num_gpus=4",),
            2,
            2,
            "requests 4 processes, each with its own GPU, but this machine has 2 GPUs: 2 of 4 processes are used",
        ),
        (("num_gpus=4",), 1, 1, "this machine has 1 GPU: 1 of 4"),
        (("num_gpus=4",), 0, 1, "this machine has no GPUs: 1 of 4 processes is used; --processes N starts N"),
        (("num_gpus=4", "--processes", "2"), 0, 2, ""),
        (("num_gpus=4", "--processes", "2"), 8, 2, ""),
        (("num_gpus=4", "--processes", "1"), 8, 1, ""),
        (("num_gpus=4", "--processes", "4"), 8, 4, ""),
        (("num_gpus=4", "--device", "cuda:1"), 8, 1, "--device is cuda:1: 1 of 4"),
        (("model.tp_size=8",), 8, 8, ""),
        (("num_gpus=4", "evaluation.shard_id=3"), 8, 1, ""),
    ],
)
def test_a_spec_starts_a_process_for_each_gpu_and_a_flag_wins(
    words: tuple[str, ...], gpus: int, count: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    found, warnings = started(tmp_path, *words)
    assert found == count
    warnings = [warning for warning in warnings if "tp_size" not in warning]
    assert [told in warning for warning in warnings] == [True] * bool(told)


def test_more_processes_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="--processes 4: each needs a GPU, but this machine has 2; use --processes 2"):
        started(tmp_path, "--processes", "4", spec=False)
    assert started(tmp_path, "--processes", "2", spec=False) == (2, [])
    assert started(tmp_path, "--processes", "4", "--device", "cpu", spec=False) == (4, [])


def test_a_launch_has_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match="the launch already has 4 processes, which share the work: omit --processes"):
        started(tmp_path, "--processes", "2", spec=False)
    assert started(tmp_path, spec=False) == (1, [])
    assert started(tmp_path, "num_gpus=4")[0] == 1
