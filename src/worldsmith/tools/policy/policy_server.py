"""`PolicyServer`: serves a policy on one port, by OpenPI's WebSocket protocol and by JSON over HTTP.

    GET /               health, also at /healthz
    GET /info           `PolicySpec` as JSON
    POST /predict       request -> {"action": rows}
    POST /predict_batch {"items": [request, …]} -> {"actions": [rows, …]}

A WebSocket connection, at any path, gets the `PolicySpec` first and then a reply to each message: a map with `actions`
(and the same array as `action`), or a text message with the reason of an error. A refused HTTP request is answered with
a status from 400 on and {"error": reason}. Observations that wait at the same time are predicted in one batch.
"""

from __future__ import annotations

import json
import logging
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from worldsmith.files.errors import require_libraries
from worldsmith.sampling.policy import Observation, RequestError, RobotPolicy
from worldsmith.tools.policy import messages
from worldsmith.tools.policy.messages import LIBRARIES, MAX_PIXELS, pack, parse_json, unpack

logger = logging.getLogger(__name__)

MAX_BODY = 32 * 2**20
"""Max bytes of a request body or WebSocket message."""
MAX_ITEMS = 64
"""Max number of requests in a batch request."""
MAX_CONNECTIONS = 512
"""Max number of open connections; more are closed at once."""
REQUEST_SECONDS = 30.0
"""Max time in which an HTTP request must be received completely."""
PING_SECONDS = 20.0
"""A WebSocket client that is silent for this time gets a ping, and is disconnected if it stays silent as long again."""
Job = tuple[Observation, "Future[np.ndarray]"]


