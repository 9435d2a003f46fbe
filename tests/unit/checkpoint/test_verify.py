"""Whoever opens weights finds damage before using them: runs, single checkpoints, base checkpoints, exports."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_models import spec_of

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.checkpoint.sources.open_weights import StartWeights, open_weights
from worldsmith.checkpoint.sources.verify import WEIGHTS, find_checkpoint_damage, require_intact
from worldsmith.checkpoint.sources.warm_start import compare_weights, load_weights
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.yaml.yaml_text import dump_yaml
from worldsmith.distributed.world import World
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.files import checksum_manifest
from worldsmith.models.spec import ModelSpec
from worldsmith.tools.export.convert import convert

NETWORK = NetworkConfig(
    vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, mrope_section=[2, 1, 1], latent_channel=4,
)  # fmt: skip
TABLE = "language_model.model.embed_tokens.weight"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints 1 and 2, whose weights are all 1 and 2."""
    folder = tmp_path / "run"
    folder.mkdir()
    model = to_dict(ModelSpec(name="cosmos3", config=Cosmos3Generator.Config(network=NETWORK)))
    (folder / "config.yaml").write_text(dump_yaml({"model": model, "checkpoint": {}, "trainer": {"seed": 1}}))
    checkpointer = Checkpointer.Config(init="scratch", async_save=False).build(folder=folder / "checkpoints")
    for iteration in (1, 2):
        parts = {"model": weights(float(iteration)), "optim": {"state": torch.ones(9)}}
        checkpointer.save(iteration, parts)
    return folder


def weights(value: float) -> dict[str, torch.Tensor]:
    return {f"net.{name}": torch.full(shape, value) for name, shape in StartWeights(spec_of(NETWORK), 0).shapes.items()}


def flip(file: Path) -> None:
    """One bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def break_newest(run: Path, how: str) -> Path:
    newest = run / "checkpoints" / "iter_000000002"
    if how == "flipped":
        flip(newest / "model" / "__0_0.distcp")
    elif how == "shard":
        (newest / "model" / "__0_0.distcp").unlink()
    elif how == "metadata":
        (newest / "model" / ".metadata").unlink()
    else:
        shutil.rmtree(newest)
    return newest


@pytest.mark.parametrize("how", ["flipped", "shard", "metadata", "gone"])
def test_a_runs_damaged_checkpoint_is_passed_over_aloud(
    run: Path, how: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """By load_path and by `worldsmith convert`, which then take the one before; and a missing one is no end either."""
    break_newest(run, how)
    model = weights(0.0)
    report = load_weights(str(run), model)
    assert "iter_000000001" in report.source
    assert all(bool((value == 1).all()) for value in model.values())
    assert "iter_000000002" in caplog.text
    assert main(["convert", str(run), "-o", str(tmp_path / "base")]) == 0
    assert bool((open_weights(tmp_path / "base").read(TABLE) == 1).all())


@pytest.mark.parametrize("how", ["flipped", "shard", "metadata"])
def test_a_damaged_checkpoint_that_was_named_is_refused(
    run: Path, how: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its iter folder and its model folder, in every way in, the plan of a run included; exit code 2, nothing made."""
    newest = break_newest(run, how)
    for path in (newest, newest / "model") if how != "metadata" else (newest,):
        for way in (open_weights, lambda path: load_weights(str(path), weights(0)), lambda path: plan(path)):
            with pytest.raises(UserError, match=r"iter_000000002 is damaged: .*model/"):
                way(path)
    assert main(["convert", str(newest), "-o", str(tmp_path / "base")]) == 2
    assert "iter_000000002 is damaged" in capsys.readouterr().err
    assert not (tmp_path / "base").exists()


def plan(path: Path) -> Any:
    return compare_weights(open_weights(str(path)), {name: list(value.shape) for name, value in weights(0).items()}, [])


def test_no_whole_checkpoint_is_said_with_the_reasons(run: Path) -> None:
    for folder in (run / "checkpoints").glob("iter_*"):
        flip(folder / "model" / "__0_0.distcp")
    with pytest.raises(UserError, match=r"is complete: iter_000000002: the content of .*iter_000000001: "):
        open_weights(run)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\n", b"iter_backup\n", b"../elsewhere\n"])
def test_a_pointer_of_nonsense_and_foreign_folders_are_no_hindrance(run: Path, text: bytes) -> None:
    """The newest whole checkpoint is taken."""
    (run / "checkpoints" / "latest_checkpoint.txt").write_bytes(text)
    shutil.copytree(run / "checkpoints" / "iter_000000001", run / "checkpoints" / "iter_backup")
    assert bool((open_weights(run).read(TABLE) == 2).all())


