"""A server that speaks as much of the Hugging Face hub's protocol as downloading a model takes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"
INVALID = "Invalid credentials in Authorization header"


class Hub:
    """Repositories by name, of which some are gated; tokens that it knows, and what each of them may read of these."""

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repos = repos
        self.gated: set[str] = set()
        self.tokens: dict[str, set[str]] = {}
        self.sizes: dict[str, int] = {}
        """What it says of files, other than their own."""
        self.down = 0
        """A status with which it answers everything."""
        self.url = ""
        self.asked: list[str] = []
        """Method and path of every request."""

    def refusal(self, path: str, token: str | None) -> tuple[int, dict[str, str]] | None:
        """(status, headers) for a request that is not granted. The list of a gated repository's files is open."""
        repo = next((name for name in self.repos if f"/{name}" in path), None)
        if self.down:
            return self.down, {}
        if token is not None and token not in self.tokens:
            return 401, {"X-Error-Message": INVALID}
        if repo is None:
            return 404 if token else 401, {"X-Error-Code": "RepoNotFound"}
        if repo in self.gated and "/resolve/" in path and repo not in self.tokens.get(token or "", ()):
            return 403 if token else 401, {"X-Error-Code": "GatedRepo"}
        if "/nowhen" in path:
            return 404, {"X-Error-Code": "RevisionNotFound"}
        return None

    def answer(self, path: str) -> bytes | None:
        repo = next(name for name in self.repos if f"/{name}" in path)
        files = self.repos[repo]
        if "/resolve/" in path:
            return files.get(path.partition("/resolve/")[2].partition("/")[2])
        if "/tree/" in path:
            entries = [{"type": "file", "path": f, "size": len(b), "oid": f} for f, b in files.items()]
            return json.dumps(entries).encode()
        siblings = [{"rfilename": f, "size": self.sizes.get(f, len(b))} for f, b in files.items()]
        return json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()


@contextmanager
def serving_hub(
    repos: Mapping[str, Mapping[str, bytes]], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> Iterator[Hub]:
    """The hub that the library asks for the length of a test, with an empty cache and without a token."""
    hub = Hub(repos)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if any(name in path for name in repos):  # the library has questions of its own
                hub.asked.append(f"{self.command} {path}")
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
            refused = hub.refusal(path, token)
            body = None if refused else hub.answer(path)
            if body is None:
                status, headers = refused or (404, {"X-Error-Code": "EntryNotFound"})
                body = b""
            else:
                status, headers = 200, {"ETag": f'"{path.rpartition("/")[2]}"', "X-Repo-Commit": COMMIT}
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address, template = f"http://127.0.0.1:{server.server_port}", constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + template[template.index("/{repo_id}") :])
    monkeypatch.setattr(constants, "ENDPOINT", address)
    hub.url = address
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no_token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
