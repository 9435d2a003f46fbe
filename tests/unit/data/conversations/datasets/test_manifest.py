"""The layout of a prepared VideoPhy-2."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from worldsmith.data.conversations.conversation import Part, say
from worldsmith.data.conversations.datasets.manifest import ManifestDataset

ASKS = {"role": "user", "content": [{"type": "video", "video": "video_0"}, {"type": "text", "text": "Score?"}]}
SAYS = {"role": "assistant", "content": [{"type": "text", "text": "4"}]}
RECORD = {"id": "conversation_0001", "media": "media/video_0001.mp4", "conversation": "text/conversation_0001.json"}


def build(folder: Path, *records: Any, conversation: Any = None, **settings: Any) -> ManifestDataset:
    (folder / "text").mkdir(exist_ok=True)
    text = (
        conversation if isinstance(conversation, str) else json.dumps(conversation or {"conversations": [ASKS, SAYS]})
    )
    (folder / "text" / "conversation_0001.json").write_text(text)
    (folder / "meta.json").write_text(json.dumps(records))
    return ManifestDataset.Config(path=str(folder), **settings).build()


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        {"name": RECORD["id"], "video": RECORD["media"], "text": RECORD["conversation"]},
    ],
)
@pytest.mark.parametrize("conversation", [{"conversations": [ASKS, SAYS]}, [ASKS, SAYS]])
def test_a_record(tmp_path: Path, record: dict, conversation: Any) -> None:
    dataset = build(tmp_path, record, conversation=conversation)
    path = str(tmp_path / "media" / "video_0001.mp4")
    assert dataset.turns(0) == (say("user", Part("video", source=path), "Score?"), say("assistant", "4"))
    assert dataset.place(0) == ("conversation_0001", str(tmp_path / "meta.json"), None)


def test_media_may_lie_elsewhere_and_state_their_rate(tmp_path: Path) -> None:
    dataset = build(tmp_path, {**RECORD, "video_fps": 24}, media_root="/elsewhere")
    assert dataset.turns(0)[0].parts[0] == Part("video", source="/elsewhere/media/video_0001.mp4", fps=24.0)


@pytest.mark.parametrize(
    ("record", "conversation", "reason", "words"),
    [
        ({"id": "a", "media": "b"}, None, "bad_record", "expected strings under 'conversation or text'"),
        ([], None, "bad_record", "expected an object"),
        ({**RECORD, "conversation": "text/none.json"}, None, "missing_file", "text/none.json cannot be read"),
        ({**RECORD, "conversation": "text/\0"}, None, "missing_file", "cannot be read"),
        ({**RECORD, "conversation": "text/pipe"}, None, "missing_file", "cannot be read: it is not a file"),
        ({**RECORD, "media": "\udc00.mp4"}, None, "bad_record", "half of a surrogate pair"),
        (RECORD, "{nonsense", "bad_json", "line 1"),
        (RECORD, [{**ASKS, "content": "Score?"}, SAYS], "bad_record", "refers to 0 media"),
        (
            RECORD,
            [ASKS, SAYS, {**ASKS, "content": [{"type": "video", "video": "video_1"}]}, SAYS],
            "bad_record",
            "refers to 2",
        ),
        (RECORD, [{**ASKS, "role": "judge"}, SAYS], "unknown_role", "'judge'"),
    ],
)
def test_bad_records_are_left_out(tmp_path: Path, record: Any, conversation: Any, reason: str, words: str) -> None:
    (tmp_path / "text").mkdir()
    os.mkfifo(tmp_path / "text" / "pipe")
    (rejection,) = build(tmp_path, record, conversation=conversation).rejections
    assert rejection.reason == reason
    assert words in rejection.detail


def test_the_fingerprint_covers_the_conversations(tmp_path: Path) -> None:
    one = build(tmp_path, RECORD).fingerprint
    changed = build(tmp_path, RECORD, conversation=[ASKS, {**SAYS, "content": "5"}]).fingerprint
    assert one == build(tmp_path, RECORD).fingerprint != changed