@pytest.mark.parametrize("to", ["dcp", "native", "diffusers"])
def test_a_converted_base_has_checksums(run: Path, tmp_path: Path, to: str) -> None:
    """A flipped bit in its weights is found; its other files may be edited."""
    base = tmp_path / "base"
    convert(str(run), base, to=to, max_shard_size=3000)
    for file in base.glob("*.json"):
        if file.name != "manifest.json":
            file.write_text(file.read_text() + "\n")
    assert bool((open_weights(base).read(TABLE) == 2).all())
    flip(max(base.rglob("*.distcp" if to == "dcp" else "*.safetensors"), key=lambda file: file.stat().st_size))
    with pytest.raises(UserError, match=r"base is damaged: the content of .* has changed"):
        open_weights(base)


def test_loading_reads_every_file_once_for_its_checksum(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[Path] = []
    summarize = checksum_manifest.summarize_file
    monkeypatch.setattr(checksum_manifest, "summarize_file", lambda path: [files.append(path), summarize(path)][1])
    load_weights(str(run), weights(0))
    newest = run / "checkpoints" / "iter_000000002"
    wanted = [
        file for file in checksum_manifest.list_files(newest) if str(file.relative_to(newest)).startswith(WEIGHTS)
    ]
    assert sorted(files) == wanted
    assert wanted


def test_weights_are_taken_from_a_checkpoint_without_its_training_state(run: Path) -> None:
    """It is often removed to save space; only what is read is compared with checksums."""
    newest = run / "checkpoints" / "iter_000000002"
    shutil.rmtree(newest / "optim")
    for path in (run, newest, newest / "model"):
        assert bool((open_weights(path).read(TABLE) == 2).all())
    flip(newest / "model" / "__0_0.distcp")
    with pytest.raises(UserError, match="iter_000000002 is damaged"):
        open_weights(newest)


@pytest.mark.parametrize("foreign", [False, True])
def test_weights_that_others_have_written_need_no_checksums(run: Path, foreign: bool) -> None:
    """A run folder, a checkpoint and a model folder, with no manifest.json or one of another program."""
    for folder in (run / "checkpoints").glob("iter_*"):
        (folder / "manifest.json").unlink()
        if foreign:
            (folder / "manifest.json").write_text('{"name": "somebody"}')
    for path in (run, run / "checkpoints", run / "checkpoints" / "iter_000000002"):
        assert bool((open_weights(path).read(TABLE) == 2).all())
    bare = run / "nano"
    shutil.copytree(run / "checkpoints" / "iter_000000002" / "model", bare)
    (run / "manifest.json").write_text('{"files": {"other": [1, 2]}}')
    assert bool((open_weights(bare).read(TABLE) == 2).all())


@dataclass(frozen=True)
class Different(World):
    """A rank beside one that sees something else."""

    size: int = 2
    other: Any = None

    def gather(self, value: Any) -> list[Any]:
        return [self.other, value]


def test_ranks_that_see_different_copies_are_told_and_do_not_wait(run: Path) -> None:
    with pytest.raises(
        UserError, match=r"process 0 finds safetensors there but process 1 finds a run; copy the folder to all nodes"
    ):
        open_weights(run, world=Different(other="safetensors"))
    with pytest.raises(
        UserError, match=r"damaged: processes \[0\] find no manifest.json in the folder, but the others do"
    ):
        require_intact(run / "checkpoints" / "iter_000000002", Different(other=(False, None)))


@dataclass(frozen=True)
class OneOfTwo(World):
    """A rank that hears only itself."""

    size: int = 2

    def gather(self, value: Any) -> list[Any]:
        return [None, value]

    def broadcast(self, value: Any) -> Any:
        return value


def test_ranks_share_the_reading(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two looks at its files, together all; what one of them finds counts for both."""
    checkpoint, files = run / "checkpoints" / "iter_000000002", []
    summarize = checksum_manifest.summarize_file
    monkeypatch.setattr(checksum_manifest, "summarize_file", lambda path: [files.append(path), summarize(path)][1])
    for rank in (0, 1):
        assert find_checkpoint_damage(checkpoint, OneOfTwo(rank=rank)) is None
    assert sorted(files) == checksum_manifest.list_files(checkpoint)
    flip(checkpoint / "model" / "__0_0.distcp")
    found = [find_checkpoint_damage(checkpoint, OneOfTwo(rank=rank)) for rank in (0, 1)]
    assert sorted(problem is None for problem in found) == [False, True]
