"""`worldsmith watch RUN`: serves the HTML report of a run to a browser on this machine, always up to date."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import unquote, urlsplit

from worldsmith.actions.action import Action, Result
from worldsmith.config.declare.ranges import Range
from worldsmith.config.errors import UserError
from worldsmith.monitor.page.render import Page
from worldsmith.monitor.page.run_files import require_run, resolve_file
from worldsmith.monitor.page.run_page import live_page
from worldsmith.monitor.page.samples import MEDIA
from worldsmith.monitor.page.series import MetricsReader

HOST = "127.0.0.1"
FRESH = 1.5
"""Min seconds before a page is built again."""
PAUSE_PER_COST = 10
"""Min pause between two builds of the page, as a multiple of the build time."""
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
IDLE_SECONDS = 20.0
"""Seconds after which an idle connection is closed; an open page sends requests more often."""
MAX_CONNECTIONS = 64
"""Max simultaneous connections, one thread each (a browser opens six); further ones get HTTP status 503."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: 20\r\n\r\n"


class PageServer(ThreadingHTTPServer):
    """HTTP server of the report of a run, reachable only from this machine.

    The constructor raises UserError if the port cannot be used.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder.resolve()
        self.metrics = MetricsReader(self.folder / "metrics.jsonl")
        self.making = threading.Lock()
        self.made: Page | None = None
        self.good_until = 0.0
        self.free = threading.Semaphore(MAX_CONNECTIONS)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UserError(
                f"port {port} of {HOST}: {error.strerror}; choose another --port, or 0 for any free one"
            ) from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handles a connection in a new thread, or answers with HTTP status 503 if there are too many connections."""
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handles a connection in its thread, then releases its semaphore slot, so that another one is accepted."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors of connections that the browser closed; other errors are logged as usual."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def page(self) -> Page:
        """Returns the report of the run; rebuilds it if it is older than a few seconds (longer if building is slow)."""
        with self.making:
            if self.made is None or time.monotonic() > self.good_until:
                begun = time.monotonic()
                self.made = live_page(self.folder, self.metrics)
                cost = time.monotonic() - begun
                self.good_until = begun + cost + max(FRESH, PAUSE_PER_COST * cost)
            return self.made


class Handler(BaseHTTPRequestHandler):
    """Handles GET and HEAD requests for the report, its data, and the images and videos of the run folder."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        """Sends the report, its data, or a media file; refuses requests whose Host header is not this machine."""
        if (self.headers.get("Host") or "").rpartition(":")[0] not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN, "only requests from this machine are answered")
            return
        path = unquote(urlsplit(self.path).path)
        try:
            if path in ("/", "/index.html"):
                self.answer(self.server.page().html().encode(), "text/html; charset=utf-8")
            elif path == "/data.json":
                self.answer(self.server.page().update().encode(), "application/json")
            else:
                self.answer_file(path.lstrip("/"))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except (OSError, UserError) as error:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=str(error))

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer_file(self, name: str) -> None:
        """Sends a video or image of the run folder, or the requested byte range of it; HTTP 404 for other paths."""
        file = resolve_file(self.server.folder / name)
        kind = None if file is None else MEDIA.get(file.suffix.lower())
        if file is None or kind is None or not file.is_relative_to(self.server.folder):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = file.read_bytes()
        asked = RANGE.fullmatch(self.headers.get("Range") or "")
        if asked is None or not any(asked.groups()):
            self.answer(content, kind, {"Accept-Ranges": "bytes"})
            return
        first, last = span(asked[1], asked[2], len(content))
        if first > last:
            self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        about = {"Accept-Ranges": "bytes", "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self.answer(content[first : last + 1], kind, about, HTTPStatus.PARTIAL_CONTENT)

    def answer(
        self,
        content: bytes,
        content_type: str,
        headers_to_add: dict[str, str] | None = None,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        """Sends an HTTP response; without the content for a HEAD request.

        Args:
            content: Body of the response.
            content_type: Content type.
            headers_to_add: Additional headers.
            status: HTTP status.
        """
        self.send_response(status)
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            **(headers_to_add or {}),
        }
        for name, value in {**headers, "X-Content-Type-Options": "nosniff"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Does nothing, so that requests are not logged."""


def span(first: str, last: str, size: int) -> tuple[int, int]:
    """Returns the indices of the first and the last byte of an HTTP range: `5-9`, `5-`, or `-5` (last five bytes).

    Args:
        first: Digits before the hyphen, or "".
        last: Digits after the hyphen, or "".
        size: Size of the file in bytes.
    """
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1


class Watch(Action):
    """Serves the HTML report of a run on this machine only, and updates it while the run continues, until Ctrl-C."""

    places: ClassVar[tuple[str, ...]] = ("run",)

    class Config(Action.Config):
        run: str
        """The run folder."""
        port: Annotated[int, Range(ge=0, le=65535)] = 8600
        """Port on 127.0.0.1; 0: any that is free."""

    config: Config

    def run(self) -> Result:
        server = PageServer(require_run(Path(self.config.run)), self.config.port)
        return Result(self.serve(server), {"address": server.address})

    def serve(self, server: PageServer) -> Iterator[str]:
        """Yields a line with the address of the report, and then serves it until Ctrl-C."""
        yield f"{self.config.run} is shown at {server.address} (stop with Ctrl-C; the run continues)"
        with server:
            server.serve_forever()
