"""A file from the web is complete or not there; what passes is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from web_server import Web, serving

from worldsmith.files.errors import UserError
from worldsmith.tools.datasets.videophy2 import download


@pytest.fixture
def web() -> Iterator[Web]:
    pages = {
        "/a": b"content",
        "/busy": [503, 429, b"at last"],
        "/empty": b"",
        "/gone": 404,
        "/down": 500,
        "/cut": b"abcd",
    }
    with serving({path: [page] if isinstance(page, int) else page for path, page in pages.items()}) as web:
        web.cut.add("/cut")
        yield web


def test_a_file_and_its_folder_appear(tmp_path: Path, web: Web) -> None:
    download(f"{web.url}/a", tmp_path / "new" / "a.bin")
    assert (tmp_path / "new" / "a.bin").read_bytes() == b"content"


def test_a_busy_server_is_asked_again(tmp_path: Path, web: Web) -> None:
    download(f"{web.url}/busy", tmp_path / "a", pause=0.0)
    assert (tmp_path / "a").read_bytes() == b"at last"
    assert web.asked["/busy"] == 3


@pytest.mark.parametrize(
    ("path", "attempts", "words"),
    [
        ("/gone", 1, "gone cannot be downloaded: .*404"),
        ("/down", 3, "after 3 attempts: .*500"),
        ("/cut", 3, "after 3 attempts: received 2 of 4 bytes"),
        ("/empty", 1, "cannot be downloaded: it has 0 bytes"),
    ],
)
def test_what_cannot_be_had_leaves_nothing(tmp_path: Path, web: Web, path: str, attempts: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        download(web.url + path, tmp_path / "a", attempts=3, pause=0.0)
    assert web.asked[path] == attempts
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "s3://bucket/a", ""])
def test_only_the_web_is_read(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="is not an http or https address"):
        download(url, tmp_path / "a")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"after 2 attempts: .*refused"):
        download("http://127.0.0.1:9/a", tmp_path / "a", attempts=2, pause=0.0)
