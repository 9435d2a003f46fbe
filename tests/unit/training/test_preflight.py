"""What a run lacks on disk is told at once, before anything is built, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import serving_hub
from tiny_runs import make_world, tiny_config

from worldsmith.distributed.memory import free_in_group, free_memory
from worldsmith.training.preflight import check_files
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"), clips=5)


def test_all_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = tiny_config(tmp_path / "gone")
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(tmp_path / "base")
    problems = check_files(config, tmp_path / "file" / "run")
    found = {problem.path: problem.message for problem in problems}
    assert list(found) == [
        "job", "model.config.tokenizer", "model.config.text_tokenizer", "checkpoint", "dataloader_train.dataset",
    ]  # fmt: skip
    for name, path in zip(found, ("file/run", "gone/vae", "gone/tokenizer", "base", "gone/data"), strict=True):
        assert str(tmp_path / path) in found[name]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_there_is_no_problem_and_a_run_folder_is_not_made(world: Path, tmp_path: Path) -> None:
    assert check_files(tiny_config(world), tmp_path / "a" / "run") == []
    assert not any(tmp_path.iterdir())


def test_a_run_that_goes_on_needs_its_base_only_for_frozen_weights(world: Path, tmp_path: Path) -> None:
    config = tiny_config(world, steps=3)
    config.trainer.max_iter = 1
    Trainer(config, run_folder=tmp_path / "base").train()
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(tmp_path / "base")
    for save_weights, count in (("all", 0), ("trained", 1)):
        config.checkpoint.save_weights = save_weights
        config.optimizer.keys_to_select = ["moe_gen"]
        folder = tmp_path / save_weights
        assert check_files(config, folder) == []
        Trainer(config, run_folder=folder).train()
        (tmp_path / "base").rename(tmp_path / "moved")
        problems = check_files(config, folder)
        assert [problem.path for problem in problems] == ["checkpoint"] * count
        (tmp_path / "moved").rename(tmp_path / "base")


@pytest.mark.parametrize("base", ["file.safetensors", "empty", "damaged"])
def test_a_base_that_is_no_base_is_found(world: Path, tmp_path: Path, base: str) -> None:
    (tmp_path / "file.safetensors").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"nonsense")
    config = tiny_config(world)
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(tmp_path / base)
    (problem,) = check_files(config, tmp_path / "run")
    assert problem.path == "checkpoint"
    assert str(tmp_path / base) in problem.message


def test_the_hub_is_asked_and_nothing_is_downloaded(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a gated repository, the list of whose files is open to all: the head of a file is what tells."""
    names = ["Wan-AI/Wan2.2-TI2V-5B", "Qwen/Qwen3-VL-8B-Instruct", "nvidia/Cosmos3-Nano"]
    repos = {name: {"model.safetensors": b"", "tokenizer_config.json": b""} for name in names}
    config = tiny_config(world)
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", "Cosmos3-Nano"
    config.model.config.tokenizer.vae_path = "Wan-AI/Wan2.2-TI2V-5B"
    config.model.config.text_tokenizer.path = "Qwen/Qwen3-VL-8B-Instruct"
    with serving_hub(repos, monkeypatch, tmp_path / "cache") as hub:
        assert check_files(config, tmp_path / "run") == []
        asked = [line for line in hub.asked if line.startswith("HEAD")]
        assert [name for line in asked for name in names if name in line] == names
        assert len(hub.asked) == 6
        hub.gated = {names[2]}
        (problem,) = check_files(config, tmp_path / "run")
        assert "the repository is gated, and there is no token" in problem.message
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 1\ninactive_file 50\n"}, 350),
        ({"memory.max": "max", "memory.current": "700", "memory.stat": ""}, None),
        ({"memory/memory.limit_in_bytes": "90", "memory/memory.usage_in_bytes": "100",
          "memory/memory.stat": "total_inactive_file 4\n"}, 0),
        ({}, None),
    ],
)  # fmt: skip
def test_the_limit_of_a_container_counts(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_in_group(tmp_path) == free
    if free is not None:
        assert free_memory("cpu", group=tmp_path) == free