class PolicyServer(ThreadingHTTPServer):
    """HTTP and WebSocket server of a policy; `serve_forever` runs it until another thread calls `shutdown`."""

    request_queue_size = 128

    def __init__(self, policy: RobotPolicy, host: str = "127.0.0.1", port: int = 8000, *, max_batch: int = 8) -> None:
        """Opens the port.

        Args:
            policy: The policy to serve.
            host: Address to listen on; "0.0.0.0" accepts connections from other machines, without authentication.
            port: TCP port; 0: a free one, see `server_port`.
            max_batch: Max number of observations that the policy gets at once.

        Raises:
            UserError: If the WebSocket libraries are not installed.
        """
        require_libraries(*LIBRARIES)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.policy, self.max_batch = policy, max_batch
        self.deadlines: dict[socket.socket, float] = {}
        """Open connections -> time at which they are closed; infinite once the request is received completely."""
        self.slots = threading.Semaphore(MAX_CONNECTIONS)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        """Observations to predict; None ends `predict_forever`."""
        super().__init__((host, port), PolicyRequestHandler)
        threading.Thread(target=self.predict_forever, daemon=True).start()

    def submit(self, observation: Observation) -> Future[np.ndarray]:
        """Queues an observation; the result is its chunk of actions, or RequestError, with 500 if the policy fails."""
        future: Future[np.ndarray] = Future()
        self.jobs.put((observation, future))
        return future

    def predict_forever(self) -> None:
        """Predicts the queued observations, up to `max_batch` at once, until the server is closed."""
        is_open = True
        while is_open:
            queued = [self.jobs.get()]
            with suppress(Empty):
                while len(queued) < self.max_batch:
                    queued.append(self.jobs.get_nowait())
            jobs = [job for job in queued if job is not None]
            is_open = len(jobs) == len(queued)
            if jobs:
                self.predict(jobs)

    def server_close(self) -> None:
        """Closes the port and all connections, and ends the thread that predicts."""
        super().server_close()
        for connection in self.deadlines.copy():
            close(connection)
        self.jobs.put(None)

    def predict(self, jobs: list[Job]) -> None:
        """Predicts a batch. If it fails, each observation is predicted alone, so that only the bad one fails."""
        try:
            chunks = [np.asarray(chunk, np.float32) for chunk in self.policy.predict([job[0] for job in jobs])]
            for chunk, _ in zip(chunks, jobs, strict=True):
                if chunk.ndim != 2 or chunk.shape[1] != self.policy.spec.action_width or not np.isfinite(chunk).all():
                    raise ValueError(f"the policy returned invalid actions of the shape {[*chunk.shape]}")
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self.predict([job])
                return
            if not isinstance(error, RequestError):
                logger.exception("the policy failed")
                error = RequestError(f"the policy failed: {type(error).__name__}: {error}", 500)
            jobs[0][1].set_exception(error)
            return
        for (_, future), chunk in zip(jobs, chunks, strict=True):
            future.set_result(chunk)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.slots.acquire(blocking=False):
            self.deadlines[request] = time.monotonic() + REQUEST_SECONDS
            super().process_request(request, client_address)
        else:
            logger.warning("refused a connection: %d are open", MAX_CONNECTIONS)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.deadlines.pop(request, None)
            self.slots.release()

    def service_actions(self) -> None:
        """Closes connections whose request is overdue; `serve_forever` calls it twice per second."""
        for connection, deadline in self.deadlines.copy().items():
            if time.monotonic() > deadline:
                close(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs the exception of a connection; a client that disconnects is no error."""
        expected = isinstance(sys.exc_info()[1], OSError)
        logger.log(logging.DEBUG if expected else logging.ERROR, "connection of %s", client_address, exc_info=True)


def close(connection: socket.socket) -> None:
    """Ends a connection; the thread that reads from it wakes up."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class PolicyRequestHandler(BaseHTTPRequestHandler):
    """Answers one HTTP request, or the messages of one WebSocket connection."""

    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS
    server: PolicyServer

    def do_GET(self) -> None:
        if "websocket" in self.headers.get("Upgrade", "").lower():
            self.serve_websocket()
        elif self.path in ("/", "/healthz"):
            self.reply({"status": "ok"})
        elif self.path == "/info":
            self.reply(asdict(self.server.policy.spec))
        else:
            self.reply({"error": "unknown path: use /, /healthz or /info, or POST /predict or /predict_batch"}, 404)

    def do_POST(self) -> None:
        try:
            body = self.read_body()
            if self.path == "/predict":
                self.reply({"action": self.ask([body])[0]})
            elif self.path == "/predict_batch":
                items = body.get("items")
                if not isinstance(items, list) or not 0 < len(items) <= MAX_ITEMS:
                    raise RequestError(f"items: expected a list of 1 to {MAX_ITEMS} requests")
                self.reply({"actions": self.ask(items)})
            else:
                raise RequestError("unknown path: use /predict or /predict_batch", 404)
        except RequestError as error:
            self.reply({"error": str(error)}, error.status)

    def read_body(self) -> dict[str, Any]:
        """Receives and parses the JSON body. Raises RequestError if it is refused."""
        length, kind, refusal = self.headers.get("Content-Length", ""), self.headers.get_content_type(), None
        if not re.fullmatch(r"[0-9]{1,18}", length) or "Transfer-Encoding" in self.headers:
            raise RequestError("a request needs a Content-Length", 411)
        if int(length) > MAX_BODY:
            refusal = RequestError(f"the body has {int(length):,} bytes; at most {MAX_BODY:,} are accepted", 413)
        elif kind != "application/json":  # browsers send this type to another site only if that site allows it
            refusal = RequestError(f"Content-Type: expected application/json, found {kind:.80}", 415)
        body, left = bytearray(), int(length)
        while left > 0 and (data := self.rfile.read(min(left, 2**20))):  # a refused body, too, so the reply is read
            left -= len(data)
            if refusal is None:
                body += data
        self.server.deadlines[self.connection] = math.inf
        if refusal is not None:
            raise refusal
        if left:
            raise RequestError(f"the body ended {left:,} bytes too early", 408)
        return parse_json(bytes(body))

    def ask(self, items: list[Any]) -> list[Any]:
        """Returns the rows of actions for each of several JSON requests."""
        observations: list[Observation] = []
        for item in items:
            pixels = sum(image.size // 3 for one in observations for image in one.images.values())
            observations.append(messages.read_http_request(item, self.server.policy.spec, MAX_PIXELS - pixels))
        futures = [self.server.submit(observation) for observation in observations]
        return [future.result().tolist() for future in futures]

    def reply(self, message: Mapping[str, Any], status: int = 200) -> None:
        """Sends a JSON reply and ends the connection."""
        data = json.dumps(message).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)

    def serve_websocket(self) -> None:
        """Answers the messages of a WebSocket client until it disconnects; refuses web pages, which have an Origin."""
        from websockets.exceptions import ConnectionClosed
        from websockets.protocol import State
        from websockets.server import ServerProtocol
        from websockets.sync.connection import Connection

        self.close_connection = True
        protocol = ServerProtocol(origins=[None], max_size=MAX_BODY)
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        protocol.receive_data(f"GET {self.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
        for request in protocol.events_received():
            protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
        for data in protocol.data_to_send():
            self.wfile.write(data)
        self.server.deadlines[self.connection] = math.inf
        if protocol.state is not State.OPEN:
            return
        self.connection.settimeout(3 * PING_SECONDS)  # for sending; pings are answered sooner than this
        seconds = {"ping_interval": PING_SECONDS, "ping_timeout": PING_SECONDS, "close_timeout": PING_SECONDS}
        client = Connection(self.connection, protocol, **seconds)  # type: ignore[arg-type]
        client.start_keepalive()
        with suppress(ConnectionClosed):
            client.send(pack(asdict(self.server.policy.spec)))
            for message in client:
                client.send(self.answer(message))

    def answer(self, message: str | bytes) -> str | bytes:
        """Returns the reply to a WebSocket message: the actions, or the reason of an error as text."""
        started = time.monotonic()
        try:
            chunk = self.server.submit(messages.read_openpi_request(unpack(message), self.server.policy.spec)).result()
        except RequestError as error:
            return str(error)
        timing = {"infer_ms": 1000 * (time.monotonic() - started)}
        return pack({"actions": chunk, "action": chunk, "server_timing": timing})
