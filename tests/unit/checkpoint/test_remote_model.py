"""Weights, models and exports in an object store: a real S3 server, against the same folders on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import toy_runs
from generator_run import write_generator_run
from object_store import ObjectStore, connected, serving
from toy_runs import toy_config

from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.checkpoint.run.checkpoint_store import upload_checkpoints
from worldsmith.checkpoint.sources.remote_model import fetch_model, full_address, in_store, pinned
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.files.remote import RemoteError, cache_folder
from worldsmith.files.remote_folder import download_files, list_remote, read_remote_text, remove_remote
from worldsmith.training.trainer import Trainer

pytest.importorskip("s3fs")
pytest.importorskip("moto")

RUN = "s3://bucket/runs/run"


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with serving() as store:
        yield store


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    with connected(server, monkeypatch, tmp_path / "cache") as store:
        yield store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generator_run(tmp_path_factory.mktemp("run"))


def upload(run: Path, address: str = RUN) -> None:
    upload_checkpoints(address, run, ["iter_000000004"], None, None)


def same_files(ours: Path, theirs: Path, *, but: tuple[str, ...] = ("lineage.json",)) -> bool:
    def contents(folder: Path) -> dict[str, bytes]:
        files = [path for path in folder.rglob("*") if path.is_file() and path.name not in but]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return contents(ours) == contents(theirs) != {}


def test_names_of_models_in_a_store() -> None:
    assert full_address("s3:/b/x/") == full_address("s3://b/x") == "s3://b/x"
    assert full_address("file:///x") == "file:///x"
    assert [in_store(name) for name in ("s3://b", "gs:/b", "hf://a/b", "hf:/a/b", "a/b", "/x", "file:///x", "")] == [
        True, True, False, False, False, False, False, False,
    ]  # fmt: skip


def test_a_run_in_a_store_is_exported_as_the_one_on_disk(
    run: Path, store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tenth request fails and bodies are cut off; only the weights are downloaded, and only once."""
    upload(run)
    store.fail(every=10, cut=7)
    assert main(["export", RUN, "--format", "native", "-o", str(tmp_path / "ours/export")]) == 0
    store.fail()
    assert main(["export", str(run), "--format", "native", "-o", str(tmp_path / "theirs/export")]) == 0
    assert same_files(tmp_path / "ours/export", tmp_path / "theirs/export")
    store.requests()
    found = find_model(f"{RUN}/checkpoints/iter_000000004")
    assert found.iteration == 4
    assert not [request for request in store.requests() if "GET" in request and ".distcp" in request]
    assert not (found.folder / "optim").exists()
    capsys.readouterr()
    assert main(["export", RUN, "--format", "native"]) == 2
    assert "is not on this machine: set the output folder with -o" in capsys.readouterr().err


