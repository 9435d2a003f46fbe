"""A real S3 server (moto) in a process of its own, whose answers a test can make fail.

As a program it serves until it is killed: `PUT /_faults` sets the faults, `GET /_requests` returns what was asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pytest

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_DEFAULT_REGION": "us-east-1"}


class ObjectStore:
    """The bucket `bucket` of a running server; `environment` lets boto3 and s3fs find it."""

    scheme = "s3"
    program = Path(__file__)
    authorization = f"AWS4-HMAC-SHA256 Credential={CREDENTIALS['AWS_ACCESS_KEY_ID']}/20260101/us-east-1/s3/aws4_request"

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": url}

    def ask(self, path: str, method: str = "GET", body: Any = None, content_type: str = "video/mp4") -> bytes:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Authorization": self.authorization, "Content-Type": content_type}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    def make_bucket(self) -> None:
        self.ask("/bucket", "PUT")

    def put(self, key: str, content: bytes) -> str:
        self.ask(f"/bucket/{key}", "PUT", content)
        return f"s3://bucket/{key}"

    def put_folder(self, folder: Path, prefix: str) -> str:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{prefix}/{file.relative_to(folder)}", file.read_bytes())
        return f"{self.scheme}://bucket/{prefix}"

    def fail(self, **faults: Any) -> None:
        """Of GET and HEAD: `every` n-th is answered 500 and 503 in turn, every `cut`-th is cut off in the middle,
        keys with `denied` in them are answered 403, and all come `slow` seconds later.

        With `writes` this applies to other methods, too; with `only_writes` only to them."""
        self.ask("/_faults", "PUT", faults)

    def requests(self) -> list[str]:
        """METHOD path of each request that named an object since the last call."""
        return json.loads(self.ask("/_requests"))


Store = TypeVar("Store", bound=ObjectStore)


@contextmanager
def serving(store_class: type[Store] = ObjectStore) -> Iterator[Store]:
    process = subprocess.Popen([sys.executable, str(store_class.program)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        store = store_class(f"http://127.0.0.1:{int(process.stdout.readline())}")
        store.make_bucket()
        yield store
    finally:
        process.kill()
        process.wait()


@contextmanager
def connected(server: Store, patch: pytest.MonkeyPatch, cache: Path) -> Iterator[Store]:
    """The server without faults, found by fsspec, with an empty cache on this machine and short pauses."""
    import fsspec

    from worldsmith.files import remote

    def forget() -> None:
        # Other tests may have connected without these variables.
        fsspec.get_filesystem_class(server.scheme).clear_instance_cache()
        remote.remote_facts.cache_clear()
        remote._written.clear()
        server.fail()

    for name, value in server.environment.items():
        patch.setenv(name, value)
    patch.setenv("XDG_CACHE_HOME", str(cache))
    patch.setattr(remote, "PAUSE", 0.02)
    forget()
    server.requests()
    yield server
    forget()


class Faults:
    """A WSGI application around that of moto."""

    def __init__(self, application: Callable[..., Any]) -> None:
        self.application = application
        self.faults: dict[str, Any] = {}
        self.seen: list[str] = []
        self.count = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        import time

        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/_faults":
            self.faults, self.count = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))), 0
            return self.answer(start, "200 OK", b"")
        if path == "/_requests":
            seen, self.seen = self.seen, []
            return self.answer(start, "200 OK", json.dumps(seen).encode())
        writes = method not in ("GET", "HEAD")
        if not writes:
            self.seen.append(f"{method} {path}")
        if self.faults.get("only_writes", False) if not writes else not self.faults.get("writes"):
            return self.application(environ, start)
        self.count += 1
        time.sleep(self.faults.get("slow", 0))
        if self.faults.get("denied") and self.faults["denied"] in path:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return self.answer(start, "403 Forbidden", b"" if method == "HEAD" else DENIED)
        every = self.faults.get("every")
        if every and self.count % every == 0:
            turn = self.count // every % 2
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return self.answer(start, "500 Internal Server Error" if turn else "503 Slow Down", b"")
        body = b"".join(self.application(environ, start))
        if method == "GET" and self.faults.get("cut") and self.count % self.faults["cut"] == 0:
            return [body[: len(body) // 2]]
        return [body]

    @staticmethod
    def answer(start: Callable[..., Any], status: str, body: bytes) -> list[bytes]:
        start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]


DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


def main() -> None:
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, Faults(DomainDispatcherApplication(create_backend_app)), threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    os.environ.update(CREDENTIALS)
    main()
