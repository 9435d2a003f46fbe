"""A web server for the length of a test, whose answers the test writes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web:
    """`pages`: path -> bytes, or a list of the answers that follow each other: bytes, or the number of an error."""

    def __init__(self, pages: dict[str, bytes | list[bytes | int]]) -> None:
        self.pages = pages
        self.asked: Counter[str] = Counter()
        self.cut: set[str] = set()
        """Paths of which only half arrives."""
        self.url = ""

    def answer(self, path: str) -> bytes | int:
        page = self.pages.get(path, 404)
        number = self.asked[path]
        self.asked[path] += 1
        return page[min(number, len(page) - 1)] if isinstance(page, list) else page


@contextmanager
def serving(pages: dict[str, bytes | list[bytes | int]]) -> Iterator[Web]:
    web = Web(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = web.answer(self.path)
            if isinstance(answer, int):
                self.send_error(answer)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer[: len(answer) // 2] if self.path in web.cut else answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
