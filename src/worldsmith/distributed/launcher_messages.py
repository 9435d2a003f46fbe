"""Messages from launched processes to their launcher: exit codes, and which messages were already printed."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import socketserver
import threading
from contextlib import suppress
from typing import Any, Self

LAUNCHER = "WORLDSMITH_LAUNCHER"
"""Environment variable of the launched processes: process ID of the launcher, its port, and a secret."""
MAX_WORLD_SIZE = "WORLDSMITH_MAX_WORLD_SIZE"
"""Environment variable of the processes of a launch with `--nnodes MIN:MAX`: max number of processes."""
PATIENCE = 10.0
"""Timeout in seconds for the answer of the launcher, which runs on the same machine and usually answers at once."""


class LauncherServer:
    """Server in `worldsmith launch`, on a local port, for messages of the processes that it has started.

    It is a context manager. Within its block, an environment variable passes the address of the server to started
    processes. No file is used, so the server works even if the disk is full.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        """Exit code that a process has reported last by `report_exit_code`; None before that."""
        self._printed: set[str] = set()
        self._lock = threading.Lock()
        self._secret = secrets.token_hex(16)
        desk = self

        class Visit(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):  # the process that sent the request has gone
                    words = self.rfile.readline(1000).decode(errors="replace").split()
                    if len(words) == 3 and words[0] == desk._secret:
                        self.wfile.write(f"{desk._answer(*words[1:])}\n".encode())

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Visit)
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        os.environ[LAUNCHER] = f"{os.getpid()} {self._server.server_address[1]} {self._secret}"
        return self

    def __exit__(self, *error: object) -> None:
        os.environ.pop(LAUNCHER, None)
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, kind: str, value: str) -> str:
        with self._lock:
            if kind == "ended":
                self.exit_code = int(value)
                return "known"
            new = value not in self._printed
            self._printed.add(value)
            return "new" if new else "said"


def max_world_size() -> int | None:
    """Returns the max number of processes of a launch with `--nnodes MIN:MAX`; None in a run of a fixed number."""
    known = os.environ.get(MAX_WORLD_SIZE)
    return int(known) if known else None


def launcher_pid() -> int | None:
    """Returns the process ID of `worldsmith launch` if it started this process; else None."""
    known = os.environ.get(LAUNCHER)
    return int(known.split()[0]) if known else None


def report_exit_code(exit_code: int) -> None:
    """Sends the exit code of this process to `worldsmith launch`; no effect if that command did not start it."""
    _send_request("ended", str(exit_code))


def was_printed(message: str) -> bool:
    """Returns whether another process of the same `worldsmith launch` on this machine has already printed `message`.

    The first process that calls this function with `message` gets False, and should print it. Without
    `worldsmith launch`, the result is always False.

    Args:
        message: Text of the message.
    """
    return _send_request("say", hashlib.sha256(message.encode(errors="surrogatepass")).hexdigest()) == "said"


def _send_request(*words: Any) -> str | None:
    """Sends a request to `worldsmith launch` and returns the answer.

    Args:
        words: Type of the request and its value, without spaces.

    Returns:
        Answer of the launcher; None if there is no launcher or it has been killed.
    """
    known = os.environ.get(LAUNCHER)
    if not known:
        return None
    _, port, secret = known.split()
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE) as connection:
            connection.sendall(f"{' '.join([secret, *words])}\n".encode())
            return connection.makefile().readline().strip()
    except OSError:
        return None
