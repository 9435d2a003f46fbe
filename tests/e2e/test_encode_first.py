"""A run that encodes its samples before the network gets memory learns the same bits, without an encoder next to it."""

from __future__ import annotations

import copy
import json
import logging
import random
import re
from pathlib import Path
from typing import Any

import encode_first_runs
import numpy as np
import pytest
import reasoner_runs
import tiny_runs
import torch
from encode_first_runs import FAMILIES, config_of, files_of, train

from worldsmith.config import WrongValueError
from worldsmith.config.errors import UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.world import World
from worldsmith.families.cosmos3.task import Cosmos3Encoder
from worldsmith.families.diffusers_pipeline.task import DummyPipelineClips
from worldsmith.tasks.registry import task_of
from worldsmith.tools.encode.encode import Encode
from worldsmith.training import preflight
from worldsmith.training.preflight import build_optimizer, encoder_bytes, needs_encoding_first, run_states
from worldsmith.training.trainer import Trainer

VAE_IN_EVERY_STEP = {"cogvideox_i2v"}
"""Families whose first frames get noise on their pixels, so that the VAE encodes them in every step."""

QUICK = {"cosmos3", "cogvideox_i2v"}
"""Families of the default run; the second is one of `VAE_IN_EVERY_STEP`."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Path] = {}

    def get(family: str) -> Path:
        module = FAMILIES[family][0]
        if module not in known:
            known[module] = encode_first_runs.make_world(family, tmp_path_factory.mktemp(module))
        return known[module]

    return get


@pytest.mark.parametrize(
    "family", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_the_same_bits_as_a_run_that_encodes_in_its_steps(
    family: str, worlds: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Losses, gradients, every tensor of the last checkpoint, and the cache, with a stop and a resume in between."""
    world, cache = worlds(family), tmp_path / "cache"
    plain = train(config_of(family, world, tmp_path / "plain_cache", "never"), tmp_path / "plain")
    assert any(plain["beside"].values())
    with caplog.at_level(logging.INFO, "worldsmith"):
        start = train(config_of(family, world, cache, "always", steps=2), tmp_path / "first")
        encoded = files_of(cache)
        end = train(config_of(family, world, cache, "always"), tmp_path / "first")
    (counts, again) = re.findall(r"encoding     (\d+) samples encoded, (\d+) already cached", caplog.text)
    assert counts == (again[1], "0")
    assert again[0] == "0"
    assert end["losses"] == plain["losses"]
    require_same([*start["gradients"], *end["gradients"]], plain["gradients"])
    folders = [tmp_path / name / "checkpoints/iter_000000004" for name in ("first", "plain")]
    found, expected = map(tiny_runs.read_checkpoint, folders)
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []
    assert files_of(tmp_path / "plain_cache").items() <= encoded.items()
    assert files_of(cache) == encoded
    for run in (start, end):
        beside = set().union(*run["beside"].values())
        if family in VAE_IN_EVERY_STEP:
            assert "the VAE stays next to the network" in caplog.text
            assert not any("T5" in name for name in beside)
        else:
            assert beside == set()
        assert run["beside"]["before the network"] == set()
        assert run["counts"] == {"cache_unwritten": 0, "cache_late": 0}


