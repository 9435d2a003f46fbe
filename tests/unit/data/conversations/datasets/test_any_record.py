"""Whatever a file holds, each of its records is a conversation or is listed: none is lost, and none is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.conversations.datasets.chat_file import ChatFile
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.datasets.messages import MessagesDataset

KEYS = [
    "id",
    "conversations",
    "messages",
    "from",
    "role",
    "value",
    "content",
    "image",
    "images",
    "video",
    "video_fps",
    "type",
    "text",
    "image_url",
    "media",
]
WORDS = ["human", "gpt", "user", "assistant", "text", "image", "a.png", "<image>", "\0", "\ud800", ""]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
turns = st.fixed_dictionaries({name: values for name in ("from", "value", "role", "content")})
records = values | st.fixed_dictionaries(
    {"conversations": st.lists(turns, max_size=3), "messages": st.lists(turns, max_size=3)},
    optional={name: values for name in ("id", "image", "images", "video", "video_fps")},
)


@pytest.mark.parametrize("kind", [LlavaDataset, ManifestDataset, MessagesDataset])
@given(found=st.lists(records, max_size=4))
def test_no_record_is_lost_or_an_error(tmp_path: Path, kind: type[ChatFile], found: list[Any]) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in found)
    (tmp_path / kind.file_name).write_text(lines if kind is MessagesDataset else json.dumps(found))
    dataset = kind.Config(path=str(tmp_path)).build()
    assert len(dataset) + len(dataset.rejections) == dataset.num_records == len(found)
    assert all(dataset.turns(index) for index in range(len(dataset)))
    assert len({key for key, _ in dataset.listing()} | {rejection.key for rejection in dataset.rejections}) == len(
        found
    )
