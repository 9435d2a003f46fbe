"""Training on clips in an object store: a real S3 server that fails now and then, against the same files on disk."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import tiny_runs
from object_store import ObjectStore, connected, serving
from tiny_runs import read_losses, tiny_config

from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import resolve
from worldsmith.data import json_records
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.files import remote
from worldsmith.files.errors import UserError
from worldsmith.tools.check.check import find_dataset
from worldsmith.tools.encode.encode import Encode
from worldsmith.training.trainer import Outcome, Trainer

pytest.importorskip("s3fs")
pytest.importorskip("moto")


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with serving() as store:
        yield store


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: ObjectStore) -> Path:
    world = tiny_runs.make_world(tmp_path_factory.mktemp("world"))
    server.put_folder(world / "data", "clips")
    return world


@pytest.fixture(scope="module")
def losses(world: Path, tmp_path_factory: pytest.TempPathFactory) -> list:
    """Losses of an undisturbed run of six steps on the files on disk."""
    folder = tmp_path_factory.mktemp("near")
    assert Trainer(tiny_config(world, steps=6, cache=False), run_folder=folder).train() is Outcome.FINISHED
    return read_losses(folder)


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    with connected(server, monkeypatch, tmp_path / "cache") as store:
        yield store


def far_config(world: Path, path: str = "s3://bucket/clips", **changes: object) -> Trainer.Config:
    config = tiny_config(world, steps=6, cache=False, **changes)
    config.dataloader_train.dataset.path = path
    return config


def test_a_run_on_a_store_that_fails_now_and_then_equals_the_one_on_disk(
    world: Path, store: ObjectStore, losses: list, tmp_path: Path
) -> None:
    """Every 20th request fails, and every 7th body is cut off; each clip is fetched once for all epochs and workers."""
    store.fail(every=20, cut=7)
    Trainer(far_config(world, workers=2), run_folder=tmp_path / "far").train()
    assert read_losses(tmp_path / "far") == losses
    assert not (tmp_path / "far/quarantine.jsonl").exists()
    store.fail()
    store.requests()
    remote.remote_facts.cache_clear()
    Trainer(far_config(world), run_folder=tmp_path / "again").train()
    assert read_losses(tmp_path / "again") == losses
    assert [request for request in store.requests() if request.startswith("GET /bucket/")] == []


def test_a_resumed_run_equals_the_undisturbed_one(
    world: Path, store: ObjectStore, losses: list, tmp_path: Path
) -> None:
    """Stopped after three steps and resumed on a machine that has no cached files; both data sets count as the same."""
    for steps in (3, 6):
        config = far_config(world, save_iter=3)
        config.trainer.max_iter = steps
        Trainer(config, run_folder=tmp_path / "run").train()
        for entry in remote.cache_folder().glob("*/*"):
            entry.unlink()
        remote.remote_facts.cache_clear()
    assert read_losses(tmp_path / "run") == losses
    near, far = (VideoDataset.Config(path=path).build() for path in (str(world / "data"), "s3://bucket/clips"))
    assert near.fingerprint == far.fingerprint


def test_clips_that_cannot_be_read_are_listed_and_the_rest_trains(
    world: Path, store: ObjectStore, tmp_path: Path
) -> None:
    """A manifest on disk that names clips of the store by their addresses; one is missing, one denied, one cut."""
    lines = [json.loads(line) for line in (world / "data/video_dataset_file.jsonl").read_text().splitlines()]
    clip = (world / "data" / lines[0]["vision_path"]).read_bytes()
    store.put("private/clip.mp4", clip)
    store.put("half.mp4", clip[: len(clip) // 2])
    for line, name in zip(lines, ("absent.mp4", "private/clip.mp4", "half.mp4")):
        line["vision_path"] = name
    manifest = tmp_path / "clips.jsonl"
    manifest.write_text(
        "".join(json.dumps({**line, "vision_path": address_of(line["vision_path"])}) + "\n" for line in lines)
    )
    store.fail(denied="private")
    config = far_config(world, str(manifest))
    config.trainer.max_iter, config.dataloader_train.max_bad_fraction = 3, 1.0
    Trainer(config, run_folder=tmp_path / "run").train()
    assert len(read_losses(tmp_path / "run")) == 3
    quarantined = [json.loads(line) for line in (tmp_path / "run/quarantine.jsonl").read_text().splitlines()]
    found = {entry["path"].rpartition("/")[2]: (entry["reason"], entry["detail"]) for entry in quarantined}
    assert {name: reason for name, (reason, _) in found.items()} == {
        "absent.mp4": "missing_file", "clip.mp4": "unreadable", "half.mp4": "truncated",
    }  # fmt: skip
    assert "s3://bucket/private/clip.mp4: the storage denies access" in found["clip.mp4"][1]
    assert store.environment["AWS_SECRET_ACCESS_KEY"] not in (tmp_path / "run/quarantine.jsonl").read_text()


def address_of(name: str) -> str:
    return f"s3://bucket/{name if '/' not in name or name.startswith('private') else f'clips/{name}'}"


def test_a_data_set_that_cannot_be_reached_is_one_error(store: ObjectStore) -> None:
    def build(path: str) -> VideoDataset:
        return VideoDataset.Config(path=path, min_frames=5).build()

    found = find_dataset("s3://bucket/clips", None)
    assert (type(found[0]), found[0].path) == (VideoDataset.Config, "s3://bucket/clips"), "as `worldsmith check` does"
    with pytest.raises(UserError, match=r"s3://bucket/nothing is neither a run folder nor a Worldsmith dataset"):
        find_dataset("s3://bucket/nothing", None)
    assert build("s3://bucket/clips").fingerprint == build("s3://bucket/clips/video_dataset_file.jsonl").fingerprint
    for path in ("s3://bucket/nothing", "s3://nothing/clips"):
        with pytest.raises(DataError, match=r"s3://.*has no dataset file; expected train/video_dataset_file"):
            build(path)
    with pytest.raises(DataError, match=r"s3://bucket/x\.jsonl does not exist"):
        build("s3://bucket/x.jsonl")
    store.fail(denied="clips")
    for path in ("s3://bucket/clips", "s3://bucket/clips/video_dataset_file.jsonl"):
        with pytest.raises(DataError, match=r"denies access.*credentials"):
            build(path)


@pytest.mark.parametrize("name", ["clips.jsonl", "clips.jsonl.gz"])
def test_a_data_set_file_is_read_in_pieces(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Lines that end in another piece, and a file that ends with a piece; every third request fails."""
    monkeypatch.setattr(remote, "PIECE", 100)
    window = {"start_frame": 0, "end_frame": 8, "caption": "é"}
    lines = [json.dumps({"uuid": f"{i}", "vision_path": f"{i}.mp4", "t2w_windows": [window]}) for i in range(9)]
    text = "\n".join(lines).encode()
    content = text + b" " * (-len(text) % 100)
    near = tmp_path / name
    near.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    address = store.put(f"pieces/{name}", near.read_bytes())
    store.fail(every=3)
    store.requests()
    assert list(json_records.read_lines(address)) == list(json_records.read_lines(near))
    assert len([one for one in store.requests() if one.startswith("GET")]) > 2


