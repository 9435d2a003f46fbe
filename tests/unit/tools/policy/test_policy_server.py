"""A policy server speaks OpenPI's protocol and JSON, and no request of a client keeps it from answering the next."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import socket
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from worldsmith.sampling.policy import Observation, PolicySpec, RequestError, RobotPolicy
from worldsmith.tools.policy import policy_server
from worldsmith.tools.policy.messages import pack, unpack
from worldsmith.tools.policy.policy_server import PolicyServer
from worldsmith.tools.policy.remote_policy import PolicyError, RemotePolicy

SPEC = PolicySpec({"wrist": None, "top": (24, 32)}, {"joints": 3, "gripper": 1}, 4, 5, "droid", {"run": "runs/a"})
INSTRUCTION = "Pick up the cup."


class Echo(RobotPolicy):
    """Its actions are the state; `wait`, `fail`, `refuse` and `nan` in the instruction do what they say."""

    spec = SPEC

    def __init__(self) -> None:
        self.batches: list[int] = []

    def predict(self, observations: Any) -> list[np.ndarray]:
        self.batches.append(len(observations))
        time.sleep(max(float(one.instruction[5:]) if one.instruction[:5] == "wait " else 0 for one in observations))
        if any(one.instruction == "fail" for one in observations):
            raise RuntimeError("no memory")
        if any(one.instruction == "refuse" for one in observations):
            raise RequestError("the prompt is too long")
        scale = np.arange(1, 6, dtype=np.float32)[:, None]
        bad = [np.nan if one.instruction == "nan" else 1 for one in observations]
        return [scale * one.state_vector[None] * factor for one, factor in zip(observations, bad, strict=True)]


def observation(instruction: str = INSTRUCTION, first: float = 1.0) -> Observation:
    noise = np.random.default_rng(0)
    images = {"wrist": (40, 20), "top": (24, 32)}
    pixels = {name: noise.integers(0, 256, (*size, 3), np.uint8) for name, size in images.items()}
    state = {"joints": np.array([first, 2, 3], np.float32), "gripper": np.array([0.5], np.float32)}
    return Observation(pixels, state, instruction, 7)


EXPECTED = np.outer([1, 2, 3, 4, 5], [1, 2, 3, 0.5])


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    """A server whose threads end with it, those of open connections too."""
    before = {*threading.enumerate()}
    found = PolicyServer(Echo(), port=0)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    end = time.monotonic() + 10
    while (left := {*threading.enumerate()} - before) and time.monotonic() < end:
        time.sleep(0.02)
    assert left == set()


def urls(server: PolicyServer) -> tuple[str, str]:
    return f"http://127.0.0.1:{server.server_port}", f"ws://127.0.0.1:{server.server_port}"


def require_serving(server: PolicyServer, seconds: float = 5.0) -> None:
    """A good client gets its actions, by both protocols."""
    for url in urls(server):
        np.testing.assert_array_equal(
            RemotePolicy(url, seconds, "droid" * url.startswith("h"))(observation()), EXPECTED
        )


def post(server: PolicyServer, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    request = urllib.request.Request(urls(server)[0] + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def png(image: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def json_request(**changes: Any) -> dict[str, Any]:
    one = observation()
    images = {name: png(image) for name, image in one.images.items()}
    state = {name: part.tolist() for name, part in one.state.items()}
    request = {"images": images, "state": state, "prompt": INSTRUCTION, "domain_name": "droid"}
    return {name: value for name, value in (request | changes).items() if value != "missing"}


def openpi_request(**changes: Any) -> dict[str, Any]:
    one = observation()
    request = {f"observation/{name}": value for name, value in {**one.images, **one.state}.items()}
    changes = {name.replace("__", "/"): value for name, value in changes.items()}
    return {name: value for name, value in (request | {"prompt": INSTRUCTION} | changes).items() if value is not None}


def test_both_protocols_give_the_actions_of_the_policy(server: PolicyServer) -> None:
    require_serving(server)
    info = {**json.loads(json.dumps({"cameras": SPEC.cameras, "state": SPEC.state})), "domain": "droid"}
    for url in urls(server):
        found = RemotePolicy(url, 5).get_info()
        assert {name: found[name] for name in info} == info
        assert (found["action_width"], found["chunk_length"], found["about"]) == (4, 5, {"run": "runs/a"})
    for path in ("/", "/healthz"):
        with urllib.request.urlopen(urls(server)[0] + path, timeout=5) as response:
            assert json.load(response) == {"status": "ok"}
    items = [json_request(state={"joints": [i, 2, 3], "gripper": 0.5}) for i in range(3)]
    status, reply = post(server, "/predict_batch", json.dumps({"items": items}).encode())
    assert (status, [rows[0][0] for rows in reply["actions"]]) == (200, [0, 1, 2])
    assert server.server_address[0] == "127.0.0.1"


def test_messages_are_those_of_openpi() -> None:
    """The bytes were written by openpi-client 0.1.2 (`msgpack_numpy.packb`)."""
    golden = bytes.fromhex(
        "83b16f62736572766174696f6e2f696d61676584c40b5f5f6e6461727261795f5fc3c40464617461c40c000102030405060708090a0b"
        "c4056474797065a37c7531c405736861706593020203b16f62736572766174696f6e2f737461746584c40b5f5f6e6461727261795f5f"
        "c3c40464617461c4080000c03f000000c0c4056474797065a33c6634c40573686170659102a670726f6d7074a470757368"
    )
    image, state = np.arange(12, dtype=np.uint8).reshape(2, 2, 3), np.array([1.5, -2.0], np.float32)
    assert pack({"observation/image": image, "observation/state": state, "prompt": "push"}) == golden
    found = unpack(golden)
    np.testing.assert_array_equal(found["observation/image"], image)
    np.testing.assert_array_equal(found["observation/state"], state)
    scalar = msgpack.packb({"x": {b"__npgeneric__": True, b"data": 2.5, b"dtype": "<f4"}})
    assert unpack(scalar) == {"x": 2.5}


def test_an_openpi_connection_survives_a_refused_message(server: PolicyServer) -> None:
    """The client is the library that openpi-client uses: first the metadata, then a reply to each message."""
    with connect(urls(server)[1], compression=None, max_size=None) as client:
        assert unpack(client.recv())["action_width"] == 4
        client.send(pack(openpi_request(prompt=None)))
        assert client.recv() == "prompt: expected text of at most 10000 characters"
        client.send([pack(openpi_request(session_id="x"))[:100], pack(openpi_request(session_id="x"))[100:]])
        reply = unpack(client.recv())
        assert reply.keys() == {"actions", "action", "server_timing"}
        np.testing.assert_array_equal(reply["actions"], EXPECTED)


def bomb(side: int) -> str:
    """A small PNG file that states a side of so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = 2 * side.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10**7)))
    return base64.b64encode(file + chunk(b"IEND", b"")).decode()


