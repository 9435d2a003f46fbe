"""`worldsmith encode` leaves in the cache what a run would have put there, also when it was ended or shared."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import reasoner_runs
import tiny_runs

from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.families.cosmos3.task import Cosmos3Encoder
from worldsmith.tools.encode.encode import Encode
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("encode") / "world", clips=6)


def config_for(world: Path, cache: Path | str, workers: int = 0) -> Trainer.Config:
    config = tiny_runs.tiny_config(world, steps=3, save_iter=3, workers=workers)
    config.dataloader_train.latent_cache = str(cache)
    return config


def encode(world: Path, cache: Path, workers: int = 0, **settings: Any) -> dict[str, Any]:
    return dict(Encode.Config(**settings).build(run=Loaded(resolve(config_for(world, cache, workers)))).run().facts)


def kept(cache: Path) -> dict[str, bytes]:
    assert not list((cache / "incoming").iterdir())
    return {path.name: path.read_bytes() for path in cache.rglob("*.safetensors")}


@pytest.fixture(scope="module")
def by_training(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run caches that sees every clip."""
    folder = tmp_path_factory.mktemp("trained")
    Trainer(config_for(world, folder / "cache"), run_folder=folder / "run").train()
    assert len(kept(folder / "cache")) == 6
    return kept(folder / "cache")


def test_the_same_bytes_as_by_training_and_a_run_has_only_hits(
    world: Path, by_training: dict[str, bytes], tmp_path: Path
) -> None:
    facts = encode(world, tmp_path / "cache")
    assert (facts["encoded"], facts["found"], facts["left_out"]) == (6, 0, 0)
    assert kept(tmp_path / "cache") == by_training
    facts = encode(world, tmp_path / "cache")
    assert (facts["encoded"], facts["found"]) == (0, 6)
    Trainer(config_for(world, tmp_path / "cache"), run_folder=tmp_path / "run").train()
    loaded = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["loaded"]
    assert loaded["cache_hit"] == loaded["samples"]
    assert not any(loaded.get(name) for name in ("cache_miss", "cache_corrupt", "cache_unwritten"))


def test_two_processes_share_the_work(
    world: Path, by_training: dict[str, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    facts = encode(world, tmp_path / "cache", workers=1, processes=2)
    assert (facts["encoded"], facts["found"], facts["processes"]) == (6, 0, 2)
    assert kept(tmp_path / "cache") == by_training
    assert "encoding: 100 %\n" in capfd.readouterr().err


def test_it_goes_on_where_it_was_ended(
    world: Path, by_training: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = Cosmos3Encoder.encode, []

    def interrupted(encoder: Cosmos3Encoder, sample: Any) -> bool:
        calls.append(sample.key)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(encoder, sample)

    monkeypatch.setattr(Cosmos3Encoder, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        encode(world, tmp_path / "cache")
    monkeypatch.setattr(Cosmos3Encoder, "encode", whole)
    assert len(kept(tmp_path / "cache")) == 2
    facts = encode(world, tmp_path / "cache")
    assert (facts["encoded"], facts["found"]) == (4, 2)
    assert kept(tmp_path / "cache") == by_training


def test_two_commands_fill_one_cache_at_the_same_time(
    world: Path, by_training: dict[str, bytes], tmp_path: Path
) -> None:
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=encode, args=(world, tmp_path / "cache")) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert kept(tmp_path / "cache") == by_training


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_of_a_launch_share_the_work(world: Path, by_training: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(to_yaml(config_for(world, tmp_path / "cache")))
    words = ["launch", "--nproc-per-node", "2", "encode", str(tmp_path / "run.yaml")]
    done = subprocess.run([sys.executable, "-m", "worldsmith", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"process {rank} of 2: 3 samples encoded, 0 already cached, 0 skipped" in done.stdout
    assert kept(tmp_path / "cache") == by_training


def test_runs_that_keep_nothing_are_refused(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text(to_yaml(config_for(world, "")))
    assert main(["encode", str(tmp_path / "run.yaml")]) == 2
    assert "dataloader_train.latent_cache is '', so encoded clips would not be stored" in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the latent cache .*file/cache cannot be written"):
        encode(world, tmp_path / "file" / "cache")
    reasoner = reasoner_runs.reasoner_config(reasoner_runs.make_world(tmp_path / "reasoner", samples=1))
    with pytest.raises(UserError, match="its samples are not encoded before training"):
        Encode.Config().build(run=Loaded(resolve(reasoner))).run()