def test_latents_are_encoded_into_a_store_and_read_from_it(
    world: Path, store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bytes of a local cache, although every 20th request fails; what is there is not encoded again; a damaged
    object is replaced; a run on another machine has only hits and the losses of a run with a local cache."""

    def config_with(cache: object) -> Trainer.Config:
        config = far_config(world, save_iter=6)
        config.dataloader_train.latent_cache = str(cache)
        return config

    def encode(cache: object) -> tuple[int, int]:
        facts = Encode.Config().build(run=Loaded(resolve(config_with(cache)))).run().facts
        return facts["encoded"], facts["found"]

    def stored() -> dict[str, bytes]:
        system = fsspec.filesystem("s3")
        system.invalidate_cache()
        return {name.rpartition("/")[2]: system.cat_file(name) for name in system.find("bucket/latents")}

    count, _ = encode(tmp_path / "near")
    store.fail(every=20, writes=True)
    assert encode("s3://bucket/latents") == (count, 0)
    assert encode("s3://bucket/latents") == (0, count)
    store.fail()
    near = {path.name: path.read_bytes() for path in (tmp_path / "near").rglob("*.safetensors")}
    assert stored() == near
    name = min(near)
    store.put(f"latents/{name[:2]}/{name}", near[name][:-9])
    shutil.rmtree(remote.cache_folder())
    remote.remote_facts.cache_clear()
    losses = {}
    for cache in (tmp_path / "near", "s3://bucket/latents"):
        folder = tmp_path / f"run{len(losses)}"
        Trainer(config_with(cache), run_folder=folder).train()
        losses[str(cache)] = read_losses(folder)
    assert len({tuple(found) for found in losses.values()}) == 1
    assert [record.message for record in caplog.records if "are damaged" in record.message] != []
    assert stored() == near
    store.fail(denied="latents", writes=True)
    with pytest.raises(UserError, match=r"files cannot be uploaded: s3://bucket/latents/.*denies access"):
        Encode.Config().build(run=Loaded(resolve(config_with("s3://bucket/latents")))).check()