BAD_JSON = {
    "no camera": (json_request(images={}), "camera of: wrist, top; found: none"),
    "unknown camera": (json_request(images={**json_request()["images"], "left": "x"}), "found: left, top, wrist"),
    "one image of two": (json_request(images="missing", image="x"), "camera of: wrist, top; found: image"),
    "no image at all": (json_request(images="missing"), "images and state"),
    "size": (json_request(images={**json_request()["images"], "top": png(np.zeros((32, 24, 3), np.uint8))}), "24, 32"),
    "base64": (json_request(images={"wrist": "&", "top": "&"}), "no valid PNG or JPEG"),
    "no image": (json_request(images={"wrist": "AAAA", "top": "AAAA"}), "no valid PNG or JPEG"),
    "gif": (json_request(images={"wrist": "R0lGODlhAQABAAAAACw=", "top": ""}), "no valid PNG or JPEG"),
    "state width": (json_request(state={"joints": [1, 2], "gripper": [1]}), "state joints: expected 3"),
    "state text": (json_request(state={"joints": ["1", "2", "3"], "gripper": [1]}), "state joints: expected 3"),
    "state ragged": (json_request(state={"joints": [[1], 2, 3], "gripper": [1]}), "state joints: expected 3"),
    "state infinite": (json_request(state={"joints": [1e999, 2, 3], "gripper": [1]}), "finite"),
    "state above float32": (json_request(state={"joints": [1e39, 2, 3], "gripper": [1]}), "3 finite float32 numbers"),
    "state huge": (json_request(state={"joints": [10**400, 2, 3], "gripper": [1]}), "state joints"),
    "no state": (json_request(state="missing"), "part of the state of: joints, gripper; found: none"),
    "domain": (json_request(domain_name="bridge"), "domain_name: this policy is for 'droid', found 'bridge'"),
    "image size": (json_request(image_size=10**9), "image_size"),
    "prompt": (json_request(prompt=["x"]), "prompt: expected text"),
    "long prompt": (json_request(prompt="x" * 10_001), "prompt: expected text"),
    "seed": (json_request(seed=-1), "seed: expected an integer"),
    "list": ([], "must be a JSON object"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_a_wrong_request_is_refused_with_its_reason(name: str, server: PolicyServer) -> None:
    message, reason = BAD_JSON[name]
    status, reply = post(server, "/predict", json.dumps(message).encode())
    assert status == 400
    assert reason in reply["error"]
    status, batch = post(server, "/predict_batch", json.dumps({"items": [json_request(), message]}).encode())
    assert status == 400
    assert reason.replace("the body", "a request") in batch["error"]


def array(dtype: str, shape: Any, data: bytes = bytes(8)) -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "not valid msgpack"),
        (b"\xc1", "not valid msgpack"),
        (b"\xdd\xff\xff\xff\xff", "not valid msgpack"),
        (b"\x91" * 5000, "not valid msgpack"),
        (msgpack.packb([1]), "must be a map"),
        (msgpack.packb({"x": array("O", [1])}), "arrays of object are not accepted"),
        (msgpack.packb({"x": array("V8", [1])}), "are not accepted"),
        (msgpack.packb({"x": array("<f4", [10**6, 10**6, 10**6])}), "not valid msgpack"),
        (msgpack.packb({"x": array("no type", [1])}), "not valid msgpack"),
        (msgpack.packb({"x": {b"__ndarray__": True}}), "not valid msgpack"),
        (openpi_request(observation__top=np.zeros((24, 32, 3), np.float32)), "expected uint8"),
        (openpi_request(observation__top=np.zeros((24, 32), np.uint8)), "expected uint8"),
        (openpi_request(observation__wrist=np.zeros((0, 4, 3), np.uint8)), "expected uint8"),
        (openpi_request(observation__left=np.zeros((4, 4, 3), np.uint8)), "found: left, top, wrist"),
        (openpi_request(observation__joints=np.array([1, np.nan, 2])), "state joints: expected 3 finite"),
        (openpi_request(observation__joints=np.array([1, -1e39, 2])), "state joints: expected 3 finite"),
        (openpi_request(observation__joints=np.array([1, np.inf, 2], np.float16)), "state joints: expected 3 finite"),
        (openpi_request(observation__joints=np.array([1, np.nan, 2], np.float16)), "state joints: expected 3 finite"),
        (openpi_request(observation__joints={"a": 1}), "state joints: expected 3 finite"),
    ],
)
def test_a_wrong_message_is_refused_with_its_reason(message: Any, reason: str, server: PolicyServer) -> None:
    with connect(urls(server)[1], compression=None) as client:
        client.recv()
        client.send(message if isinstance(message, bytes) else pack(message))
        assert reason in client.recv()
        client.send(pack(openpi_request()))
        assert "actions" in unpack(client.recv())


