"""Captions are read once: a run over caches needs no encoder, learns the same bits, and gives memory back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_cogvideox
import torch

from worldsmith.config.tree.config_draft import Loaded
from worldsmith.data.latent_cache import TextCache
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder, UMT5TextEncoder
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE
from worldsmith.tasks import clip_task
from worldsmith.tools.encode.encode import Encode
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_cogvideox.make_world(tmp_path_factory.mktemp("texts"))


def config_of(world: Path, cache: str, dropped: str) -> Any:
    config = tiny_cogvideox.tiny_config(world, steps=4)
    config.dataloader_train.latent_cache = cache
    config.dataloader_train.dataset.cfg_dropout_rate = 0.3
    config.model.config.text_encoder.dropped_captions = dropped
    return config


def losses(config: Any, folder: Path) -> list[float]:
    trainer = Trainer(config, run_folder=folder)
    batches = iter(trainer.state.loader)
    return [trainer.training_step(batches).loss for _ in range(4)]


@pytest.mark.parametrize("dropped", [pytest.param("zeros", marks=pytest.mark.slow), "encoded"])
def test_a_run_over_what_was_encoded_ahead_needs_no_encoder(
    world: Path, tmp_path: Path, dropped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = losses(config_of(world, "", dropped), tmp_path / "plain")
    config = config_of(world, str(tmp_path / "cache"), dropped)
    Encode.Config().build(run=Loaded(config)).run()
    assert list((tmp_path / "cache" / "text").rglob("*.safetensors"))
    for encoder, method in ((T5TextEncoder, "load"), (CogVideoXVAE, "encode")):
        monkeypatch.setattr(encoder, method, lambda *_: pytest.fail("an encoder was needed"))
    assert losses(config, tmp_path / "cached") == plain


def test_a_run_over_a_complete_cache_holds_no_encoder_from_its_first_step_on(world: Path, tmp_path: Path) -> None:
    config = config_of(world, str(tmp_path / "cache"), "encoded")
    Encode.Config().build(run=Loaded(config)).run()
    trainer = Trainer(config, run_folder=tmp_path / "run")
    batches, held = iter(trainer.state.loader), []
    for _ in range(3):
        held += trainer.task.dummy_data.encoder_tensors()
        trainer.training_step(batches)
    assert held == []
    assert trainer.model.vae.fingerprint == CogVideoXVAE(config.model.config.tokenizer).fingerprint


def test_clips_are_encoded_ahead_without_the_encoder_of_captions_and_these_without_the_vae(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, load, done = CogVideoXVAE.encode, T5TextEncoder.load, list[str]()
    action = Encode.Config().build(run=Loaded(config_of(world, str(tmp_path / "cache"), "encoded")))
    made: dict[str, Any] = {}
    plain = action.encoders
    monkeypatch.setattr(action, "encoders", lambda w: made.update(plain(w)) or dict(made))

    def held(name: str) -> bool:
        part = vars(made["train"].task.model).get(name)
        return bool(part is not None and part.modules)

    def encode_clip(self: Any, video: Any) -> Any:
        done.append("clip")
        assert not held("text_encoder")
        return encode(self, video)

    def load_encoder(self: Any, device: Any) -> None:
        done.append("captions")
        assert not held("vae")
        load(self, device)

    monkeypatch.setattr(CogVideoXVAE, "encode", encode_clip)
    monkeypatch.setattr(T5TextEncoder, "load", load_encoder)
    facts = action.run().facts
    assert done == ["clip"] * facts["encoded"] + ["captions"]
    assert list((tmp_path / "cache" / "text").rglob("*.safetensors"))


def test_parts_that_are_not_needed_are_freed_and_come_back(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clip_task, "IDLE_STEPS", 2)
    config = config_of(world, str(tmp_path / "cache"), "zeros")
    Encode.Config().build(run=Loaded(config)).run()
    trainer = Trainer(config, run_folder=tmp_path / "run")
    model: Any = trainer.state.model
    model.text_encoder.load("cpu")
    assert model.vae.model is not None
    batches = iter(trainer.state.loader)
    caplog.set_level("INFO", "worldsmith")
    for _ in range(4):
        trainer.training_step(batches)
    assert model.text_encoder.encoder is None
    assert "model" not in vars(model.vae)
    assert "the VAE was not used for 2 batches" in caplog.text
    assert "the text encoder was not used for 2 batches" in caplog.text
    assert model.read([[5, 1]]).shape == (1, 16, 32)
    assert model.text_encoder.encoder is not None
    assert model.encode(torch.zeros(3, 1, 64, 64, dtype=torch.uint8)).shape == (8, 1, 8, 8)


def test_each_thing_that_changes_states_changes_the_key(world: Path, tmp_path: Path) -> None:
    cache, parts = TextCache(str(tmp_path)), world / "pipeline"
    settings: dict[str, Any] = {"path": str(parts), "max_length": 16, "precision": "float32"}
    encoder = T5TextEncoder(T5TextEncoder.Config(**settings))
    others = [
        T5TextEncoder(T5TextEncoder.Config(**{**settings, "precision": "bfloat16"})),
        T5TextEncoder(T5TextEncoder.Config(**{**settings, "max_length": 8})),
        UMT5TextEncoder(UMT5TextEncoder.Config(**settings)),
    ]
    keys = [cache.key(e.fingerprint, e.padded([5, 1]), 2) for e in (encoder, *others)]
    keys += [cache.key(encoder.fingerprint, encoder.padded([6, 1]), 2)]
    keys += [cache.key(encoder.fingerprint, encoder.padded([5, 1]), 3)]
    assert len(set(keys)) == 6
    changed = tmp_path / "other"
    tiny_cogvideox.make_parts(changed)
    (changed / "text_encoder" / "config.json").write_text(
        (changed / "text_encoder" / "config.json").read_text().replace("1e-06", "1e-05")
    )
    assert T5TextEncoder(T5TextEncoder.Config(**{**settings, "path": str(changed)})).fingerprint != encoder.fingerprint


def test_states_are_those_of_the_caption_alone_and_come_back_as_they_were(world: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"path": str(world / "pipeline"), "max_length": 16, "precision": "bfloat16"}
    encoder, cache = UMT5TextEncoder(UMT5TextEncoder.Config(**settings)), TextCache(str(tmp_path))
    together = encoder.states([[5, 9, 1], [7, 1]], "cpu", cache)
    assert torch.equal(encoder.states([[7, 1]], "cpu")[0], together[1])
    assert not together[1][2:].any()
    encoder.release()
    encoder.load = lambda *_: pytest.fail("the cache has them")  # type: ignore[method-assign]
    again = encoder.states([[5, 9, 1], [7, 1]], "cpu", cache)
    assert again[0].dtype == torch.bfloat16
    assert torch.equal(torch.stack(again), torch.stack(together))