def require_same(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> None:
    assert len(found) == len(expected) == 4
    for own, its in zip(found, expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(own, its, strict=True))


def test_a_short_run_encodes_only_what_its_packs_can_contain(
    worlds: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of("cosmos3", worlds("cosmos3"), tmp_path / "cache", "always", steps=1)
    data = config.dataloader_train
    config.trainer.grad_accum_iter = 1
    data.max_sequence_length, data.max_samples_per_batch, data.lookahead = None, 1, 1
    with caplog.at_level(logging.INFO, "worldsmith"):
        found = train(config, tmp_path / "run")
    assert re.findall(r"encoding     (\d+ of \d+) samples", caplog.text)[-1] == "2 of 2"
    assert "encoding     2 samples encoded, 0 already cached, 0 skipped" in caplog.text
    assert found["counts"]["cache_late"] == 0


def test_validation_samples_are_encoded_too(worlds: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of("cosmos3", worlds("cosmos3"), tmp_path / "cache", "always", steps=1)
    config.dataloader_val = copy.deepcopy(config.dataloader_train)
    config.dataloader_val.seed, config.dataloader_val.latent_cache = 1, str(tmp_path / "val")
    config.trainer.run_validation = True
    with caplog.at_level(logging.INFO, "worldsmith"):
        found = train(config, tmp_path / "run")
    assert "encoding     12 samples encoded" in caplog.text
    assert files_of(tmp_path / "val") == files_of(tmp_path / "cache")
    assert set().union(*found["beside"].values()) == set()


def test_a_first_phase_that_was_killed_continues(
    worlds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of("cosmos3", worlds("cosmos3"), tmp_path / "cache", "always", steps=1)
    whole, calls = Cosmos3Encoder.encode, []

    def interrupted(encoder: Cosmos3Encoder, sample: Any) -> bool:
        calls.append(sample.key)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(encoder, sample)

    monkeypatch.setattr(Cosmos3Encoder, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, run_folder=tmp_path / "run")
    monkeypatch.setattr(Cosmos3Encoder, "encode", whole)
    with caplog.at_level(logging.INFO, "worldsmith"):
        Trainer(config, run_folder=tmp_path / "run").train()
    assert "encoding     4 samples encoded, 2 already cached, 0 skipped" in caplog.text


def test_random_numbers_of_the_first_phase_change_nothing(
    worlds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, first = tmp_path / "plain", tmp_path / "first"
    train(config_of("cosmos3", worlds("cosmos3"), tmp_path / "plain_cache", "never", steps=2), plain)
    encode = Cosmos3Encoder.encode

    def drawn(encoder: Cosmos3Encoder, sample: Any) -> bool:
        torch.rand(3), np.random.rand(3), random.random()
        return encode(encoder, sample)

    monkeypatch.setattr(Cosmos3Encoder, "encode", drawn)
    train(config_of("cosmos3", worlds("cosmos3"), tmp_path / "cache", "always", steps=2), first)
    found, expected = (tiny_runs.read_checkpoint(run / "checkpoints/iter_000000002") for run in (first, plain))
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []


def test_what_a_later_epoch_needs_is_logged_once_and_counted(
    worlds: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Random frames of clips: a later epoch has others, and the VAE is loaded for them. `encode --passes` avoids it."""
    config = config_of("wan", worlds("wan"), tmp_path / "cache", "always")
    dataset = config.dataloader_train.dataset
    dataset.num_video_frames, dataset.frame_selection_mode = 1, "random"
    found = train(config, tmp_path / "run")
    late = found["counts"]["cache_late"]
    assert late > 1
    assert caplog.text.count("a clip is encoded next to the network") == 1
    assert found["beside"]["before the network"] == set()
    assert "AutoencoderKLWan" in found["beside"]["at the end"]
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["loaded"]["cache_late"] == late
    count = len(files_of(tmp_path / "cache"))
    run = Loaded(resolve(config_of("wan", worlds("wan"), tmp_path / "cache", "always")))
    run.tree.dataloader_train.dataset = dataset
    Encode.Config(passes=4).build(run=run).run()
    assert len(files_of(tmp_path / "cache")) > count
    caplog.clear()
    again = train(config, tmp_path / "again")
    assert again["counts"]["cache_late"] == 0
    assert set().union(*again["beside"].values()) == set()
    assert again["losses"] == found["losses"]


def test_runs_that_cannot_encode_first_are_refused(worlds: Any, tmp_path: Path) -> None:
    config = config_of("cosmos3", worlds("cosmos3"), tmp_path / "cache", "always")
    config.dataloader_val = copy.deepcopy(config.dataloader_train)
    config.dataloader_val.latent_cache, config.trainer.run_validation = "", True
    with pytest.raises(WrongValueError, match=r"dataloader_val\.latent_cache is '', so validations encode"):
        config.check()
    config.dataloader_train.latent_cache = ""
    with pytest.raises(WrongValueError, match=r"dataloader_train\.latent_cache is ''.*set it to a folder"):
        config.check()
    reasoner = reasoner_runs.reasoner_config(reasoner_runs.make_world(tmp_path / "reasoner", samples=1))
    reasoner.trainer.encode_first = "always"
    with pytest.raises(WrongValueError, match="have no latent cache"):
        reasoner.check()
    config = config_of("cosmos3", worlds("cosmos3"), tmp_path / "file" / "cache", "always")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"1 encoded samples cannot be written to .*file/cache"):
        Trainer(config, run_folder=tmp_path / "run")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_size_of_the_encoders_is_known_before_they_are_loaded(family: str, worlds: Any, tmp_path: Path) -> None:
    config = config_of(family, worlds(family), tmp_path / "cache", "auto")
    stated = encoder_bytes(task_of_run(config))
    task = task_of_run(config)
    task.model.device = torch.device("cpu")
    task.dummy_data.load_encoders()
    assert stated == sum(tensor.nbytes for tensor in task.dummy_data.encoder_tensors())
    assert stated > 0


def task_of_run(config: Any) -> Any:
    model = config.model.config.build(device="meta")
    return task_of(config.model.name)(model=model, objective=config.objective, data=config.dataloader_train)


def test_auto_on_a_gpu_depends_on_the_memory_that_the_training_state_leaves(
    worlds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, gpu = config_of("wan", worlds("wan"), tmp_path / "cache", "auto"), World(device="cuda:0")
    assert not needs_encoding_first(config, World())
    task = task_of_run(config)
    build_optimizer(config, task.model.network)
    limit = run_states(config, task.model, 1).total + 4 * encoder_bytes(task_of_run(config))
    for free, first in ((limit - 1, True), (limit, False)):
        monkeypatch.setattr(preflight, "free_memory", lambda device, free=free: free)
        assert needs_encoding_first(config, gpu) is first
    assert caplog.text == ""
    monkeypatch.setattr(preflight, "free_memory", lambda device: limit - 1)
    monkeypatch.setattr(DummyPipelineClips, "load_encoders", lambda self: None)
    assert not needs_encoding_first(config, gpu)
    assert "their size is not known; trainer.encode_first = 'always'" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(preflight, "free_memory", lambda device: limit - 1)
    config.dataloader_train.latent_cache = ""
    assert not needs_encoding_first(config, gpu)
    assert "on the GPU: dataloader_train.latent_cache is '', so every step encodes its clips; set it to" in caplog.text
