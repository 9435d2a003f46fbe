"""`worldsmith watch`: what the server gives, what it keeps to itself, and that it follows the run."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from run_folders import add_samples, write_run

from worldsmith.config.errors import UserError
from worldsmith.tools.reports.watch import Handler, PageServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    folder = write_run(tmp_path, steps=30, status={"state": "stopped"})
    add_samples(folder)
    with PageServer(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_it_follows_the_run(server: PageServer) -> None:
    answer, html = get(server, "/")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'"live":true' in html
    before = json.loads(get(server, "/data.json")[1])
    assert before["title"] == "first: stopped, step 30"
    with (server.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31, "loss": 1.0}\n')
    server.good_until = 0.0
    after = json.loads(get(server, "/data.json")[1])
    assert after["title"] == "first: stopped, step 31"
    assert after["charts"][0]["lines"][0]["last"] == [31, 1]
    changed = {name for name in after["hashes"] if after["hashes"][name] != before["hashes"][name]}
    assert "overview" in changed
    assert not {"config", "samples", "data", "messages"} & changed
    assert "step 31" in after["sections"]["overview"]


def test_videos_come_whole_and_in_parts(server: PageServer) -> None:
    file = next(server.folder.glob("EveryNDrawSample/*/*.mp4"))
    content, path = file.read_bytes(), "/EveryNDrawSample/step_000000020/0%20live%20%231.mp4"
    assert path in get(server, "/")[1].decode().replace('src="', 'src="/')  # nothing is embedded here
    answer, found = get(server, path)
    assert (answer.status, answer.headers["Content-Type"], found) == (200, "video/mp4", content)
    for asked, part in (("bytes=2-5", content[2:6]), ("bytes=7-", content[7:]), ("bytes=-3", content[-3:])):
        answer, found = get(server, path, Range=asked)
        assert (answer.status, found) == (206, part)
    assert get(server, path, Range="bytes=9999999-")[0].status == 416
    answer, found = get(server, path, "HEAD")
    assert (answer.headers["Content-Length"], found) == (str(len(content)), b"")


@pytest.mark.parametrize(
    "path",
    [
        "/config.yaml",
        "/metrics.jsonl",
        "/../secret.png",
        "/%2e%2e/secret.png",
        "/link.png",
        "//etc/passwd",
        "/x.mp4",
        "/%00.png",
    ],
)
def test_nothing_else_is_given(server: PageServer, path: str) -> None:
    secret = server.folder.parent / "secret.png"
    secret.write_bytes(b"secret")
    if not (server.folder / "link.png").exists():
        (server.folder / "link.png").symlink_to(secret)
    answer, content = get(server, path)
    assert answer.status == 404
    assert b"secret" not in content


def test_only_this_machine_is_answered(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/", Host="example.invalid:80")[0].status == 403
    assert get(server, "/data.json", Host=f"localhost:{server.server_port}")[0].status == 200


def test_a_port_that_is_taken_is_said(server: PageServer) -> None:
    with pytest.raises(UserError, match=rf"port {server.server_port} of 127.0.0.1: .*choose another --port"):
        PageServer(server.folder, server.server_port)


@pytest.mark.parametrize("path", ["/%00", "/a%00.mp4", f"/{'a' * 5000}.mp4", "/" + "a/" * 3000 + "b.png"])
def test_a_name_that_no_file_can_have_is_not_found(server: PageServer, path: str) -> None:
    assert get(server, path)[0].status == 404


@pytest.mark.parametrize("asked", ["bytes={0}-", "bytes=-{0}", "bytes=0-{0}"])
def test_a_range_of_thousands_of_digits_is_not_one(server: PageServer, asked: str) -> None:
    file = next(server.folder.glob("EveryNDrawSample/*/*.mp4"))
    path = "/" + quote(str(file.relative_to(server.folder)))
    answer, content = get(server, path, Range=asked.format("9" * 5000))
    assert (answer.status, content) == (200, file.read_bytes())


def test_a_connection_that_says_nothing_is_closed(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.2)
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: "):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
            connection.sendall(sent)
            assert connection.recv(1) == b""


def test_connections_above_the_limit_are_told_to_come_back(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "free", threading.Semaphore(2))
    address = ("127.0.0.1", server.server_port)
    waiting = [socket.create_connection(address) for _ in range(2)]
    assert get(server, "/data.json")[0].status == 503
    for connection in waiting:
        connection.close()
    deadline = time.monotonic() + 20
    while (status := get(server, "/data.json")[0].status) == 503 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert status == 200