def test_an_export_is_uploaded_and_read_again(
    run: Path, store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "s3://bucket/exports/one"
    words = ["export", str(run), "--format", "native", "-o"]
    assert main([*words, address]) == 0
    assert f": {address} (" in capsys.readouterr().out
    assert main([*words, str(tmp_path / "one")]) == 0
    assert same_files(fetch_model(address, field="model"), tmp_path / "one")
    ours, theirs = load_model(address).network.state_dict(), load_model(tmp_path / "one").network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not list(cache_folder("exports").glob("*/*"))
    assert main([*words, address, "--dtype", "float32"]) == 2
    assert "already has an export: replace it with --force" in capsys.readouterr().err
    store.put("exports/one/other.txt", b"not of the export")
    assert main([*words, address, "--dtype", "float32", "--force"]) == 2
    assert "it contains other files: other.txt. Move these files first" in capsys.readouterr().err
    assert json.loads(read_remote_text(f"{address}/worldsmith.json"))["dtype"] == "bfloat16"
    remove_remote(address, ["other.txt"])
    assert main([*words, address, "--dtype", "float32", "--force"]) == 0
    assert json.loads(read_remote_text(f"{address}/worldsmith.json"))["dtype"] == "float32"
    store.fail(denied="denied", writes=True, only_writes=True)
    assert main([*words, "s3://bucket/denied/x"]) == 2
    assert "denies access" in capsys.readouterr().err
    assert not list(cache_folder("exports").glob("*/*")), "it was not exported in vain"


def test_an_export_overwrites_no_other_files_in_a_store(
    run: Path, store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["export", str(run), "--format", "native", "-o"]
    address = store.put("mine/config.json", b"of someone").rpartition("/")[0]
    for force in ([], ["--force"]):
        assert main([*words, address, *force]) == 2
        assert "it contains other files: config.json. Move these files first" in capsys.readouterr().err
    assert read_remote_text(f"{address}/config.json") == "of someone"
    for address in ("hf://org/name", "hf:/org/name", "https://host/name"):
        assert main([*words, address]) == 2
        assert f"-o {address}: expected a path on this machine, or an address such as s3://" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_interrupted_upload_of_an_export_is_repeated(run: Path, store: ObjectStore) -> None:
    words = ["export", str(run), "--format", "native", "-o", "s3://bucket/again/one"]
    store.fail(denied="one/worldsmith.json", writes=True, only_writes=True)
    assert main(words) != 0
    assert "config.json" in list_remote("s3://bucket/again/one")
    store.fail()
    assert main(words) == 0
    assert "worldsmith.json" in list_remote("s3://bucket/again/one")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


def test_a_run_starts_from_weights_in_a_store_as_from_those_on_disk(
    world: Path, store: ObjectStore, tmp_path: Path
) -> None:
    Trainer(toy_config(world, steps=4), run_folder=tmp_path / "first/run").train()
    upload(tmp_path / "first/run", "s3://bucket/first/run")
    config = toy_config(world, steps=2)
    for name, place in (("near", str(tmp_path / "first/run")), ("far", "s3://bucket/first/run")):
        config.checkpoint.load_path = place
        Trainer(config, run_folder=tmp_path / name).train()
    toy_runs.require_same_end(tmp_path / "far", tmp_path / "near", step=2)
    report = json.loads((tmp_path / "far/load_report.json").read_text())
    assert report["loaded"]
    assert sorted(path.name for path in Path(report["folder"]).parent.iterdir() if path.is_dir()) == ["model"]


def test_weights_that_cannot_be_read_are_reported_before_the_start(
    world: Path, run: Path, store: ObjectStore, tmp_path: Path
) -> None:
    upload(run, "s3://bucket/broken/run")
    remove_remote("s3://bucket/broken/run/checkpoints/iter_000000004", ["manifest.json"])
    store.put("secret/config.json", b"{}")
    store.fail(denied="secret")
    for place, problem in {
        "s3://bucket/absent": "the store has no such file or folder",
        "s3://absent/x": "the store has no such file or folder",
        "s3://bucket/secret": "denies access",
        "s3://bucket/broken/run": "the store has no complete checkpoint there",
    }.items():
        config = toy_config(world)
        config.checkpoint.load_path = place
        with pytest.raises(UserError, match=rf"(?s)checkpoint.*{place}.*{problem}"):
            Trainer(config, run_folder=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    config.checkpoint.load_training_state = True
    with pytest.raises(UserError, match="only the weights are loaded"):
        Trainer(config, run_folder=tmp_path / "run")


def test_one_process_downloads_and_a_replaced_file_is_downloaded_again(
    run: Path, store: ObjectStore, tmp_path: Path
) -> None:
    store.put_folder(run / "checkpoints/iter_000000004/model", "plain")
    store.fail(slow=0.2)
    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(lambda _: fetch_model("s3://bucket/plain", field="model"), range(3)))
    assert len(found) == 1
    gets = [request for request in store.requests() if request.startswith("GET /bucket/plain/")]
    assert len(gets) == len(set(gets)) == len(list_remote("s3://bucket/plain"))
    store.fail()
    store.put("plain/more.json", b"{}")
    assert fetch_model("s3://bucket/plain", field="model", download=False) is None
    assert (fetch_model("s3://bucket/plain", field="model") / "more.json").is_file()
    assert fetch_model("s3://bucket/plain/more.json", field="model").read_bytes() == b"{}"
    store.put("plain/more.json", b"[]")
    assert (fetch_model("s3://bucket/plain", field="model") / "more.json").read_bytes() == b"[]"


def test_a_model_larger_than_the_free_disk_space_is_not_downloaded(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly as large as the free space, it is."""
    store.put("big/weights.safetensors", bytes(3 * 2**20))
    store.put("big/config.json", b"{}")
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=3 * 2**20 + 1))
    message = rf"model s3://bucket/big: expected 3.0 MiB free in {cache_folder('models')}, found 3.0 MiB.*XDG_"
    with pytest.raises(UserError, match=message):
        fetch_model("s3://bucket/big", field="model")
    assert not [request for request in store.requests() if request.startswith("GET /bucket/big/")]
    assert not [path for path in cache_folder("models").rglob("*") if path.suffix in (".json", ".safetensors")]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=3 * 2**20 + 2))
    assert (fetch_model("s3://bucket/big", field="model") / "config.json").read_bytes() == b"{}"


def test_a_run_is_pinned_to_its_newest_or_best_checkpoint(run: Path, store: ObjectStore) -> None:
    upload(run, "s3://bucket/pin/run")
    store.put("pin/run/checkpoints/best_checkpoint.txt", b"iter_000000002\n")
    assert pinned("s3:/bucket/pin/run") == "s3://bucket/pin/run/checkpoints/iter_000000004"
    assert pinned("s3://bucket/pin/run/checkpoints/best") == "s3://bucket/pin/run/checkpoints/iter_000000002"
    assert pinned("s3://bucket/pin/run/checkpoints/") == "s3://bucket/pin/run/checkpoints/iter_000000004"
    assert pinned("s3://bucket/no-run/checkpoints") == "s3://bucket/no-run/checkpoints"
    assert pinned(str(run)) == str(run)


def test_downloaded_files_must_have_their_checksums_and_be_in_their_folder(store: ObjectStore, tmp_path: Path) -> None:
    store.put("sums/x", b"abc")
    download_files("s3://bucket/sums", tmp_path, {"x": [3, 891568578]})
    with pytest.raises(RemoteError, match=r"s3://bucket/sums/x .*expected \[size, CRC-32\] = \[3, 1\]"):
        download_files("s3://bucket/sums", tmp_path, {"x": [3, 1]})
    with pytest.raises(OSError, match="outside of its folder"):
        download_files("s3://bucket/sums", tmp_path, {"../x": [1]})


def test_a_file_that_changes_during_its_upload_is_an_error(run: Path, store: ObjectStore, tmp_path: Path) -> None:
    """The checksums of the manifest are those of the bytes that are uploaded, and the manifest is not uploaded."""
    shutil.copytree(run, tmp_path / "run")
    (file,) = (tmp_path / "run/checkpoints/iter_000000004/model").glob("*.distcp")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(OSError, match="has changed since it was saved"):
        upload(tmp_path / "run", "s3://bucket/changed/run")
    assert not [name for name in list_remote("s3://bucket/changed/run") if name.endswith(".txt")]


def test_an_etag_that_is_no_md5_is_replaced_by_reading_the_file_back(
    run: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with encryption by KMS: the upload is accepted if the content is the same, and refused if it is not."""
    from worldsmith.files import remote_folder

    monkeypatch.setattr(remote_folder, "summarize_upload", lambda path: (3, 891568578, "not", "the MD5"))
    (tmp_path / "x").write_bytes(b"abc")
    remote_folder.upload_files(tmp_path, ["x"], "s3://bucket/kms")
    monkeypatch.setattr(remote_folder, "summarize_upload", lambda path: (3, 1, "not", "the MD5"))
    with pytest.raises(RemoteError, match="differs from the uploaded file"):
        remote_folder.upload_files(tmp_path, ["x"], "s3://bucket/kms")
