"""OpenAI-style lines: typed content, media beside the messages, and what is left out with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worldsmith.data.conversations.conversation import Part, say
from worldsmith.data.conversations.datasets.messages import MessagesDataset

ANSWER = {"role": "assistant", "content": "yes"}


def build(folder: Path, *lines: Any) -> MessagesDataset:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "messages.jsonl").write_text(text)
    return MessagesDataset.Config(path=str(folder)).build()


def asks(*parts: Any, **record: Any) -> dict[str, Any]:
    return {**record, "messages": [{"role": "user", "content": list(parts)}, ANSWER]}


def test_typed_parts(tmp_path: Path) -> None:
    uri = "data:image/png;base64,AAAA"
    dataset = build(
        tmp_path,
        asks(
            {"type": "text", "text": "One "},
            {"type": "image_url", "image_url": {"url": "a.png", "detail": "high"}},
            {"type": "image_url", "image_url": {"url": uri}},
            {"type": "image", "image": "b.png"},
            {"type": "video", "video": "v.mp4"},
            {"type": "text", "text": " two"},
            video_fps=8,
        ),
    )
    assert dataset.turns(0) == (
        say(
            "user",
            "One ",
            Part("image", source=str(tmp_path / "a.png")),
            Part("image", source=uri),
            Part("image", source=str(tmp_path / "b.png")),
            Part("video", source=str(tmp_path / "v.mp4"), fps=8.0),
            " two",
        ),
        say("assistant", "yes"),
    )


def test_text_only_and_lists_of_messages(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, ANSWER]
    dataset = build(tmp_path, {"messages": turns}, "", turns, asks({"type": "text", "text": "Hi"}, id="third"))
    assert dataset.turns(0) == dataset.turns(1) == (
        say("system", "Be brief."), say("user", "Hi"), say("assistant", "yes"),
    )  # fmt: skip
    assert [dataset.place(index) for index in range(3)] == [
        ("messages.jsonl:1", str(dataset.file), 1),
        ("messages.jsonl:3", str(dataset.file), 3),
        ("third", str(dataset.file), 4),
    ]


def test_parts_without_a_name_take_the_next_medium(tmp_path: Path) -> None:
    dataset = build(
        tmp_path, asks({"type": "image"}, {"type": "image"}, {"type": "video"}, images=["a", "b"], video="v")
    )
    assert [Path(str(part.source)).name for part in dataset.turns(0)[0].parts] == ["a", "b", "v"]


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        ("{nonsense", "bad_json", "line 1 column 2"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "bad_record", "half of a surrogate pair"),
        ("3", "bad_record", "expected an object or a list"),
        ({"messages": [{"role": "tool", "content": "x"}, ANSWER]}, "unknown_role", "found 'tool'"),
        (
            {"messages": [{"role": "user", "content": None}, ANSWER]},
            "bad_record",
            "must be a string or a list of parts",
        ),
        ({"messages": [{"role": "user", "content": "x"}, {**ANSWER, "tool_calls": []}]}, "bad_record", "'tool_calls'"),
        (asks({"type": "audio", "audio": "a"}), "bad_record", "part of type 'audio'"),
        (asks("text"), "bad_record", "part of type None"),
        (asks({"type": "text"}), "bad_record", "'text' must be a string"),
        (asks({"type": "video", "video": "v", "fps": 2}), "bad_record", "'fps' of a part is not supported"),
        (asks({"type": "video", "video": "v", "resized_width": 2}), "bad_record", "must both be integers"),
        (asks({"type": "image"}), "bad_record", "the image part has no path, and no path is left in 'images'"),
        (asks({"type": "text", "text": "x"}, images=["a"]), "bad_record", "that no part uses: {'image': 1}"),
        (asks({"type": "video", "video": "data:video/mp4;base64,AA"}), "bad_record", "contains a video: expected"),
    ],
)
def test_bad_lines_are_left_out_with_their_number(tmp_path: Path, line: Any, reason: str, words: str) -> None:
    dataset = build(tmp_path, asks({"type": "text", "text": "Hi"}), line)
    (rejection,) = dataset.rejections
    assert (rejection.key, rejection.reason, rejection.line) == ("messages.jsonl:2", reason, 2)
    assert words in rejection.detail
    assert len(dataset) == 1


def test_a_part_may_ask_for_its_size(tmp_path: Path) -> None:
    part = {"type": "video", "video": "v", "resized_height": 540, "resized_width": 960, "fps": None}
    dataset = build(tmp_path, asks(part))
    assert dataset.rejections == []
    assert dataset.turns(0)[0].parts[0].resized == (540, 960)


def test_a_line_that_gives_a_key_twice_is_a_bad_record(tmp_path: Path) -> None:
    good = json.dumps(asks({"type": "text", "text": "Is it?"}))
    dataset = build(tmp_path, good, good.replace('"text": "Is it?"', '"text": "Is it?", "text": "Was it?"'))
    assert [(r.reason, r.detail, r.line) for r in dataset.rejections] == [
        ("bad_record", "the key 'text' occurs twice", 2)
    ]
    assert len(dataset) == 1
