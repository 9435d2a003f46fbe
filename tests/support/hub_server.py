"""A server that speaks as much of the Hugging Face hub's protocol as downloading a model takes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

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
            return json.dumps(self.entries(files, files)).encode()
        siblings = [{"rfilename": f, "size": self.sizes.get(f, len(b))} for f, b in files.items()]
        return json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()

    @staticmethod
    def entries(files: Mapping[str, bytes], wanted: Iterable[str]) -> list[dict[str, Any]]:
        """What is said of the files and folders with these paths; nothing of those that do not exist."""
        commit = {"id": COMMIT, "title": "", "date": "2026-01-01T00:00:00.000Z"}
        known = {"lastCommit": commit}
        folders = {path.rpartition("/")[0] for path in files} - {""}
        return [
            *({"type": "directory", "path": f, "oid": f, **known} for f in wanted if f in folders),
            *({"type": "file", "path": f, "size": len(files[f]), "oid": f, **known} for f in wanted if f in files),
        ]


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
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if found and status == 200:
                size, first = len(body), int(found[1])
                status, body = 206, body[first : int(found[2] or size) + 1]
                headers = {**headers, "Content-Range": f"bytes {first}-{first + len(body) - 1}/{size}"}
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_POST(self) -> None:
            """The facts of some files, as `paths-info`."""
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            files = next((files for name, files in repos.items() if f"/{name}/" in self.path), None)
            body = b"" if files is None else json.dumps(hub.entries(files, form["paths"])).encode()
            self.send_response(404 if files is None else 200)
            if files is None:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
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
