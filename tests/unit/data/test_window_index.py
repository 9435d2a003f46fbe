"""Large datasets, whose windows are in an index on disk, behave like small ones."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worldsmith.data.clips import video_dataset, window_index
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.window_index import WindowIndex
from worldsmith.data.stream.dataset_record import changed_samples, record_text
from worldsmith.data.stream.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/worldsmith/datasets"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dataset with a window is a large one."""
    monkeypatch.setattr(video_dataset, "MANY", 0)


def load(path: Path, **changes: object) -> VideoDataset:
    return VideoDataset.Config(**{"path": str(path), "min_frames": 5, **changes}).build()


def load_large(path: Path, **changes: object) -> VideoDataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video_dataset, "MANY", 0)
        dataset = load(path, **changes)
    assert isinstance(dataset.windows, WindowIndex)
    return dataset


def load_small(path: Path, **changes: object) -> VideoDataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video_dataset, "open_index", lambda *_: None)
        return load(path, **changes)


def require_equal(large: VideoDataset, small: VideoDataset) -> None:
    assert not isinstance(small.windows, WindowIndex)
    assert large.windows[:3] == small.windows[:3]
    assert list(large.windows) == [large.windows[i] for i in range(len(small.windows))] == small.windows
    assert (large.num_records, large.num_samples, len(large)) == (small.num_records, small.num_samples, len(small))
    assert [list(large.choices(i)) for i in range(len(large))] == [list(small.choices(i)) for i in range(len(small))]
    assert sorted(map(repr, large.rejections)) == sorted(map(repr, small.rejections))
    assert list(large.contents()) == list(small.contents())
    for one, other in ((large, small), (small, large)):
        assert one.count_overlap(other) == small.count_overlap(small) == len(small.windows)


def window_at(start: int, caption: object = "c") -> dict:
    return {"start_frame": start, "end_frame": start + 8, "temporal_interval": 1, "caption": caption}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 32))
def test_the_index_has_the_same_windows_rejections_and_order(tmp_path: Path, record: Callable, seed: int) -> None:
    """Records with up to 12 windows, some of them broken, repeated or filtered; one or all windows of a clip."""
    rng = random.Random(seed)
    lines = []
    for number in range(rng.randrange(1, 25)):
        uuid = f"é{rng.randrange(number + 1)}_w{number % 3}" if rng.random() < 0.2 else f"clip{number}"
        windows: list = [window_at(9 * i, f"caption {i} \U0001f600\n") for i in range(rng.choice([1, 1, 2, 12]))]
        windows[0] = rng.choice([windows[0], windows[0], window_at(-1), {**windows[0], "end_frame": 1}, 5])
        found = record(uuid, vision_path=rng.choice(["a/b.mp4", f"{number}.mp4", f"/x/{number}.mp4"]))
        found |= {"duration": rng.choice([1, 1, 1, 99]), "t2w_windows": windows}
        lines.append(rng.choice([json.dumps(found)] * 6 + ['{"uuid"', "[]", ""]))
    folder = tmp_path / f"{seed}"
    folder.mkdir(exist_ok=True)
    file = folder / "video_dataset_file.jsonl"
    file.write_text("\n".join([*lines, json.dumps(record("last"))]), encoding="utf-8")
    for by_window in (True, False):
        require_equal(load_large(file, sample_by_window=by_window), load_small(file, sample_by_window=by_window))


def test_shards_have_the_same_windows(clips: Callable, tmp_path: Path) -> None:
    source, folder = clips(5), tmp_path / "shards"
    folder.mkdir()
    for name, members in (("a", "01"), ("b", "234")):
        with tarfile.open(folder / f"{name}.tar", "w") as tar:
            for number in members:
                (source / f"videos/{number}.txt").write_text(f"clip {number}")
                tar.add(source / f"videos/c{number}.mp4", f"{number}.mp4")
                tar.add(source / f"videos/{number}.txt", f"{number}.txt")
    assert len(load(folder).windows) == 5
    require_equal(load_large(folder), load_small(folder))


