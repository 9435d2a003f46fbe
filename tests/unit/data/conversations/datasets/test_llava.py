"""LLaVA-style annotations: places of media, roles, rates, and what is left out with its reason."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from worldsmith.data.conversations.conversation import Part, say
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.stream.dataset_record import changed_samples, record_text
from worldsmith.data.stream.errors import DataError

POLICIES = ("optional", "require", "probe")


def chat(*texts: str, **record: Any) -> dict[str, Any]:
    turns = [{"from": ("human", "gpt")[number % 2], "value": text} for number, text in enumerate(texts)]
    return {**record, "conversations": turns}


def build(folder: Path, *records: Any, **settings: Any) -> LlavaDataset:
    file = folder / "annotations.json"
    file.write_text(json.dumps(records))
    before = file.read_bytes()
    dataset = LlavaDataset.Config(path=str(folder), **settings).build()
    assert file.read_bytes() == before
    return dataset


def image(folder: Path, name: str) -> Part:
    return Part("image", source=str(folder / name))


def video(folder: Path, name: str, fps: float | None = None) -> Part:
    return Part("video", source=str(folder / name), fps=fps)


def test_media_stand_at_their_tags(tmp_path: Path) -> None:
    dataset = build(
        tmp_path,
        chat("<image>\nWhat is it?", "a ball", "And in <image> here?", "a box", images=["a.png", "b.png"]),
        chat("First <video>\n<image>\nlast", "yes", video="v.mp4", image="a.png"),
    )
    assert dataset.rejections == []
    assert dataset.turns(0) == (
        say("user", image(tmp_path, "a.png"), "What is it?"),
        say("assistant", "a ball"),
        say("user", "And in ", image(tmp_path, "b.png"), " here?"),
        say("assistant", "a box"),
    )
    assert dataset.turns(1)[0] == say("user", "First ", video(tmp_path, "v.mp4"), image(tmp_path, "a.png"), "last")


def test_media_without_tags_come_first(tmp_path: Path) -> None:
    dataset = build(tmp_path, chat("Which?", "b", "Why?", "so", image=["a.png", "b.png"], video="v.mp4"))
    shown = (image(tmp_path, "a.png"), image(tmp_path, "b.png"), video(tmp_path, "v.mp4"))
    assert dataset.turns(0)[0] == say("user", *shown, "Which?")
    assert dataset.turns(0)[2] == say("user", "Why?")


def test_text_only_and_system_prompts(tmp_path: Path) -> None:
    own = {"conversations": [{"from": "system", "value": "Be kind."}, *chat("Hi", "Hello")["conversations"]]}
    dataset = build(tmp_path, chat("Hi", "Hello"), own, system_prompt="Be brief.")
    assert dataset.turns(0) == (say("system", "Be brief."), say("user", "Hi"), say("assistant", "Hello"))
    assert dataset.turns(1)[0] == say("system", "Be kind.")
    assert build(tmp_path, chat("Hi", "Hello")).turns(0)[0].role == "user"


def test_a_tag_in_an_answer_is_text(tmp_path: Path) -> None:
    dataset = build(tmp_path, chat("Name a tag of HTML", "<video>"))
    assert dataset.turns(0)[1] == say("assistant", "<video>")


def test_paths_are_relative_to_the_media_root(tmp_path: Path) -> None:
    records = [
        chat("?", "a", image="a.png"),
        chat("?", "a", image="/abs/a.png"),
        chat("?", "a", image="file:///f/a.png"),
    ]
    dataset = build(tmp_path, *records, media_root="/media")
    sources = [dataset.turns(index)[0].parts[0].source for index in range(3)]
    assert sources == ["/media/a.png", "/abs/a.png", "/f/a.png"]


@pytest.mark.parametrize(
    ("policy", "rates"), [("optional", [12.5, None]), ("probe", [None, None]), ("require", [12.5])]
)
def test_rates_that_records_state(tmp_path: Path, policy: str, rates: list[float | None]) -> None:
    records = [chat("?", "a", video="v.mp4", video_fps=12.5), chat("?", "a", video="v.mp4"), chat("?", "a")]
    dataset = build(tmp_path, *records, video_fps=policy)
    found = [
        part.fps for index in range(len(dataset)) for part in dataset.turns(index)[0].parts if part.kind == "video"
    ]
    assert found == rates
    assert [(r.key, r.reason) for r in dataset.rejections] == [("annotations.json[1]", "no_video_fps")] * (
        policy == "require"
    )


@pytest.mark.parametrize(
    ("record", "reason", "words"),
    [
        ("text", "bad_record", "expected an object"),
        ({}, "bad_record", "expected a list of messages"),
        ({"conversations": []}, "bad_record", "expected a list of messages"),
        ({"conversations": [{"from": "human", "value": 3}]}, "bad_record", "'value' of message 1 must be a string"),
        ({"conversations": [{"from": "tool", "value": "x"}]}, "unknown_role", "found 'tool'"),
        ({"conversations": [{"from": "gpt", "value": "x", "weight": 0}]}, "bad_record", "which is not supported"),
        ({"conversations": [{"from": "human", "value": [{"type": "image"}]}]}, "bad_record", "must be a string"),
        (chat("only a question"), "no_answer", "1 turns"),
        (
            chat("<image> or <image>", "a", image="a.png"),
            "bad_record",
            "contain 2 <image>, but the record has 1 images",
        ),
        (chat("<image>", "a", images=["a.png", "b.png"]), "bad_record", "contain 1 <image>, but the record has 2"),
        (chat("<image>", "a", video="v.mp4"), "bad_record", "contain 1 <image>, but the record has 0"),
        (chat("?", "a", image="a.png", images=["b.png"]), "bad_record", "both 'image' and 'images'"),
        (chat("?", "a", image="a\0.png"), "bad_record", "without NUL"),
        (chat("?", "a", image=[3]), "bad_record", "found 3"),
        (
            chat("?", "a", video="v.mp4", video_fps="fast"),
            "bad_record",
            "'video_fps' must be a number above 0, at most 1000",
        ),
        (chat("?", "a", video="v.mp4", video_fps=0), "bad_record", "'video_fps'"),
        (chat("?", "a", video="v.mp4", video_fps=10**400), "bad_record", "'video_fps'"),
        (chat("\ud800", "a"), "bad_record", "half of a surrogate pair"),
        (chat("?", "a", video="\udc00.mp4"), "bad_record", "half of a surrogate pair"),
    ],
)
def test_bad_records_are_left_out_with_their_place(tmp_path: Path, record: Any, reason: str, words: str) -> None:
    dataset = build(tmp_path, chat("Hi", "Hello"), record)
    (rejection,) = dataset.rejections
    assert (rejection.key, rejection.reason, rejection.path) == ("annotations.json[1]", reason, str(dataset.file))
    assert rejection.detail.startswith("record 1: ")
    assert words in rejection.detail
    assert (len(dataset), dataset.num_records) == (1, 2)


@pytest.mark.parametrize("name", [None, "annotations", "data", "samples", "items"])
def test_the_list_may_be_in_an_object_and_a_record_may_be_alone(tmp_path: Path, name: str | None) -> None:
    """§4.4: a list, an object with it under one of four names, or one record."""
    records = [chat("Hi", "Hello", id="a"), chat("?", "no", id="b", video="v.mp4")]
    plain = build(tmp_path, *records)
    value: Any = records[0] if name is None else {"info": "x", "videos": [], name: records}
    file = tmp_path / "other.json"
    file.write_text(json.dumps(value))
    assert LlavaDataset.is_at(str(file))
    dataset = LlavaDataset.Config(path=str(file)).build()
    count = 1 if name is None else 2
    assert [dataset.turns(index) for index in range(len(dataset))] == [plain.turns(index) for index in range(count)]
    assert [entry.number for entry in dataset.entries] == list(range(count))


def test_records_are_flagged_with_their_number_and_id(tmp_path: Path) -> None:
    """§4.4, §4.11, §7.2-15: rates by policy, with counts and five examples; ids that repeat or are missing."""
    records = [chat("?", "a", video="v.mp4", id=f"r{n // 2}") for n in range(14)]
    records[3]["video_fps"] = 8
    records += [chat("?", "a"), chat("only", id="bad")]
    flags = {policy: {f.name: f for f in build(tmp_path, *records, video_fps=policy).flags()} for policy in POLICIES}
    for policy in ("optional", "require"):
        lacks = flags[policy]["no_video_fps"]
        assert (lacks.count, lacks.of) == (13, 14)
        assert [one["index"] for one in lacks.examples] == [0, 1, 2, 4, 5]
        assert lacks.named.startswith("record 0 (r0), record 1 (r0#2), record 2 (r1), record 4 (r2)")
    assert "no_video_fps" not in flags["probe"]
    assert (flags["probe"]["ids_repeated"].count, flags["probe"]["ids_missing"].count) == (14, 1)
    with pytest.raises(DataError, match=r"13 of 14 records .* is set: record 0 \(r0\).*annotate-fps .*probe"):
        LlavaDataset.Config(path=str(tmp_path), video_fps="require").check_files()
    LlavaDataset.Config(path=str(tmp_path)).check_files()
    build(tmp_path, records[3], chat("?", "a"), video_fps="require").config.check_files()


def test_media_one_level_off_are_found(tmp_path: Path) -> None:
    """§7.2-24: below a folder beside the annotations, or above them."""
    (tmp_path / "a" / "videos").mkdir(parents=True)
    (tmp_path / "a" / "videos" / "v.mp4").touch()
    folder = tmp_path / "a"
    for given, root in (
        ("v.mp4", folder / "videos"),
        ("a/videos/v.mp4", tmp_path),
        ("w.mp4", None),
        ("videos/v.mp4", None),
    ):
        flags = {flag.name: flag for flag in build(folder, chat("?", "x", id=1, video=given)).flags()}
        assert ("media_elsewhere" in flags) == (root is not None)
        if root is not None:
            assert f"set media_root = '{root}'" in flags["media_elsewhere"].said


def test_ids_may_repeat(tmp_path: Path) -> None:
    dataset = build(tmp_path, *(chat("Hi", "Hello", id=name) for name in ("a", "a", 7, "a", None)))
    assert [dataset.place(index)[0] for index in range(5)] == ["a", "a#2", "7", "a#3", "annotations.json[4]"]


def test_the_fingerprint_follows_the_records(tmp_path: Path) -> None:
    one, same, other = (build(tmp_path, chat("Hi", text)).fingerprint for text in ("a", "a", "b"))
    assert one == same != other


def test_an_image_that_is_replaced_under_its_name_makes_another_sample(tmp_path: Path) -> None:
    """Named as changed, also when there is none at first; what the data set holds itself is no file."""
    inline = "data:image/png;base64,aGk="
    records = [chat("<image>\nWhat?", "a ball", image="a.png", id="a"), chat("<image> ?", "b", image=inline, id="b")]
    before, record = build(tmp_path, *records), tmp_path / "record.txt"
    assert [entry.files for entry in before.entries] == [(str(tmp_path / "a.png"),), ()]
    for content in (b"1", b"2"):
        record.write_text(record_text(before))
        (tmp_path / "a.png").write_bytes(content)
        after = build(tmp_path, *records)
        assert after.fingerprint != before.fingerprint
        assert changed_samples(record, after) == ["samples with other content (1): a"]
        before = after


def test_files_that_are_no_list_are_errors(tmp_path: Path) -> None:
    config = LlavaDataset.Config(path=str(tmp_path))
    with pytest.raises(DataError, match=r"annotations\.json does not exist"):
        config.check_files()
    with pytest.raises(DataError, match="path is empty"):
        LlavaDataset.Config().build()
    (tmp_path / "annotations.json").write_text("{}")
    for text, found in (
        ('"text"', "found str"),
        ('{"id": 1, "videos": []}', "found an object with the keys id, videos"),
        ('{"data": [], "items": []}', "found an object with the lists data, items"),
        ('{"data": {}}', "found an object with the keys data"),
    ):
        (tmp_path / "annotations.json").write_text(text)
        with pytest.raises(DataError, match=f"expected a list of records, an object with such a list as .* {found}"):
            config.build()
    (tmp_path / "annotations.json").write_text("[{]")
    with pytest.raises(DataError, match=r"cannot be read as JSON: .*line 1 column 3"):
        config.build()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"skip": 2}, ["2", "3"]),
        ({"limit": 2}, ["0", "1"]),
        ({"skip": 1, "limit": 2}, ["1", "2"]),
        ({"skip": 4}, []),
        ({"limit": 9}, ["0", "1", "2", "3"]),
    ],
)
def test_a_part_of_the_records(tmp_path: Path, settings: dict[str, int], kept: list[str]) -> None:
    dataset = build(tmp_path, *(chat("Which?", "b", id=str(number)) for number in range(4)), **settings)
    assert [entry.key for entry in dataset.entries] == kept
    assert (len(dataset), dataset.num_records) == (len(kept), len(kept))
    assert [dataset.number(index) for index in range(len(dataset))] == [int(key) for key in kept]


def test_a_key_that_is_given_twice_is_a_bad_record(tmp_path: Path) -> None:
    """At any depth, in that record alone; the file is a list or one record."""
    good = json.dumps(chat("Is it?", "yes", id="good"))
    twice = good.replace('"good"', '"a", "id": "b"')
    deep = good.replace('"value": "yes"', '"value": "yes", "value": "no"')
    file = tmp_path / "annotations.json"
    file.write_text(f"[{good}, {twice}, {deep}]")
    dataset = LlavaDataset.Config(path=str(tmp_path)).build()
    assert [dataset.place(index)[0] for index in range(len(dataset))] == ["good"]
    assert [(r.reason, r.detail) for r in dataset.rejections] == [
        ("bad_record", "record 1: the key 'id' occurs twice"),
        ("bad_record", "record 2: the key 'value' occurs twice"),
    ]
    file.write_text(twice)
    assert len(LlavaDataset.Config(path=str(tmp_path)).build()) == 0


def test_a_folder_with_the_suffix_of_a_file_is_a_dataset_and_a_pipe_is_none(tmp_path: Path) -> None:
    build(tmp_path, chat("?", "no", id="a"))
    (tmp_path / "annotations.json").rename(tmp_path / "x")
    (tmp_path / "data.json").mkdir()
    (tmp_path / "x").rename(tmp_path / "data.json/annotations.json")
    assert LlavaDataset.is_at(str(tmp_path / "data.json"))
    assert LlavaDataset.is_at(f"{tmp_path / 'data.json'}/")
    os.mkfifo(tmp_path / "pipe.json")
    assert not LlavaDataset.is_at(str(tmp_path / "pipe.json"))
