"""Whether the hub would really give a file, asked as a download asks, and the word for each refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import serving_hub
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError

from worldsmith.models.hub import HubName, ask_hub
from worldsmith.models.model_files import find_without_download, local_folder

FILES = {
    "README.md": b"read me",
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "old/model.bin": b"other weights",
}
REPOS = {"open/model": FILES, "gated/model": FILES, "open/text": {"README.md": b"a long text about nothing"}}
PATTERNS = ("*.safetensors", "*.json")
TOKEN = "hf_secret"


def test_the_head_of_the_largest_wanted_file_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving_hub(REPOS, monkeypatch, tmp_path) as hub:
        assert ask_hub(HubName("open/model"), PATTERNS) == {"config.json": 2, "model.safetensors": 7}
        assert hub.asked == ["GET /api/models/open/model", "HEAD /open/model/resolve/main/model.safetensors"]
        assert ask_hub(HubName("open/model", "v1", "old"), ("*.bin",)) == {"old/model.bin": 13}
        assert hub.asked[2:] == ["GET /api/models/open/model/revision/v1", "HEAD /open/model/resolve/v1/old/model.bin"]
        assert find_without_download("open/model", file_patterns=PATTERNS) is None
        assert (
            local_folder("hf://open/model", file_patterns=PATTERNS) / "model.safetensors"
        ).read_bytes() == b"weights"
        count = len(hub.asked)
        assert find_without_download("open/model", file_patterns=PATTERNS) is not None
        assert len(hub.asked) == count


GATED, PRIVATE = "the repository is gated, and", "no such repository, or a private one that"


@pytest.mark.parametrize(
    ("name", "token", "status", "words"),
    [
        ("gated/model", None, 0, f"{GATED} there is no token: accept its terms on .*/gated/model and set HF_TOKEN"),
        ("gated/model", TOKEN, 0, f"{GATED} the token has no access to it: accept its terms on .*/gated/model$"),
        ("gated/model", "hf_old", 0, "rejects the token: it is wrong or has expired; set HF_TOKEN"),
        ("open/model", "hf_old", 0, "rejects the token"),
        ("open/gone", None, 0, rf"{PRIVATE} needs a token \(HF_TOKEN\), which is not set; check the name"),
        ("open/gone", TOKEN, 0, f"{PRIVATE} the token has no access to"),
        ("open/model@nowhen", None, 0, "the repository has no revision 'nowhen'"),
        ("open/text", None, 0, r"the repository lacks '\*.safetensors'"),
        ("open/model", None, 403, r"rejects the request \(403\)"),
        ("open/model", None, 503, "returns status 503"),
        ("open/model", None, 429, "returns status 429"),
    ],
)
def test_each_refusal_has_its_word(
    name: str, token: str | None, status: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And a token is never in it. A run asks the same, so that it stops on one process before any download."""
    with serving_hub(REPOS, monkeypatch, tmp_path) as hub:
        hub.gated, hub.tokens, hub.down = {"gated/model"}, {TOKEN: set()}, status
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        for ask in (find_without_download, local_folder):
            with pytest.raises(FileNotFoundError, match=words) as caught:
                ask(name, file_patterns=PATTERNS, field="checkpoint.load_path")
            assert str(caught.value).startswith(f"checkpoint.load_path {name}: looked for a local folder")
            assert token is None or token not in str(caught.value)


def test_a_token_with_access_opens_a_gated_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving_hub(REPOS, monkeypatch, tmp_path) as hub:
        hub.gated, hub.tokens = {"gated/model"}, {TOKEN: {"gated/model"}}
        with pytest.raises(GatedRepoError):  # the list of files alone would not tell
            ask_hub(HubName("gated/model"), PATTERNS)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert find_without_download("gated/model", file_patterns=PATTERNS) is None


def test_offline_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving_hub(REPOS, monkeypatch, tmp_path) as hub:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE is set, so no request was sent"):
            find_without_download("open/model", file_patterns=PATTERNS)
        assert hub.asked == []