def test_the_fingerprint_depends_on_windows_and_clips_and_not_on_the_location(
    tmp_path: Path, write_jsonl: Callable, record: Callable, large: None
) -> None:
    records = [record("a"), record("b")]
    (tmp_path / "1/videos").mkdir(parents=True)
    clip = tmp_path / "1/videos/a.mp4"
    clip.write_bytes(b"1")
    file = write_jsonl(tmp_path / "1", records)
    before = load(file).fingerprint
    (tmp_path / "1").rename(tmp_path / "2")
    file = write_jsonl(tmp_path / "2", records[::-1])
    packed = file.with_name("packed.jsonl.gz")
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert load(file).fingerprint == load(packed).fingerprint == before
    (tmp_path / "2/videos/a.mp4").write_bytes(b"2")
    assert load(file).fingerprint != before
    (tmp_path / "2/videos/a.mp4").write_bytes(b"1")
    assert load(file).fingerprint == before
    for changed in (record("c"), record("a", 16), record("a", vision_path="videos/c.mp4")):
        assert load(write_jsonl(tmp_path / "2", [records[1], changed])).fingerprint != before


def test_an_index_is_read_again_until_file_or_settings_change(
    tmp_path: Path, write_jsonl: Callable, record: Callable, large: None, cache: Path
) -> None:
    """A run keeps the index that it has opened, also in processes that are started later."""
    file = write_jsonl(tmp_path, [record("a"), record("b", 9)])

    def written() -> dict[str, int]:
        return {str(folder): folder.stat().st_ino for folder in cache.glob("*/*")}

    old = load(file)
    first = written()
    file.chmod(0o600)
    assert len(load(file).windows) == 2
    assert written() == first
    assert [window.key for window in load(file, min_frames=10).windows] == ["a_w0"]
    second = written()
    assert second.items() > first.items()
    write_jsonl(tmp_path, [record("a"), record("b", 9), record("c")])
    assert len(load(file).windows) == 3
    assert written().items() > second.items()
    for dataset in (old, pickle.loads(pickle.dumps(old))):
        assert sorted(window.key for window in dataset.windows) == ["a_w0", "b_w0"]
        assert dataset.count_overlap(load(file)) == 2
        assert load(file).count_overlap(dataset) == 2


@pytest.mark.parametrize("left", [0, -9])
@pytest.mark.parametrize("name", ["windows.jsonl", "offset.npy", "starts.npy", "path.npy", "index.json"])
def test_a_damaged_index_is_written_again(
    tmp_path: Path, write_jsonl: Callable, record: Callable, large: None, cache: Path, name: str, left: int
) -> None:
    file = write_jsonl(tmp_path, [record("a"), record("b")])
    before = list(load(file).windows)
    (damaged,) = cache.glob(f"*/*/{name}")
    damaged.write_bytes(damaged.read_bytes()[:left])
    assert list(load(file).windows) == before
    damaged.unlink()
    assert list(load(file).windows) == before


def test_an_index_that_is_cut_during_a_run_is_one_error(
    tmp_path: Path, write_jsonl: Callable, record: Callable, large: None, cache: Path
) -> None:
    dataset = load(write_jsonl(tmp_path, [record("a")]))
    (cut,) = cache.glob("*/*/windows.jsonl")
    os.truncate(cut, 0)
    with pytest.raises(DataError, match="is damaged: delete it"):
        dataset.windows[0]


def test_a_file_that_grows_while_it_is_read_is_read_once(
    tmp_path: Path, write_jsonl: Callable, record: Callable, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_jsonl(tmp_path, [record("a")])
    written = window_index.write_index

    def grow(*arguments: object) -> None:
        written(*arguments)
        with file.open("a") as lines:
            lines.write(json.dumps(record("b")) + "\n")

    monkeypatch.setattr(window_index, "write_index", grow)
    assert len(load(file).windows) == 1
    monkeypatch.undo()
    assert len(load_large(file).windows) == 2


def test_clips_that_are_links_are_found_in_other_data(
    tmp_path: Path, write_jsonl: Callable, record: Callable, large: None
) -> None:
    """As in the cache of the Hugging Face hub, where clips are links to files and folders are links, too."""
    (tmp_path / "real").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "1/videos").symlink_to(tmp_path / "real")
    for name in "ab":
        (tmp_path / f"blob_{name}").write_text(name)
        (tmp_path / f"real/{name}.mp4").symlink_to(tmp_path / f"blob_{name}")
    links = load(write_jsonl(tmp_path / "1", [record("a"), record("b")]))
    blobs = load(write_jsonl(tmp_path / "2", [record(n, vision_path=f"{tmp_path}/blob_{n}") for n in "ab"]))
    assert blobs.count_overlap(links) == links.count_overlap(blobs) == 2


