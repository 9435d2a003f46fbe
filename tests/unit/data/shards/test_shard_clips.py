"""Clips from shards through the loader: each once in a pass, resumed exactly, on ranks and with workers."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.data.latent_cache import LatentCache
from worldsmith.data.shards import tar_index
from worldsmith.data.stream.errors import DataError
from worldsmith.data.video_decoder import examine

from .conftest import tar_bytes

CAP = 100
"""A clip of 5, 9 or 17 frames has 8, 12 or 20 vision tokens at 64x64; captions give some more."""


def load(path: Path | str, **changes: object) -> VideoDataset:
    return VideoDataset.Config(**{"path": str(path), "min_frames": 5, **changes}).build()


def make(path: Path | str, runtime: dict | None = None, **changes: object) -> VideoLoader:
    config = VideoLoader.Config(**{"max_sequence_length": CAP, **changes})
    config.dataset.path, config.dataset.resolution, config.dataset.min_frames = str(path), "64", 5
    given = {"grid": LatentGrid(frames=4, pixels=16, patch=2), "tokenizer": lambda text: list(text.encode())[:12]}
    return config.build(**{**given, **(runtime or {})})


def facts(pack: list[VideoSample]) -> list[tuple]:
    return [(s.key, s.position, s.caption, s.num_tokens, hash(s.video.numpy().tobytes())) for s in pack]


def test_a_folder_a_pattern_and_files_of_lines_give_the_same_pixels(
    shards: Callable, tmp_path: Path, clip_bytes: Callable
) -> None:
    folder = shards(3)
    (tmp_path / "plain/videos").mkdir(parents=True)
    lines = []
    for number, frames in enumerate((5, 9, 17)):
        (tmp_path / f"plain/videos/{number}.mp4").write_bytes(clip_bytes(frames))
        window = {"start_frame": 0, "end_frame": frames - 1, "caption": f"clip {number}"}
        record = {"uuid": f"clips-000/{number:04d}", "vision_path": f"videos/{number}.mp4"}
        lines.append({**record, "t2w_windows": [window]})
    (tmp_path / "plain/video_dataset_file.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judge = [facts(pack) for pack in make(tmp_path / "plain").first_pass()]
    assert [facts(pack) for pack in make(folder).first_pass()] == judge
    assert [facts(pack) for pack in make(f"{folder}/clips-{{000..000}}.tar").first_pass()] == judge
    assert [facts(pack) for pack in make(f"file://{folder}/clips-*.tar", num_workers=2).first_pass()] == judge


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(done=st.integers(0, 6), packer=st.sampled_from(["sequential", "pool"]), world=st.sampled_from([1, 2]))
def test_it_goes_on_exactly_where_it_stopped(
    shards: Callable, tmp_path: Path, done: int, packer: str, world: int
) -> None:
    folder = tmp_path / "set"
    if not folder.exists():
        shards(11, of=4)
    for rank in range(world):
        runtime = {"rank": rank, "world_size": world}
        whole = make(folder, runtime, packer=packer)
        packs = list(islice(whole, done))
        state = json.loads(json.dumps(whole.state_dict()))
        expected = [facts(pack) for pack in islice(whole, 3)]
        states = [dict(state, rank=r) for r in range(world)]
        again = make(folder, runtime, packer=packer)
        again.load_states(states)
        assert [facts(pack) for pack in islice(again, 3)] == expected
        assert all(sum(sample.num_tokens for sample in pack) < CAP for pack in [*packs, *islice(again, 3)])


@pytest.mark.parametrize("packer", ["sequential", "pool"])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_clip_once_in_a_pass_over_all_ranks(shards: Callable, packer: str, workers: int) -> None:
    folder = shards(11, of=4)
    for world in (1, 2):
        seen: Counter[str] = Counter()
        for rank in range(world):
            loader = make(folder, {"rank": rank, "world_size": world}, packer=packer, num_workers=workers)
            packs = [facts(pack) for pack in loader.first_pass()]
            seen.update(key for pack in packs for key, *_ in pack)
            inline = make(folder, {"rank": rank, "world_size": world}, packer=packer)
            assert packs == [facts(pack) for pack in inline.first_pass()]
        assert sorted(seen) == [f"clips-{n // 4:03d}/{n:04d}_w0" for n in range(11)]
        assert set(seen.values()) == {1}


def test_shards_that_lie_afar_are_read_by_their_address(shards: Callable) -> None:
    folder = shards(6, of=3)
    for file in folder.iterdir():
        with fsspec.open(f"memory://afar/{file.name}", "wb") as copy:
            copy.write(file.read_bytes())
    for workers in (0, 2):
        afar = make("memory://afar/clips-{000..001}.tar", num_workers=workers)
        near = make(folder)
        assert [facts(pack) for pack in islice(afar, 4)] == [facts(pack) for pack in islice(near, 4)]
        assert afar.dataset.fingerprint == near.dataset.fingerprint


def test_a_moved_data_set_is_the_same_and_a_changed_clip_is_not(
    shards: Callable, tmp_path: Path, clip_bytes: Callable
) -> None:
    folder = shards(3)
    before = load(folder)
    shutil.copytree(folder, tmp_path / "moved")
    assert load(tmp_path / "moved").fingerprint == before.fingerprint
    clip = clip_bytes(5)
    other = clip[:100] + bytes([clip[100] ^ 1]) + clip[101:]
    (tmp_path / "moved/clips-000.tar").write_bytes((folder / "clips-000.tar").read_bytes().replace(clip, other))
    changed = load(tmp_path / "moved")
    assert changed.fingerprint != before.fingerprint
    was = dict(before.contents())
    assert [key for key, facts in changed.contents() if facts != was[key]] == ["clips-000/0000_w0"]


def test_latents_are_kept_by_what_the_clip_holds(shards: Callable, tmp_path: Path) -> None:
    folder = shards(2)
    cache = LatentCache(tmp_path / "latents", "vae")
    keys = [
        {s.key: s.cache_key for p in make(where, {"latent_cache": cache}, latent_cache="x").first_pass() for s in p}
        for where in (folder, shutil.copytree(folder, tmp_path / "moved"))
    ]
    assert keys[0] == keys[1]
    assert len(set(keys[0].values())) == 2


def test_what_cannot_be_used_is_counted_with_shard_and_place(tmp_path: Path, clip_bytes: Callable) -> None:
    video, caption = clip_bytes(9), b'{"caption": "c"}'
    window = {"start_frame": 0, "end_frame": 4, "caption": "first"}
    content = tar_bytes(
        [
            ("good.mp4", video), ("good.txt", b"a caption"),
            ("windows.json", json.dumps({"t2w_windows": [window, {**window, "end_frame": 2}]}).encode()),
            ("windows.mp4", video),
            ("silent.mp4", video), ("silent.json", b'{"fps": 8}'),
            ("alone.mp4", video),
            ("text.txt", b"no clip"),
            ("broken.mp4", video), ("broken.json", b"{"),
            ("list.mp4", video), ("list.json", b"[1]"),
            ("typed.mp4", video), ("typed.json", b'{"caption": "c", "duration": "long"}'),
            ("bytes.mp4", video), ("bytes.txt", b"\xff"),
            ("twice.mp4", video), ("twice.MP4", video), ("twice.json", caption),
            ("good.mp4", video), ("good.txt", b"again"),
            ("README", b"belongs to no sample"),
        ]
    )  # fmt: skip
    file = tmp_path / "x.tar"
    file.write_bytes(content)
    dataset = load(file)
    assert {w.key: (w.start_frame, w.end_frame, w.captions["caption"]) for w in dataset.windows} == {
        "x/good_w0": (0, -1, "a caption"),
        "x/windows_w0": (0, 4, "first"),
    }
    found = {r.key.partition("@")[0]: r.reason for r in dataset.rejections}
    assert found == {
        "x/windows_w1": "too_short", "x/silent_w0": "no_caption", "x/alone": "no_caption", "x/text": "missing_file",
        "x/broken": "bad_json", "x/list": "bad_record", "x/typed": "bad_record", "x/bytes": "bad_record",
        "x/twice": "bad_record", "x/good": "bad_record",
    }  # fmt: skip
    assert all(r.path.startswith(f"{file}#") for r in dataset.rejections)
    assert dataset.num_records == 11

    file.write_bytes(content[: content.index(b"[1]")])
    (rejection,) = [r for r in load(file).rejections if r.reason == "damaged_shard"]
    assert rejection.path == str(file)
    assert "list.json is cut off at byte" in rejection.detail


def test_a_shard_that_cannot_be_read_is_left_out_and_tried_again(
    shards: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shards(6, of=3)
    blocked = str(folder / "clips-000.tar")
    read = tar_index.read_range

    def fails(file: str, start: int, stop: int) -> bytes:
        if file == blocked:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, start, stop)

    with monkeypatch.context() as patched:
        patched.setattr(tar_index, "read_range", fails)
        dataset = load(folder)
    assert {window.key.partition("/")[0] for window in dataset.windows} == {"clips-001"}
    (rejection,) = dataset.rejections
    assert (rejection.reason, rejection.path) == ("damaged_shard", blocked)
    assert "Input/output error" in rejection.detail
    assert len(load(folder).windows) == 6, "an index that could not be read is not kept"


def test_shards_of_which_none_can_be_read_are_one_error(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"x-{number}.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(DataError, match=r"\*\.tar: none of the 3 shards can be read: .*x-0\.tar: the tar cannot"):
        load(tmp_path)


def test_damage_inside_a_clip_is_found_when_it_is_read(tmp_path: Path, clip_bytes: Callable) -> None:
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n"
    clips = {
        "good": clip_bytes(9), "cut": clip_bytes(9)[:600], "empty": b"", "noise": bytes(range(256)) * 9,
        "list": playlist, "small": clip_bytes(1),
    }  # fmt: skip
    members = [(f"{name}.{ending}", c) for name, clip in clips.items() for ending, c in (("mp4", clip), ("txt", b"c"))]
    (tmp_path / "x.tar").write_bytes(tar_bytes(members))
    for workers in (0, 1):
        loader = make(tmp_path / "x.tar", max_bad_fraction=1.0, num_workers=workers)
        assert [s.key for pack in loader.first_pass() for s in pack] == ["x/good_w0"]
        assert loader.quarantine.counts == {"truncated": 1, "empty_file": 1, "not_a_video": 2, "too_short": 1}


def test_a_clip_is_read_in_one_request(shards: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    from worldsmith.data.shards import addresses

    requests = []
    read = addresses.read_range
    monkeypatch.setattr(addresses, "read_range", lambda *place: requests.append(place) or read(*place))
    addresses.read_clip.cache_clear()
    examine.__globals__["probe"].cache_clear()
    loader = make(shards(3), shuffle=False)
    assert len([s for pack in loader.first_pass() for s in pack]) == 3
    assert len(requests) == 3