def test_the_server_answers_after_200_damaged_requests(server: PolicyServer) -> None:
    """Valid requests with random bytes changed, cut or repeated, by both protocols; most are refused, none is fatal."""
    noise = random.Random(0)
    bodies = [json.dumps(json_request()).encode(), pack(openpi_request())]
    refused = 0
    for number in range(200):
        body = bytearray(bodies[number % 2])
        for _ in range(noise.randrange(1, 20)):
            body[noise.randrange(len(body))] = noise.randrange(256)
        data = bytes(body[: noise.randrange(len(body))] if number % 3 == 0 else body)
        if number % 2 == 0:
            refused += post(server, noise.choice(["/predict", "/predict_batch"]), data)[0] in (400, 413)
        else:
            with connect(urls(server)[1], compression=None) as client:
                client.recv()
                client.send(data)
                refused += isinstance(client.recv(), str)
    assert refused > 100
    require_serving(server)


def raw(server: PolicyServer, data: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
    client.sendall(data)
    return client


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def test_half_open_connections_do_not_block_and_are_closed(server: PolicyServer, monkeypatch) -> None:
    monkeypatch.setattr(policy_server, "REQUEST_SECONDS", 2.0)
    monkeypatch.setattr(policy_server, "PING_SECONDS", 0.8)
    partial = (
        b"",
        b"POST /pre",
        b"POST /predict HTTP/1.1\r\nHost: x\r\n",
        b'POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"a',
        HANDSHAKE,
        HANDSHAKE + b"\r\n",
        HANDSHAKE + b"\r\n" + b"\x82\xfe",
    )
    clients = [raw(server, data) for data in partial * 20]
    started = time.monotonic()
    require_serving(server)
    assert time.monotonic() - started < 1.5  # seconds; the first deadlines are later
    for client in clients:
        while client.recv(2**16):  # what the server sends before it closes, such as pings
            pass
    assert time.monotonic() - started < 10


def test_a_request_that_trickles_in_is_closed(server: PolicyServer, monkeypatch) -> None:
    """Each byte comes in time for a timeout of the socket, but the whole request does not."""
    monkeypatch.setattr(policy_server, "REQUEST_SECONDS", 0.6)
    client = raw(server, b"POST /predict HTTP/1.1\r\n")
    started = time.monotonic()

    def trickle() -> None:
        while time.monotonic() - started < 20:
            client.sendall(b"X: 1\r\n")
            time.sleep(0.05)

    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        trickle()
    require_serving(server)


def test_connections_above_the_limit_are_refused(server: PolicyServer, monkeypatch) -> None:
    monkeypatch.setattr(server, "slots", threading.Semaphore(3))
    clients = [raw(server, b"") for _ in range(3)]
    time.sleep(0.3)
    assert raw(server, b"").recv(1) == b""
    clients[0].close()
    time.sleep(0.3)
    assert b"200" in raw(server, b"GET / HTTP/1.1\r\n\r\n").recv(100)


@pytest.mark.parametrize("send", [True, False])
def test_a_body_of_100_mb_is_refused(send: bool, server: PolicyServer) -> None:
    """The client reads the reply, whether it sends the body or waits."""
    size = 100 * 10**6
    head = f"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode()
    if not send:
        head = head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    client = raw(server, head)
    block = bytes(10**6)
    for _ in range(size // len(block) if send else 0):
        client.sendall(block)
    if not send:
        client.shutdown(socket.SHUT_WR)
    reply = b"".join(iter(lambda: client.recv(2**16), b""))
    assert b"413" in reply.partition(b"\r\n\r\n")[0] + reply
    assert b"at most 33,554,432 are accepted" in reply
    require_serving(server)


def test_a_message_of_100_mb_is_refused(server: PolicyServer) -> None:
    with connect(urls(server)[1], compression=None) as client:
        client.recv()
        with contextlib.suppress(ConnectionClosed):
            client.send(bytes(10**8))
        with pytest.raises(ConnectionClosed):
            client.recv()
    require_serving(server)


@pytest.mark.parametrize(
    ("image", "height", "reason"),
    [
        (bomb(20_000), None, "exceeds limit"),
        (bomb(5000), None, "5000×5000 px is too large"),
        (png(np.zeros((1, 60_000, 3), np.uint8)), 4096, "60000×1 px is too large"),
    ],
)
def test_a_small_file_with_a_huge_image_is_refused(image: str, height: Any, reason: str, server: PolicyServer) -> None:
    started = time.monotonic()
    request = json_request(images={"wrist": image, "top": image}, image_size=height)
    status, reply = post(server, "/predict", json.dumps(request).encode())
    assert status == 413
    assert reason in reply["error"]
    assert time.monotonic() - started < 2


def test_the_images_of_a_batch_are_limited_together(server: PolicyServer) -> None:
    image = png(np.zeros((2000, 2000, 3), np.uint8))
    items = [json_request(images={**json_request()["images"], "wrist": image})] * 5
    assert post(server, "/predict_batch", json.dumps({"items": items[:4]}).encode())[0] == 200
    status, reply = post(server, "/predict_batch", json.dumps({"items": items}).encode())
    assert (status, reply["error"]) == (413, "image of camera wrist: 2000×2000 px is too large")
    assert sum(server.policy.batches) == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"POST /predict HTTP/1.1\r\n\r\n", b"411"),
        (b"POST /predict HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"411"),
        (b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", b"411"),
        (b"POST /predict HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", b"415"),
        (b"POST /other HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", b"404"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"DELETE / HTTP/1.1\r\n\r\n", b"501"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 200 + b"\r\n", b"431"),
        (HANDSHAKE + b"Origin: https://example.org\r\n\r\n", b"403"),
        (HANDSHAKE.replace(b"13", b"99") + b"\r\n", b"400"),
    ],
)
def test_other_requests_get_a_status(request_text: bytes, status: bytes, server: PolicyServer) -> None:
    assert status in raw(server, request_text).recv(2**16).split(b"\r\n")[0]
    require_serving(server)


def test_a_web_page_cannot_open_a_connection(server: PolicyServer) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        connect(urls(server)[1], origin="http://127.0.0.1:8000")


def test_a_request_that_the_policy_refuses_has_status_400(server: PolicyServer, caplog) -> None:
    body = json.dumps({"items": [json_request(), json_request(prompt="refuse")]}).encode()
    assert post(server, "/predict_batch", body) == (400, {"error": "the prompt is too long"})
    assert not caplog.records  # no failure of the policy
    with pytest.raises(PolicyError, match="the prompt is too long"):
        RemotePolicy(urls(server)[1], 10)(observation("refuse"))
    require_serving(server)


@pytest.mark.parametrize("kind", ["http", "ws"])
def test_an_error_of_the_policy_concerns_one_request_of_the_batch(kind: str, server: PolicyServer) -> None:
    """Eight clients wait while the policy is busy: they become one batch, in which two observations are bad."""
    url = next(url for url in urls(server) if url.startswith(kind))
    texts = ["wait 1", "good", "fail", "good", "nan", "good", "good", "good"]
    results: dict[int, Any] = {}

    def ask(number: int) -> None:
        try:
            client = RemotePolicy(url, 10, "droid" if kind == "http" else "")
            results[number] = client(observation(texts[number], number))[0, 0]
        except PolicyError as error:
            results[number] = f"{error.kind}: {error}"

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
        time.sleep(0.3 if thread is threads[0] else 0)
    for thread in threads:
        thread.join()
    assert "refused: " in results[2]
    assert "the policy failed: RuntimeError: no memory" in results[2]
    assert "invalid actions" in results[4]
    assert {number: results[number] for number in (0, 1, 3, 5, 6, 7)} == {n: n for n in (0, 1, 3, 5, 6, 7)}
    assert server.policy.batches[0] == 1  # type: ignore[attr-defined]
    assert max(server.policy.batches) > 1  # type: ignore[attr-defined]


def test_pings_are_answered_while_the_policy_is_busy(server: PolicyServer, monkeypatch) -> None:
    monkeypatch.setattr(policy_server, "PING_SECONDS", 0.4)
    with connect(urls(server)[1], compression=None, ping_interval=0.3, ping_timeout=0.5) as client:
        client.recv()
        client.send(pack(openpi_request(prompt="wait 2")))
        assert "actions" in unpack(client.recv())


def test_a_client_counts_what_goes_wrong(server: PolicyServer) -> None:
    for url in urls(server):
        client = RemotePolicy(url, 0.3, "droid" if url.startswith("http") else "")
        with pytest.raises(PolicyError, match="no reply within") as caught:
            client(observation("wait 0.6"))
        assert caught.value.kind == "timeout"
        time.sleep(0.5)
        np.testing.assert_array_equal(client(observation()), EXPECTED)  # not the late reply
        with pytest.raises(PolicyError) as caught:
            client(observation("fail"))
        assert caught.value.kind == "refused"
        np.testing.assert_array_equal(client(observation()), EXPECTED)
        with pytest.raises(PolicyError) as caught:
            RemotePolicy(url.replace(str(server.server_port), "9"), 0.3)(observation())
        assert caught.value.kind == "connection"
