"""Files of an object store through the cache: a real S3 server that fails in all the ways of a network."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from object_store import CREDENTIALS, ObjectStore, connected, serving

from worldsmith.checkpoint.run.checkpoint_store import remove_stored
from worldsmith.files import remote
from worldsmith.files.errors import UserError
from worldsmith.files.locks import lock
from worldsmith.files.remote import (
    RemoteError,
    cache_folder,
    file_exists,
    is_remote,
    join_address,
    open_cached,
    read_remote,
)
from worldsmith.files.remote_folder import fetch_folder, list_remote
from worldsmith.tools.infer.infer import media_of

pytest.importorskip("s3fs")
pytest.importorskip("moto")


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with serving() as store:
        yield store


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    with connected(server, monkeypatch, tmp_path / "cache") as store:
        yield store


def gets(store: ObjectStore) -> int:
    return sum(request.startswith("GET") for request in store.requests())


def stored() -> list[Path]:
    return [path for path in cache_folder().glob("*/*") if path.is_file()]


def test_addresses_are_joined_as_paths_are() -> None:
    assert join_address("s3://b/x", "v/a.mp4") == "s3://b/x/v/a.mp4"
    assert join_address("s3://b/x", "../v/a.mp4") == "s3://b/v/a.mp4"
    assert join_address("s3://b/x", "gs://c/a.mp4") == "gs://c/a.mp4"
    assert join_address("s3://b/x", "/data/a.mp4") == join_address("/x", "file:///data/a.mp4") == "/data/a.mp4"
    assert join_address("file:///x", "a.mp4") == "/x/a.mp4"
    assert [is_remote(path) for path in ("s3://b/x", "file:///x", "/x", "x")] == [True, False, False, False]


def test_a_file_is_requested_once_and_again_if_it_was_replaced(store: ObjectStore) -> None:
    address = store.put("once/a.mp4", bytes(range(256)) * 50)
    assert read_remote(address) == bytes(range(256)) * 50
    assert gets(store) == 1
    assert read_remote(address, 5, 3) == b"\5\6\7"
    assert read_remote(address, 12790) == bytes(range(246, 256))
    assert store.requests() == [], "parts are read from the cached file"
    remote.remote_facts.cache_clear()  # as another process
    assert len(read_remote(address)) == 12800
    assert gets(store) == 0
    store.put("once/a.mp4", b"other")
    remote.remote_facts.cache_clear()
    assert read_remote(address) == b"other"


def test_parts_are_cached_and_end_with_the_file(store: ObjectStore) -> None:
    address = store.put("parts.tar", b"0123456789")
    assert [read_remote(address, 2, 3) for _ in range(2)] == [b"234", b"234"]
    assert gets(store) == 1
    assert read_remote(address, 8, 5) == b"89"
    assert read_remote(address, 20, 5) == read_remote(store.put("empty", b"")) == b""


@pytest.mark.parametrize("faults", [{"every": 3}, {"cut": 2}, {"slow": 0.05}])
def test_a_network_that_fails_now_and_then_costs_only_time(store: ObjectStore, faults: dict[str, float]) -> None:
    contents = {store.put(f"some/{n}", os.urandom(5000)): n for n in range(6)}
    store.fail()
    sound = {address: read_remote(address) for address in contents}
    for path in stored():
        path.unlink()
    remote.remote_facts.cache_clear()
    store.fail(**faults)
    assert {address: read_remote(address) for address in contents} == sound


def test_a_storage_that_fails_for_good_is_an_error_after_four_attempts(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = store.put("never", b"1234")
    remote.remote_facts(address)
    store.fail(cut=1)
    with pytest.raises(RemoteError, match=r"s3://bucket/never cannot be read: .*\(4 attempts\)"):
        read_remote(address)
    assert stored() == []
    assert gets(store) >= 4


def test_denied_and_missing_files_are_told_apart_at_once(store: ObjectStore) -> None:
    store.put("private/a", b"1")
    store.put("public/a", b"1")
    store.fail(denied="private")
    with pytest.raises(RemoteError, match=r"s3://bucket/private/a: the storage denies access.*credentials") as found:
        read_remote("s3://bucket/private/a")
    assert len(store.requests()) == 1
    assert not any(secret in str(found.value) for secret in CREDENTIALS.values())
    with pytest.raises(FileNotFoundError, match="s3://bucket/absent does not exist"):
        read_remote("s3://bucket/absent")
    with pytest.raises(FileNotFoundError, match="s3://bucket/public is not a file"):
        read_remote("s3://bucket/public")
    assert not file_exists("s3://bucket/absent")
    with pytest.raises(RemoteError, match="Protocol not known"):
        read_remote("nowhere://bucket/a")


def test_addresses_in_messages_have_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("GET https://me:pass@host/a?X-Amz-Signature=abc failed")

    monkeypatch.setattr(remote, "PAUSE", 0)
    with pytest.raises(RemoteError) as found:
        remote.retry(fails, "https://me:pass@host/a?X-Amz-Signature=abc")
    assert "https://host/a cannot be read: OSError: GET https://host/a failed" in str(found.value)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"!", lambda data: b""])
def test_a_damaged_cached_file_is_fetched_again(store: ObjectStore, damage: object) -> None:
    address = store.put("damage", b"some content")
    read_remote(address)
    (entry,) = stored()
    entry.write_bytes(damage(entry.read_bytes()))
    store.requests()
    assert [read_remote(address) for _ in range(2)] == [b"some content"] * 2
    assert gets(store) == 1


def test_the_cache_keeps_its_size_and_the_files_that_were_used_last(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "_logged", [])
    monkeypatch.setenv(remote.CACHE_SIZE, str(10_000 / 2**30))
    first, *others = [store.put(f"bounded/{n}", os.urandom(1500)) for n in range(20)]
    for number, address in enumerate(others):
        read_remote(first)
        read_remote(address)
        for path in stored():  # file systems may have coarse clocks
            os.utime(path, ns=(path.stat().st_mtime_ns - 10**9,) * 2)
        assert sum(path.stat().st_size for path in stored()) <= 10_000
        assert len(stored()) == min(number + 2, 6) or number > 4
    store.requests()
    read_remote(first)
    read_remote(others[-1])
    assert gets(store) == 0
    read_remote(others[0])
    assert gets(store) == 1
    assert caplog.text.count("cache of remote files is full") == 1
    assert "WORLDSMITH_CACHE_GIB sets its size" in caplog.text


def test_no_cache_and_a_size_that_is_no_number(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    address = store.put("uncached", b"1")
    monkeypatch.setenv(remote.CACHE_SIZE, "0")
    assert [read_remote(address) for _ in range(2)] == [b"1", b"1"]
    assert gets(store) == 2
    for text in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv(remote.CACHE_SIZE, text)
        with pytest.raises(UserError, match=r"WORLDSMITH_CACHE_GIB is .*expected the max size"):
            read_remote(address)


def test_a_cache_that_cannot_be_written_is_logged_once(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(remote, "_logged", [])
    for number in range(3):
        assert read_remote(store.put(f"unwritten/{number}", b"1")) == b"1"
    assert caplog.text.count("cannot be written") == 1


def read_all(addresses: list[str]) -> list[bytes]:
    return [read_remote(address) for _ in range(3) for address in addresses]


def test_two_processes_share_a_small_cache(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removes files that the other one is about to read; a forked process connects again."""
    monkeypatch.setenv(remote.CACHE_SIZE, str(8_000 / 2**30))
    contents = {f"s3://bucket/shared/{n}": os.urandom(1500) for n in range(10)}
    for address, content in contents.items():
        store.put(address.removeprefix("s3://bucket/"), content)
    addresses = list(contents)
    read_remote(addresses[0])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for found in pool.map(read_all, [addresses, addresses[::-1]], chunksize=1):
            assert {*found} == {*contents.values()}
    assert sum(path.stat().st_size for path in stored()) <= 8_000
    assert not list(cache_folder().rglob(".saving_*"))


