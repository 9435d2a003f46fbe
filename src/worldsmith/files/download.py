"""One file from the web, complete or not at all."""

from __future__ import annotations

import http.client
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

from worldsmith.files.atomic import replacing
from worldsmith.files.errors import UserError

PASSING = (429, 500, 502, 503, 504)
"""Answers of a server that is busy and may answer another time."""


def download(url: str, target: Path, *, attempts: int = 5, timeout: float = 60.0, pause: float = 1.0) -> None:
    """Writes what is at an http(s) address to `target`, which appears when it is complete.

    A busy server or a broken connection is tried again, after `pause` seconds and then twice as long each time. Raises
    UserError when it cannot be had, or has 0 bytes.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"'{url[:200]}' is no http or https address")
    for attempt in range(1, attempts + 1):
        try:
            fetch(url, target, timeout)
            return
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError) as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code not in PASSING
            if final or isinstance(error, ValueError) or attempt == attempts:
                times = "" if attempt == 1 else f" after {attempt} attempts"
                raise UserError(f"{url} cannot be downloaded{times}: {error}") from error
        time.sleep(pause * 2 ** (attempt - 1))


def fetch(url: str, target: Path, timeout: float) -> None:
    """One attempt. Raises ConnectionError for a part of what was announced, ValueError for 0 bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=timeout) as response, replacing(target) as aside:
        with open(aside, "wb") as out:
            shutil.copyfileobj(response, out)
        size, announced = aside.stat().st_size, response.headers.get("Content-Length")
        if announced is not None and size != int(announced):
            raise ConnectionError(f"{size} of {announced} bytes arrived")
        if size == 0:
            raise ValueError("it has 0 bytes")
