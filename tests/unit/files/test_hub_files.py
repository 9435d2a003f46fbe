"""Files of data sets on the hub (hf://datasets/org/name): the library's own file system, against a local server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import reasoner_runs
import tiny_runs
from hub_server import Hub, serving_hub
from huggingface_hub import HfFileSystem

from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.media.image_patches import read_image
from worldsmith.data.stream.errors import DataError
from worldsmith.data.video_decoder import examine
from worldsmith.files import remote
from worldsmith.files.remote_folder import fetch_folder, list_remote


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    tiny_runs.make_clips(tmp_path / "clips", 2)
    reasoner_runs.make_world(tmp_path / "chats", samples=3)
    repos = {
        f"org/{name}": {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        for name, folder in {"clips": tmp_path / "clips", "chats": tmp_path / "chats/data"}.items()
    }
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0.02)
    with serving_hub(repos, monkeypatch, tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        HfFileSystem.clear_instance_cache()
        remote.remote_facts.cache_clear()
        yield hub
        HfFileSystem.clear_instance_cache()
        remote.remote_facts.cache_clear()


def test_clips_on_the_hub_are_those_on_disk(hub: Hub, tmp_path: Path) -> None:
    near = VideoDataset.Config(path=str(tmp_path / "clips"), min_frames=5).build()
    far = VideoDataset.Config(path="hf://datasets/org/clips", min_frames=5).build()
    assert far.fingerprint == near.fingerprint
    for one, other in zip(far.windows, near.windows, strict=True):
        assert one.path.startswith("hf://datasets/org/clips/videos/")
        assert examine(one.path)[1] == examine(other.path)[1]
    count = len(hub.asked)
    assert [examine(window.path)[1] for window in far.windows]
    assert len(hub.asked) == count, "the clips are in the cache"


def test_conversations_on_the_hub_are_those_on_disk(hub: Hub, tmp_path: Path) -> None:
    near = LlavaDataset.Config(path=str(tmp_path / "chats/data")).build()
    far = LlavaDataset.Config(path="hf://datasets/org/chats").build()
    assert far.fingerprint == near.fingerprint
    assert (read_image("hf://datasets/org/chats/chat2.png", (32, 32)) == read_image(
        str(tmp_path / "chats/data/chat2.png"), (32, 32)
    )).all()  # fmt: skip
    assert sorted(list_remote("hf://datasets/org/chats")) == sorted(hub.repos["org/chats"])
    folder = fetch_folder("hf://datasets/org/chats", (("*.json",),), field="path")
    assert folder is not None
    assert [path.name for path in folder.iterdir()] == ["annotations.json"]
    assert json.loads((folder / "annotations.json").read_text())[0]["id"] == "chat0"


def test_a_repository_that_does_not_exist_is_one_error(hub: Hub) -> None:
    for kind, path in ((VideoDataset, "hf://datasets/org/absent"), (LlavaDataset, "hf://datasets/org/absent")):
        with pytest.raises(DataError, match=r"hf://datasets/org/absent"):
            kind.Config(path=path).build()
