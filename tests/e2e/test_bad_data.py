"""Bad input never stops the data stream and is never silent."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from damaged_data import FRAMES, encode, encode_audio
from PIL import Image

from worldsmith.assets import asset_path
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Quarantine


def line(uuid: str, **window: object) -> str:
    whole = {"start_frame": 0, "end_frame": FRAMES - 1, "temporal_interval": 1, "caption": f"clip {uuid}"}
    record = {"uuid": uuid, "duration": 2.1, "width": 96, "height": 64, "vision_path": f"videos/{uuid}.mp4"}
    return json.dumps({**record, "t2w_windows": [{k: v for k, v in {**whole, **window}.items() if v is not None}]})


def damaged_set(folder: Path) -> Path:
    """Eight sound clips, and one record of every kind of damage."""
    videos = folder / "videos"
    videos.mkdir(parents=True)
    for number in range(8):
        encode(videos / f"good{number}.mp4")
    whole = (videos / "good0.mp4").read_bytes()
    (videos / "text.mp4").write_text("Dear reader, this is not a film.\n" * 40)
    (videos / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    (videos / "empty.mp4").touch()
    encode_audio(videos / "audio.mp4")
    (videos / "outside.mp4").write_bytes(whole)
    (videos / "silent.mp4").write_bytes(whole)
    lines = [line(f"good{n}") for n in range(8)] + [line(u) for u in ("text", "cut", "empty", "audio", "absent")]
    lines += [line("outside", start_frame=40, end_frame=56), line("silent", caption=None), '{"uuid": "half a li']
    file = folder / "video_dataset_file.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def loader_for(
    path: Path, quarantine: Path, workers: int = 0, resolution: str = "64", **changes: object
) -> VideoLoader:
    config = VideoLoader.Config(max_samples_per_batch=2, num_workers=workers, **changes)
    config.dataset.path, config.dataset.resolution, config.dataset.min_frames = str(path), resolution, 5
    return config.build(
        grid=LatentGrid(4, 16, 2), tokenizer=lambda text: list(text.encode())[:20], quarantine=Quarantine(quarantine)
    )


def listed(folder: Path) -> dict[str, str]:
    entries = [json.loads(text) for text in (folder / "quarantine.jsonl").read_text().splitlines()]
    assert len({entry["key"] for entry in entries}) == len(entries)
    assert all(entry["path"] and entry["detail"] for entry in entries)
    return {entry["key"]: entry["reason"] for entry in entries}


@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_of_damage_is_listed_with_its_reason_and_the_rest_goes_on(tmp_path: Path, workers: int) -> None:
    """Over three epochs the sound clips come again and again, and each bad one is listed once."""
    file = damaged_set(tmp_path)
    loader = loader_for(file, tmp_path / "run", workers)
    samples = [sample for pack in islice(loader, 16) for sample in pack]
    counts = {key: sum(s.key == key for s in samples) for key in {s.key for s in samples}}
    assert set(counts) == {f"good{n}_w0" for n in range(8)}
    assert min(counts.values()) >= 3
    assert listed(tmp_path / "run") == {
        "text_w0": "not_a_video",
        "cut_w0": "truncated",
        "empty_w0": "empty_file",
        "audio_w0": "no_video_stream",
        "absent_w0": "missing_file",
        "outside_w0": "window_out_of_range",
        "silent_w0": "no_caption",
        "video_dataset_file.jsonl:16": "bad_json",
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_conversations_about_damaged_media_are_listed_and_the_rest_goes_on(tmp_path: Path, workers: int) -> None:
    """The same files as videos of questions, a picture that is cut, and a record without an answer."""
    damaged_set(tmp_path)
    names = [*(f"good{n}" for n in range(8)), "text", "cut", "empty", "audio", "absent"]
    media = {name: {"video": f"videos/{name}.mp4"} for name in names}
    Image.fromarray(np.random.RandomState(1).randint(0, 256, (64, 96, 3)).astype(np.uint8)).save(tmp_path / "half.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "half.png").read_bytes()[:9000])
    media |= {"half": {"image": "half.png"}, "silent": {"video": "videos/good0.mp4"}}
    turns = [{"from": "human", "value": "Is it possible?"}, {"from": "gpt", "value": "no"}]
    records = [{"id": name, **shown, "conversations": turns} for name, shown in media.items()]
    records[-1]["conversations"] = turns[:1]
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    config = ChatLoader.Config(max_samples_per_batch=2, num_workers=workers)
    config.dataset = LlavaDataset.Config(path=str(tmp_path))
    processor = ChatProcessor.Config().build(folder=asset_path("tiny_reasoner"))
    loader = config.build(processor=processor, quarantine=Quarantine(tmp_path / "run"))
    keys = [sample.key for pack in islice(loader, 16) for sample in pack]
    assert {key: keys.count(key) >= 3 for key in keys} == {f"good{n}": True for n in range(8)}
    assert listed(tmp_path / "run") == {
        "text": "not_a_video",
        "cut": "truncated",
        "empty": "empty_file",
        "audio": "no_video_stream",
        "absent": "missing_file",
        "half": "truncated",
        "silent": "no_answer",
    }


def test_a_resumed_run_lists_nothing_twice(tmp_path: Path) -> None:
    file = damaged_set(tmp_path)
    first = loader_for(file, tmp_path / "run")
    next(iter(first))
    second = loader_for(file, tmp_path / "run")
    second.load_states([first.state_dict()])
    assert len(list(islice(second, 12))) == 12
    assert len(listed(tmp_path / "run")) == 8


def test_past_the_allowed_share_the_run_stops_and_says_where_to_look(tmp_path: Path) -> None:
    file = damaged_set(tmp_path)
    with pytest.raises(
        DataError, match=r"of 16 samples are bad, 4 are allowed .*listed in .*quarantine\.jsonl.*max_bad_fraction"
    ):
        list(islice(loader_for(file, tmp_path / "run", max_bad_fraction=0.05, bad_samples_allowed=4), 16))


real_clips = pytest.mark.skipif(
    not os.environ.get("DATASET_PATH"), reason="DATASET_PATH is not set; point it to a folder with real clips"
)


@real_clips
def test_real_clips_load_at_tier_256(tmp_path: Path) -> None:
    """Every clip of the set, whole: 4k + 1 frames at a size of the tier, nothing left out."""
    loader = loader_for(Path(os.environ["DATASET_PATH"]), tmp_path, resolution="256")
    samples = {s.key: s for pack in islice(loader, len(loader.dataset) // 2) for s in pack}
    assert len(samples) == len(loader.dataset) == loader.dataset.num_records
    assert not loader.quarantine.keys
    for sample in samples.values():
        assert sample.num_frames % 4 == 1
        assert sample.video.shape == (3, sample.num_frames, *sample.size)
        assert sample.size in {(192, 320), (256, 320), (256, 256)}
        assert sample.video.float().std() > 10


@real_clips
def test_real_clips_with_three_bad_files_beside_them(tmp_path: Path) -> None:
    """A renamed text file, a truncated copy of a clip and an empty file: listed with reasons, the rest is read."""
    source = Path(os.environ["DATASET_PATH"]) / "train"
    records = [json.loads(text) for text in (source / "video_dataset_file.jsonl").read_text().splitlines()]
    for record in records:
        record["vision_path"] = str((source / record["vision_path"]).resolve())
    clip = Path(records[0]["vision_path"]).read_bytes()
    (tmp_path / "text.mp4").write_text("not a film\n" * 100)
    (tmp_path / "cut.mp4").write_bytes(clip[: int(len(clip) * 0.7)])
    (tmp_path / "empty.mp4").touch()
    bad = [{**records[0], "uuid": name, "vision_path": f"{name}.mp4"} for name in ("text", "cut", "empty")]
    file = tmp_path / "video_dataset_file.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in records + bad))
    loader = loader_for(file, tmp_path / "run", workers=2)
    keys = {s.key for pack in islice(loader, len(records)) for s in pack}
    assert keys == {f"{record['uuid']}_w0" for record in records}
    assert listed(tmp_path / "run") == {"text_w0": "not_a_video", "cut_w0": "truncated", "empty_w0": "empty_file"}
