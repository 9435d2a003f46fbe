"""Packs of conversations: every record once, exact resume, damaged media and samples that are too long."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folder import write_limits
from PIL import Image

from worldsmith.assets import asset_path
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import ChatProcessor, ChatSample
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.datasets.messages import MessagesDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Quarantine


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> ChatProcessor:
    """The tokenizer of the tiny reasoner, small images, and at most 16 frames of a video, 8 a second."""
    folder = Path(shutil.copytree(asset_path("tiny_reasoner"), tmp_path_factory.mktemp("model") / "folder"))
    size = {"shortest_edge": 1024, "longest_edge": 65536}
    write_limits(folder, images={"size": size}, videos={"fps": 8, "min_frames": 4, "max_frames": 16})
    return ChatProcessor.Config().build(folder=folder)


@pytest.fixture
def chats(tmp_path: Path, write_clip: Callable) -> Path:
    """Twelve conversations of differing length: text only, with an image, with a video of 4, 8 or 16 frames."""
    Image.new("RGB", (64, 64), "green").save(tmp_path / "a.png")
    for frames in (8, 16, 32):
        write_clip(tmp_path / f"v{frames}.mp4", frames=frames)
    records = []
    for number in range(12):
        media = ({}, {"image": "a.png"}, {"video": "v8.mp4"}, {"video": "v16.mp4"}, {"video": "v32.mp4"})[number % 5]
        asked = {"from": "human", "value": "Is it plausible? " * (1 + number % 3)}
        records.append(
            {"id": f"c{number}", **media, "conversations": [asked, {"from": "gpt", "value": str(number % 5)}]}
        )
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    return tmp_path


@pytest.fixture
def load(chats: Path, processor: ChatProcessor) -> Callable[..., ChatLoader]:
    def make(*, quarantine: Quarantine | None = None, rank: int = 0, world_size: int = 1, **changes: Any) -> ChatLoader:
        settings = {"max_sequence_length": 400, "dataset": LlavaDataset.Config(path=str(chats)), **changes}
        config = ChatLoader.Config(**settings)
        return config.build(processor=processor, quarantine=quarantine, rank=rank, world_size=world_size)

    return make


def keys(packs: Any) -> list[list[str]]:
    return [[sample.key for sample in pack] for pack in packs]


@pytest.mark.parametrize("packer", ["sequential", "pool"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_ranks_together_see_each_record_once_a_pass(
    load: Callable, world_size: int, workers: int, packer: str
) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        loader = load(rank=rank, world_size=world_size, num_workers=workers, packer=packer, lookahead=3)
        packs = iter(loader)
        own: list[int] = []
        while sum(position < 24 for position in own) < 24 // world_size:  # two passes
            own += [sample.position for sample in next(packs)]
        seen += [position for position in own if position < 24]
        packs.close()
    assert sorted(seen) == list(range(24))


def test_a_sample_is_whole(load: Callable) -> None:
    samples = {s.key: s for pack in islice(load(), 10) for s in pack}
    text, image, video = (samples[key] for key in ("c0", "c1", "c4"))
    assert text.image_patches is None
    assert text.video_grids is None
    assert image.image_grids.tolist() == [[1, 4, 4]]
    assert image.image_patches.shape == (16, 1536)
    assert int((image.token_types == 1).sum()) == 4
    assert video.video_grids.tolist() == [[8, 4, 6]]
    assert video.video_patches.dtype == torch.uint8
    assert int((video.token_types == 2).sum()) == 8 * 6
    assert video.num_tokens == len(video.input_ids) == len(video.labels)
    assert {sample.num_supervised for sample in samples.values()} == {2}


@pytest.mark.parametrize("packer", ["sequential", "pool", "padded"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_goes_on_sees_the_same_packs(load: Callable, packer: str, workers: int) -> None:
    settings = {"packer": packer, "lookahead": 4, "num_workers": workers}
    whole = [pack for pack in islice(load(**settings), 12)]
    first = load(**settings)
    begun = keys(islice(first, 5))
    second = load(**settings)
    second.load_states([json.loads(json.dumps(first.state_dict()))])
    rest = list(islice(second, 7))
    assert begun + keys(rest) == keys(whole)
    assert all(same(a, b) for one, other in zip(rest, whole[5:]) for a, b in zip(one, other))


def same(one: ChatSample, other: ChatSample) -> bool:
    names = ("input_ids", "labels", "image_patches", "video_patches")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def test_damaged_media_are_listed_and_the_rest_goes_on(load: Callable, chats: Path, tmp_path: Path) -> None:
    (chats / "v16.mp4").write_bytes((chats / "v16.mp4").read_bytes()[:700])
    (chats / "a.png").unlink()
    loader = load(quarantine=Quarantine(tmp_path / "run"), num_workers=2)
    found = {key for pack in keys(islice(loader, 8)) for key in pack}
    assert found == {f"c{number}" for number in range(12) if number % 5 not in (1, 3)}
    lines = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    assert {line["key"]: line["reason"] for line in lines} == {
        "c1": "missing_file", "c6": "missing_file", "c11": "missing_file", "c3": "truncated", "c8": "truncated",
    }  # fmt: skip
    assert all(str(chats) in line["detail"] for line in lines)


def shortest_long_video(loader: ChatLoader) -> int:
    """Tokens of the shortest conversation with 16 frames; all others are shorter."""
    lengths = {s.key: s.num_tokens for s in (loader.maker[position].item for position in range(12))}
    long = {f"c{number}" for number in (3, 4, 8, 9)}
    shortest = min(lengths[key] for key in long)
    assert all(length < shortest for key, length in lengths.items() if key not in long)
    return shortest


def test_what_is_too_long_is_left_out_with_its_numbers_before_it_is_read(
    load: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cap = shortest_long_video(load())
    read: list[tuple[int, int, int]] = []
    whole = ChatProcessor.finish
    monkeypatch.setattr(
        ChatProcessor,
        "finish",
        lambda self, plan, **k: read.extend(m.grid for m in plan.media) or whole(self, plan, **k),
    )
    loader = load(max_sequence_length=cap, quarantine=Quarantine(tmp_path))
    found = {key for pack in keys(islice(loader, 10)) for key in pack}
    assert found == {f"c{number}" for number in range(12) if number % 5 not in (3, 4)}
    assert (4, 4, 6) in read
    assert (8, 4, 6) not in read
    line = json.loads((tmp_path / "quarantine.jsonl").read_text().splitlines()[0])
    assert line["reason"] == "over_token_cap"
    assert "video (" in line["detail"]
    assert f"of text); max_sequence_length is {cap}" in line["detail"]
    assert not loader.quarantine.bad_keys


def first_pass(loader: ChatLoader) -> list[list[str]]:
    return keys(loader.first_pass())


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("packer", ["sequential", "pool", "padded"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_cap_of_a_sample_leaves_out_what_a_pack_of_one_would(
    load: Callable, tmp_path: Path, world_size: int, packer: str, workers: int
) -> None:
    """Three samples of that length have room in a pack, and nothing else is different: not even after a resume."""
    cap = shortest_long_video(load())
    alone = {"max_sequence_length": cap, "max_samples_per_batch": 1}
    together = {"max_sample_tokens": cap - 1, "max_sequence_length": 3 * (cap - 1) + 1, "max_samples_per_batch": 3}
    for rank in range(world_size):
        found = {}
        for name, caps in {"alone": alone, "together": together}.items():
            settings = {**caps, "packer": packer, "num_workers": workers, "rank": rank, "world_size": world_size}
            quarantine = Quarantine(tmp_path / f"{name}{rank}")
            whole = load(quarantine=quarantine, **settings)
            packs = first_pass(whole)
            lines = (tmp_path / f"{name}{rank}" / "quarantine.jsonl").read_text().splitlines()
            left_out = [json.loads(line) for line in lines]
            found[name] = {key for pack in packs for key in pack}, {row["key"]: row["reason"] for row in left_out}
            assert not quarantine.bad_keys
        assert found["alone"] == found["together"]
        assert set(found["together"][1].values()) == {"over_token_cap"}
        assert all(f"max_sample_tokens is {cap - 1}" in row["detail"] for row in left_out)
        assert all(len(pack) == 3 for pack in packs[:-1])
        whole, first, second = (load(**settings) for _ in range(3))
        expected, begun = keys(islice(whole, 6)), keys(islice(first, 2))
        states = [load(**{**settings, "rank": other}).state_dict() for other in range(world_size)]
        states[rank] = first.state_dict()
        second.load_states(json.loads(json.dumps(states)))
        assert begun + keys(islice(second, 4)) == expected


def test_the_cap_of_a_sample_may_be_the_only_one_of_tokens(load: Callable) -> None:
    cap = shortest_long_video(load())
    settings = {"max_sequence_length": None, "max_samples_per_batch": 3}
    packs = first_pass(load(max_sample_tokens=cap, **settings))
    assert all(len(pack) == 3 for pack in packs[:-1])
    over = set(first_pass(load(max_sample_tokens=cap - 1, **settings))[0])
    assert len({key for pack in packs for key in pack}) > len(over)
    with pytest.raises(DataError, match=rf"\d+ tokens .*max_sample_tokens is {cap - 1}. Raise this limit"):
        first_pass(load(max_sample_tokens=cap - 1, on_overlong="error", **settings))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_too_long_may_end_the_run(load: Callable, workers: int) -> None:
    loader = load(max_sequence_length=shortest_long_video(load()), on_overlong="error", num_workers=workers)
    with pytest.raises(DataError, match=r"c\d+ of .*annotations.json: \d+ tokens \(video .*lower processor.media"):
        list(islice(loader, 10))


def test_a_single_frame_is_said_once(load: Callable, chats: Path, write_clip: Callable, caplog: Any) -> None:
    write_clip(chats / "v16.mp4", frames=1)
    loader = load()
    list(islice(loader, 10))
    assert loader.counts["single_frame_videos"] > 1
    assert caplog.text.count("has a single frame, which is used twice") == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dataset": LlavaOneVision.Config(streaming=True)}, "read in order; set one of them to false"),
        (
            {"on_overlong": "error", "max_sequence_length": None, "max_samples_per_batch": 1},
            "without a limit no sample is too long; set max_sequence_length",
        ),
        (
            {"packer": "pool", "max_sequence_length": None, "max_samples_per_batch": 1},
            'packer = "pool" and max_sequence_length = null',
        ),
        ({"max_sample_tokens": 100}, "lower max_sample_tokens to 99 or less, or raise max_sequence_length"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ChatLoader.Config(**{"max_sequence_length": 100, **settings}).check()


@pytest.mark.parametrize("kind", [LlavaDataset, LlavaOneVision, ManifestDataset, MessagesDataset])
def test_every_kind_of_data_set_can_be_chosen_in_text(kind: type[ChatDataset]) -> None:
    config = ChatLoader.Config(max_sequence_length=100, dataset=kind.Config(path="a"))
    assert from_dict(to_dict(config)) == config
    assert isinstance(from_dict(to_dict(config)).dataset, kind.Config)


def test_whoever_has_the_loader_can_choose_every_data_set() -> None:
    """Files and words name a class shortly only if its module is imported."""
    from worldsmith.data.conversations import datasets

    shipped = {path.stem for path in Path(datasets.__path__[0]).glob("*.py")} - {"__init__"}
    code = "import sys, worldsmith.data.conversations.chat_loader; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {f"{datasets.__name__}.{name}" for name in shipped} <= set(loaded)


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_is_skipped_is_read_by_no_rank_and_after_no_resume(
    load: Callable[..., ChatLoader], chats: Path, world_size: int
) -> None:
    held = {entry.key for entry in LlavaDataset.Config(path=str(chats), limit=3).build().entries}
    assert held == {"c0", "c1", "c2"}
    rest = LlavaDataset.Config(path=str(chats), skip=3)
    ranks = range(world_size)
    loaders = [load(dataset=rest, rank=rank, world_size=world_size) for rank in ranks]
    before = [keys(islice(loader, 4)) for loader in loaders]
    states = [loader.state_dict() for loader in loaders]
    resumed = [load(dataset=rest, rank=rank, world_size=world_size) for rank in ranks]
    for loader in resumed:
        loader.load_states(states)
    after = [keys(islice(loader, 8)) for loader in resumed]
    assert after == [keys(islice(loader, 8)) for loader in loaders]
    read = {key for packs in (*before, *after) for pack in packs for key in pack}
    assert read == {f"c{number}" for number in range(3, 12)}


def test_packed_media_give_the_same_packs_and_a_run_goes_on_with_them(
    load: Callable[..., ChatLoader], chats: Path
) -> None:
    plain = load()
    expected = [[sample.key, sample.input_ids.tolist()] for pack in islice(plain, 6) for sample in pack]
    with tarfile.open(chats / "media.tar.gz", "w:gz") as archive:
        for name in ("a.png", "v8.mp4", "v16.mp4", "v32.mp4"):
            archive.add(chats / name, name)
            (chats / name).unlink()
    packed = LlavaDataset.Config(path=str(chats), media_root=str(chats / "media.tar.gz"))
    loader = load(dataset=packed, num_workers=2)
    first = [[sample.key, sample.input_ids.tolist()] for pack in islice(loader, 3) for sample in pack]
    resumed = load(dataset=packed)
    assert plain.changes_since(loader.state_dict()) == []  # the media have the same content
    resumed.load_states([loader.state_dict()])
    rest = [[sample.key, sample.input_ids.tolist()] for pack in islice(resumed, 3) for sample in pack]
    assert first + rest == expected
