"""A server of the Google Cloud Storage API (gcp-storage-emulator), whose answers a test can make fail.

It accepts only requests with the token that its own `/token` gives to a service account, as Google's does. As a
program it serves until it is killed: `PUT /_faults` sets the faults, `GET /_requests` returns what was asked.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import sys
import tempfile
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from object_store import ObjectStore

if TYPE_CHECKING:
    import pytest

TOKEN = "hush-hush-token"
MEDIA = "/download/storage/v1/b/bucket/o/"


class GoogleStore(ObjectStore):
    """The bucket `bucket` of a running server; `environment` lets gcsfs find it and log in."""

    scheme = "gs"
    program = Path(__file__)
    authorization = f"Bearer {TOKEN}"

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder = tempfile.TemporaryDirectory()
        key = Path(self.folder.name) / "service_account.json"
        key.write_text(json.dumps(service_account(url)))
        self.environment = {
            "STORAGE_EMULATOR_HOST": url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(key),
            # Asks Google's own gRPC service for the type of a bucket, which no server outside Google answers.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def make_bucket(self) -> None:
        self.ask("/storage/v1/b?project=tests", "POST", b'{"name": "bucket"}', "application/json")

    def put(self, key: str, content: bytes) -> str:
        self.ask(f"/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(key, safe='')}", "POST", content)
        return f"gs://bucket/{key}"

    def fail(self, **faults: Any) -> None:
        """`every` n-th request is answered 503, every `cut`-th download is cut off in the middle, requests that name
        `denied` are answered 403, files with `damaged` in their names are stored with another last byte, and those
        with `composite` have no MD5, as Google's objects that were composed of others."""
        super().fail(**faults)


def service_account(url: str) -> dict[str, str]:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return {
        "type": "service_account",
        "project_id": "tests",
        "private_key": text,
        "client_email": "tests@localhost",
        "token_uri": f"{url}/token",
    }


def use_plain_gcsfs(patch: pytest.MonkeyPatch) -> None:
    """Where an earlier test of this process has imported gcsfs with its other default."""
    from fsspec.registry import _registry
    from gcsfs.core import GCSFileSystem

    patch.setitem(_registry, "gs", GCSFileSystem)


def main() -> None:
    from gcp_storage_emulator.server import RequestHandler, Router
    from gcp_storage_emulator.storage import Storage

    logging.disable()
    faults: dict[str, Any] = {}
    seen: list[str] = []
    counts = {"request": 0, "download": 0}

    class GoogleStorage(Storage):
        def create_file(self, bucket: str, name: str, content: bytes, facts: dict[str, Any], *rest: Any) -> None:
            if faults.get("damaged") and faults["damaged"] in name:
                content = content[:-1] + bytes([content[-1] ^ 1])
            facts["md5Hash"] = base64.b64encode(hashlib.md5(content).digest()).decode()
            facts["etag"] = f"C{facts['generation']}"  # Google's is no MD5
            if faults.get("composite") and faults["composite"] in name:
                del facts["md5Hash"]
            super().create_file(bucket, name, content, facts, *rest)

    class Handler(RequestHandler):
        def handle_method(self) -> None:
            path = unquote(urlsplit(self.path).path)
            request = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.rfile = io.BytesIO(request)  # type: ignore[assignment]
            if path in ("/_faults", "/_requests", "/token"):
                answer: Any = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
                if path == "/_faults":
                    faults.clear()
                    faults.update(json.loads(request))
                if path == "/_requests":
                    answer = list(seen)
                    seen.clear()
                return self.answer(200, answer)
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer(401, {"error": {"code": 401, "message": "Anonymous caller: access denied"}})
            seen.append(f"{self.command} {path}")
            counts["request"] += 1
            if faults.get("denied") and faults["denied"] in self.path:
                return self.answer(403, {"error": {"code": 403, "message": "no permission"}})
            if faults.get("every") and counts["request"] % faults["every"] == 0:
                return self.answer(503, {"error": {"code": 503, "message": "Backend Error"}})
            if request.endswith(b"\r\n--==0==--"):  # the emulator drops the last byte of a file that ends in CR
                _, facts, content = request.removesuffix(b"\n--==0==--").split(b"--==0==\n", 2)
                name = quote(json.loads(facts.partition(b"\n\n")[2])["name"], safe="")
                self.path = self.path.replace("uploadType=multipart", f"uploadType=media&name={name}")
                self.headers.replace_header("Content-Type", "application/octet-stream")
                content = content.partition(b"\n\n")[2]
                self.headers.replace_header("Content-Length", str(len(content)))
                self.rfile = io.BytesIO(content)  # type: ignore[assignment]
            out, self.wfile = self.wfile, io.BytesIO()  # type: ignore[assignment]
            Router(self).handle(self.command)
            head, separator, body = self.wfile.getvalue().partition(b"\r\n\r\n")  # type: ignore[attr-defined]
            self.wfile = out
            if path.startswith(MEDIA):
                counts["download"] += 1
                if faults.get("cut") and counts["download"] % faults["cut"] == 0:
                    body = body[: len(body) // 2]
            self.wfile.write(head + separator + body)

        def answer(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_method  # noqa: N815

    class Server(HTTPServer):
        request_queue_size = 128

        def handle_error(self, request: Any, address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # gcsfs cancels requests that it does not need
                super().handle_error(request, address)

    server = Server(("127.0.0.1", 0), partial(Handler, GoogleStorage(use_memory_fs=True)))
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