def test_of_several_processes_that_need_a_file_one_fetches_it(store: ObjectStore) -> None:
    address = store.put("large", os.urandom(5000))
    store.fail(slow=0.2)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert len({data for found in pool.map(read_all, [[address]] * 4, chunksize=1) for data in found}) == 1
    assert gets(store) == 1


def test_a_verified_file_is_read_in_place(store: ObjectStore) -> None:
    address = store.put("video", bytes(range(100)))
    assert open_cached(address) is None
    read_remote(address)
    (entry,) = stored()
    with open_cached(address) as file:
        assert (file.tell(), file.read(3), file.tell()) == (0, b"\0\1\2", 3)
        assert [file.seek(-2, os.SEEK_END), file.seek(-8, os.SEEK_CUR), file.seek(5)] == [98, 90, 5]
        entry.unlink()
        assert file.read() == bytes(range(5, 100)), "also if the cache is trimmed meanwhile"
    assert open_cached(address) is None
    entry.write_bytes(b"damaged by someone")
    remote._verified.clear()  # as another process
    assert open_cached(address) is None


def test_parts_of_a_server_without_range_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectStore
) -> None:
    """It sends the complete file, which is fetched once for all parts."""
    pytest.importorskip("aiohttp")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/a.jsonl").write_bytes(bytes(range(100)))
    asked: list[str] = []

    class Server(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(tmp_path / "site"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/a.jsonl"
        assert [list(read_remote(address, start, 40)) for start in (0, 40, 80)] == [
            list(range(start, min(start + 40, 100))) for start in (0, 40, 80)
        ]
        server.shutdown()
    assert asked.count("/a.jsonl") <= 2, "the first request may be for the size"


class Pages(SimpleHTTPRequestHandler):
    """Serves `folder` without ETags; the first requests are answered with the items of `statuses`."""

    folder = Path()
    statuses: list[int] = []
    sends_size = True

    def __init__(self, *words: Any) -> None:
        super().__init__(*words, directory=str(self.folder))

    def send_head(self) -> Any:
        if self.statuses:
            return self.send_error(self.statuses.pop(0))
        return super().send_head()

    def send_header(self, name: str, value: str) -> None:
        if name != "Content-Length" or self.sends_size:
            super().send_header(name, value)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a web server that serves `tmp_path / "site"` by `Pages`."""
    pytest.importorskip("aiohttp")
    (tmp_path / "site/sub").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0.02)
    monkeypatch.setattr(Pages, "folder", tmp_path / "site")
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
    remote.remote_facts.cache_clear()


def test_errors_of_a_web_server_are_not_missing_files(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is requested twice in each attempt, by HEAD and by GET."""
    (tmp_path / "site/a.mp4").write_bytes(b"1234")
    for status in (503, 429):
        monkeypatch.setattr(Pages, "statuses", [status] * 4)
        remote.remote_facts.cache_clear()
        assert read_remote(f"{site}/a.mp4") == b"1234"
        assert Pages.statuses == []
    monkeypatch.setattr(Pages, "statuses", [403] * 9)
    with pytest.raises(RemoteError, match=r"b\.mp4: the storage denies access.*credentials"):
        file_exists(f"{site}/b.mp4")
    assert len(Pages.statuses) == 7, "it is not repeated"
    for status in (404, 410):
        monkeypatch.setattr(Pages, "statuses", [status] * 2)
        assert not file_exists(f"{site}/a.mp4")
    for call in (file_exists, list_remote):
        with pytest.raises(RemoteError, match=r"127.0.0.1:9/a.mp4 cannot be read: .*\(4 attempts\)"):
            call("http://127.0.0.1:9/a.mp4")


def test_a_replaced_file_of_a_web_server_without_etags_is_read_again(site: str, tmp_path: Path) -> None:
    for time_changed, content in ((10**9, b"old"), (10**9 + 5, b"new")):
        (tmp_path / "site/a").write_bytes(content)
        os.utime(tmp_path / "site/a", (time_changed,) * 2)
        remote.remote_facts.cache_clear()
        assert read_remote(f"{site}/a") == content


def test_files_and_folders_of_a_web_server_are_listed_with_their_sizes(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.mp4", "sub/b.safetensors", "sub/b.json"):
        (tmp_path / "site" / name).write_bytes(name.encode())
    assert {name: info["size"] for name, info in list_remote(site).items()} == {
        "a.mp4": 5, "sub/b.safetensors": 17, "sub/b.json": 10,
    }  # fmt: skip
    assert media_of(site, "all") == media_of(f"{site}/a.mp4", "all") == [(f"{site}/a.mp4", "video")]
    file = fetch_folder(f"{site}/sub/b.safetensors", field="load_path")
    assert file is not None
    assert sorted(path.name for path in file.parent.iterdir()) == ["b.json", "b.safetensors"]
    folder = fetch_folder(f"{site}/sub", field="load_path")
    assert folder is not None
    assert (folder / "b.json").read_bytes() == b"sub/b.json"
    assert list_remote(f"{site}/absent") == {}
    links = "".join(f'<a href="{name}">x</a>' for name in ("a.mp4", "?C=M;O=A", "gone.mp4"))
    (tmp_path / "site/index.html").write_text(links)
    with pytest.raises(FileNotFoundError, match=r"gone\.mp4 does not exist"):
        list_remote(site)
    (tmp_path / "site/gone.mp4").touch()
    assert sorted(list_remote(site)) == ["a.mp4", "gone.mp4"]
    monkeypatch.setattr(Pages, "sends_size", False)
    assert media_of(site, "video") == [(f"{site}/a.mp4", "video"), (f"{site}/gone.mp4", "video")]
    with pytest.raises(RemoteError, match=r"a\.mp4: expected its size, which the server does not state"):
        fetch_folder(f"{site}/a.mp4", field="load_path")


@pytest.mark.parametrize("recursive", [True, False])
def test_markers_of_empty_folders_are_not_files(store: ObjectStore, tmp_path: Path, recursive: bool) -> None:
    """As the console of S3 creates them."""
    for key in ("marked/", "marked/sub/", "marked/sub/deep/", "only/"):
        store.put(key, b"")
    store.put("marked/a", b"1")
    assert sorted(list_remote("s3://bucket/marked", recursive=recursive)) == ["a"]
    assert list_remote("s3://bucket/only", recursive=recursive) == {}
    folder = fetch_folder("s3://bucket/marked", field="load_path")
    assert folder is not None
    assert [path.name for path in folder.iterdir()] == ["a"]
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        fetch_folder("s3://bucket/only", field="load_path")
    store.put("marked/manifest.json", b"{}")
    remove_stored("s3://bucket/marked")
    remove_stored("s3://bucket/only")
    assert list_remote("s3://bucket/marked") == {}


def test_a_process_that_is_forked_does_not_keep_the_lock(store: ObjectStore) -> None:
    """As a worker that the loader starts while another thread fetches a file."""
    folder = cache_folder() / "aa"
    with remote.locked(folder):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        handle = lock(folder)
        assert handle is not None
        os.close(handle)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