def test_a_changed_large_dataset_is_reported_as_a_whole(
    tmp_path: Path, write_jsonl: Callable, record: Callable
) -> None:
    """Also if it was small when the run began, or has become small."""
    file = write_jsonl(tmp_path, [record("a")])
    texts = {"large": record_text(load_large(file)), "small": record_text(load_small(file))}
    listed = tmp_path / "listed.txt"
    for first, second in (("large", load_large), ("large", load_small), ("small", load_large)):
        listed.write_text(texts[first])
        write_jsonl(tmp_path, [record("a", 9)])
        assert changed_samples(listed, second(file)) == [
            "samples have changed; those of a large dataset are not compared one by one"
        ]
        write_jsonl(tmp_path, [record("a")])
    listed.write_text(texts["large"])
    assert changed_samples(listed, load_large(file)) == []


def test_a_long_caption_and_a_pickled_dataset_are_read(
    tmp_path: Path, write_jsonl: Callable, record: Callable, large: None
) -> None:
    records = [record("a", t2w_windows=[window_at(0, "long " * 20_000), window_at(9)]), record("b")]
    dataset = load(write_jsonl(tmp_path, records))
    copy = pickle.loads(pickle.dumps(dataset))
    assert list(copy.windows) == list(dataset.windows)
    assert max(len(window.captions["caption"]) for window in dataset.windows) == 100_000
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            dataset.windows[wrong]
    assert dataset.windows[-1] == dataset.windows[2]


def test_processes_that_start_together_write_one_index(
    tmp_path: Path, write_jsonl: Callable, record: Callable, cache: Path
) -> None:
    file = write_jsonl(tmp_path, [record(f"clip{number}") for number in range(500)])
    script = (
        "import logging; from worldsmith.data.clips import video_dataset; logging.basicConfig(level=logging.INFO)\n"
        "video_dataset.MANY = 100\n"
        f"print(video_dataset.VideoDataset.Config(path={str(file)!r}, min_frames=5).build().fingerprint)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60) for process in started]
    assert len({out for out, _ in outputs}) == 1
    assert outputs[0][0].strip()
    assert sum("writing an index" in errors for _, errors in outputs) == 1
    assert len(list(cache.glob("*/*"))) == 1


def test_a_file_in_place_of_the_cache_is_one_error(
    tmp_path: Path, write_jsonl: Callable, record: Callable, large: None
) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match=r"index of the windows of .* cannot be written.*XDG_CACHE_HOME"):
        load(write_jsonl(tmp_path, [record("a")]))


def test_the_loader_yields_the_same_packs_and_resumes(clips: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """With worker processes, over two epochs; the state of a run on the index continues exactly."""
    folder = clips(7)

    def loader() -> VideoLoader:
        config = VideoLoader.Config(max_sequence_length=100, num_workers=2)
        config.dataset.path, config.dataset.resolution, config.dataset.min_frames = str(folder), "64", 5
        grid = LatentGrid(frames=4, pixels=16, patch=2)
        return config.build(grid=grid, tokenizer=lambda text: list(text.encode())[:12])

    def facts(packs: object, count: int) -> list:
        return [[(s.key, s.position, s.caption, s.video.sum().item()) for s in pack] for pack in islice(packs, count)]

    small = facts(iter(loader()), 6)
    monkeypatch.setattr(video_dataset, "MANY", 0)
    one = loader()
    assert isinstance(one.dataset.windows, WindowIndex)
    packs = iter(one)
    assert facts(packs, 3) == small[:3]
    state = one.state_dict()
    other = loader()
    other.load_states([state])
    assert facts(iter(other), 3) == small[3:]
