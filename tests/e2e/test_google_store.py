"""Clips, checkpoints and exports in gs://: gcsfs and a real server, against the same runs on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_runs
import toy_runs
from generator_run import write_generator_run
from object_store import connected, serving
from tiny_runs import read_losses, tiny_config
from toy_runs import require_same_end, toy_config

from worldsmith.checkpoint.formats.find_model import load_model
from worldsmith.checkpoint.run.checkpoint_store import newest_stored
from worldsmith.cli.main import main
from worldsmith.files import remote
from worldsmith.files.remote_folder import list_remote, remote_crc, upload_files
from worldsmith.training.trainer import Outcome, Trainer

pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")
from google_store import MEDIA, GoogleStore, use_plain_gcsfs

MIB = 2**20


@pytest.fixture(scope="module")
def server() -> Iterator[GoogleStore]:
    with serving(GoogleStore) as store:
        yield store


@pytest.fixture
def store(server: GoogleStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GoogleStore]:
    use_plain_gcsfs(monkeypatch)
    with connected(server, monkeypatch, tmp_path / "cache") as store:
        yield store


def downloads(store: GoogleStore, folder: str) -> list[str]:
    return [request for request in store.requests() if request.startswith(f"GET {MEDIA}{folder}/")]


def test_a_run_on_clips_in_google_storage_equals_the_one_on_disk(store: GoogleStore, tmp_path: Path) -> None:
    """Some requests fail, and bodies are cut off; each clip is fetched once for all epochs and workers."""
    world = tiny_runs.make_world(tmp_path / "world")
    assert Trainer(tiny_config(world, steps=6, cache=False), run_folder=tmp_path / "near").train() is Outcome.FINISHED
    far = tiny_config(world, steps=6, cache=False, workers=2)
    far.dataloader_train.dataset.path = store.put_folder(world / "data", "clips")
    store.fail(every=20, cut=7)
    Trainer(far, run_folder=tmp_path / "far").train()
    assert read_losses(tmp_path / "far") == read_losses(tmp_path / "near")
    assert not (tmp_path / "far/quarantine.jsonl").exists()
    assert downloads(store, "clips") != []
    store.fail()
    remote.remote_facts.cache_clear()
    Trainer(far, run_folder=tmp_path / "again").train()
    assert read_losses(tmp_path / "again") == read_losses(tmp_path / "near")
    assert downloads(store, "clips") == []


@pytest.mark.slow
def test_a_run_resumes_on_another_machine_as_if_undisturbed(
    store: GoogleStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Uploads are compared by MD5, and read back only where the store states none; failed requests are repeated."""
    world = toy_runs.make_world(tmp_path / "world")
    Trainer(toy_config(world, save_iter=2), run_folder=tmp_path / "undisturbed").train()
    config = toy_config(world, save_iter=2)
    config.checkpoint.upload_to, config.checkpoint.keep_latest_k = "gs://bucket/runs", 2
    config.trainer.max_iter = 4
    store.fail(every=30, composite="iter_000000002/model")
    Trainer(config, run_folder=tmp_path / "one/run").train()
    read_back = downloads(store, "runs/tests/tiny/run/checkpoints")
    weights = {name.rpartition("/checkpoints/")[2] for name in read_back if ".distcp" in name}
    assert weights == {"iter_000000002/model/__0_0.distcp"}
    shutil.rmtree(tmp_path / "one")
    store.fail(cut=10)
    caplog.set_level("INFO")
    config.trainer.max_iter = 8
    trainer = Trainer(config, run_folder=tmp_path / "two/run")
    assert trainer.iteration == 4
    assert trainer.train() is Outcome.FINISHED
    assert "iter_000000004 was downloaded" in caplog.text
    assert trainer.uploads.failed == 0
    require_same_end(tmp_path / "two/run", tmp_path / "undisturbed")
    address = "gs://bucket/runs/tests/tiny/run"
    assert newest_stored(address) == "iter_000000008"
    stored = {name.split("/")[0] for name in list_remote(f"{address}/checkpoints") if "/" in name}
    assert stored == {"iter_000000006", "iter_000000008"}


def test_a_large_upload_is_verified(store: GoogleStore, tmp_path: Path) -> None:
    """In several parts; a file that is stored is not uploaded again, and one that the store has damaged is an error."""
    for name, size in (("large", 120 * MIB), ("other", 6 * MIB)):
        (tmp_path / name).write_bytes(os.urandom(MIB) * (size // MIB))
    for uploads in (True, False):
        store.requests()
        upload_files(tmp_path, ["large"], "gs://bucket/large")
        assert any(request.startswith("POST /upload") for request in store.requests()) is uploads
    assert remote_crc("gs://bucket/large/large") == remote_crc(str(tmp_path / "large"))
    store.fail(damaged="other")
    with pytest.raises(remote.RemoteError, match="gs://bucket/large/other differs from the uploaded file"):
        upload_files(tmp_path, ["other"], "gs://bucket/large")


def test_an_export_is_uploaded_and_loaded_again(store: GoogleStore, tmp_path: Path) -> None:
    run = write_generator_run(tmp_path / "run")
    words = ["export", str(run), "--format", "native", "-o"]
    assert main([*words, "gs://bucket/exports/one"]) == 0
    assert main([*words, str(tmp_path / "one")]) == 0
    ours, theirs = (load_model(place).network.state_dict() for place in ("gs://bucket/exports/one", tmp_path / "one"))
    assert ours.keys() == theirs.keys()
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)


def test_a_denied_access_names_the_credentials(
    store: GoogleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the service account and without a permission, and without the service account."""
    store.put("private/video_dataset_file.jsonl", b"{}")
    store.fail(denied="private")
    for _ in range(2):
        assert main(["check", "gs://bucket/private"]) == 2
        printed = "".join(capsys.readouterr())
        assert "the storage denies access" in printed
        assert "GOOGLE_APPLICATION_CREDENTIALS" in printed
        store.fail()
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        remote.open_system("gs://bucket")[0].clear_instance_cache()
