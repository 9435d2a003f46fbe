from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.data.clips.clip_maker import ClipMaker
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.data.latent_cache import LatentCache
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Quarantine

# A 96x64 clip of 5, 9 or 17 frames has 12, 18 or 30 vision tokens at tier 64; captions give some more.
CAP = 120
GRID = LatentGrid(frames=4, pixels=16, patch=2)


def tokenize(caption: str) -> list[int]:
    return list(caption.encode())[:12]


def make(folder: Path, runtime: dict | None = None, dataset: dict | None = None, **changes: object) -> VideoLoader:
    config = VideoLoader.Config(max_sequence_length=CAP)
    config.dataset.path, config.dataset.resolution, config.dataset.min_frames = str(folder), "64", 5
    for name, value in (dataset or {}).items():
        setattr(config.dataset, name, value)
    for name, value in changes.items():
        setattr(config, name, value)
    return config.build(**{"grid": GRID, "tokenizer": tokenize, **(runtime or {})})


def facts(pack: list[VideoSample]) -> list[tuple]:
    """Everything about a pack that training could notice, pixels included."""
    return [
        (s.key, s.position, s.caption, s.condition_frames, s.num_tokens, s.fps, s.size, hash(s.video.numpy().tobytes()))
        for s in pack
    ]


def test_a_sample_carries_all_that_training_needs(clips: Callable) -> None:
    (sample, *_) = next(iter(make(clips(3), dataset={"cfg_dropout_rate": 0.0})))
    assert sample.video.dtype == torch.uint8
    assert sample.video.shape == (3, sample.num_frames, *sample.size)
    assert sample.num_frames % 4 == 1
    assert sample.size == (64, 96)
    assert sample.latent_shape == ((sample.num_frames - 1) // 4 + 1, 4, 6)
    assert sample.latents is None
    assert sample.cache_key is None
    assert sample.fps == 8.0
    assert sample.caption.startswith(f"clip {sample.key[:-3]}. The video is {sample.num_frames / 8:.1f} seconds long")
    assert sample.text_ids == tokenize(sample.caption)
    assert sample.num_tokens == len(sample.text_ids) + 1 + sample.latent_shape[0] * 2 * 3 + 2
    assert sample.resolution == "64"


def test_packs_stay_below_the_cap_and_every_epoch_has_every_sample_once(clips: Callable) -> None:
    loader = make(clips(7))
    samples = []
    for pack in islice(loader, 20):
        assert sum(s.num_tokens for s in pack) < CAP
        samples += pack
    by_position = sorted(samples, key=lambda s: s.position)
    epochs = [{s.key for s in by_position if s.position // 7 == e} for e in range(3)]
    assert all(len(keys) == 7 for keys in epochs)
    orders = [[s.key for s in by_position if s.position // 7 == e] for e in range(3)]
    assert orders[0] != orders[1]


def test_without_shuffle_the_order_is_that_of_the_data_set(clips: Callable) -> None:
    loader = make(clips(4), shuffle=False, max_sequence_length=None, max_samples_per_batch=4)
    assert [[s.key for s in pack] for pack in islice(loader, 2)] == [[w.key for w in loader.dataset.windows]] * 2


def test_the_seed_alone_decides_order_and_draws(clips: Callable) -> None:
    folder = clips(6)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(runs))
        runs.append([facts(p) for p in islice(make(folder, seed=seed), 6)])
    assert runs[0] == runs[1] != runs[2]


def test_iterating_leaves_the_global_random_state_alone(clips: Callable) -> None:
    """Otherwise a resumed run, which opens the loader at another step, would draw other noise."""
    before = torch.get_rng_state()
    next(iter(make(clips(3))))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_window_a_clip_is_drawn_anew_in_every_pass(
    tmp_path: Path, write_clip: Callable, write_jsonl: Callable, record: Callable
) -> None:
    """Clip a has four windows, b one: a pass has two samples, and all windows of a come in time; resumes are exact."""
    windows = [{"start_frame": s, "end_frame": s + 4, "caption": f"from {s}"} for s in (0, 4, 8, 12)]
    for name in "ab":
        write_clip(tmp_path / f"videos/{name}.mp4")
    write_jsonl(tmp_path, [record("a", t2w_windows=windows), record("b", t2w_windows=windows[:1])])
    options = {"dataset": {"sample_by_window": False}, "max_samples_per_batch": 2, "max_sequence_length": None}
    loader = make(tmp_path, **options)
    assert (len(loader.dataset), len(loader.dataset.windows)) == (2, 5)
    whole = [facts(pack) for pack in islice(loader, 30)]
    assert all({key[0] for key, *_ in pack} == {"a", "b"} for pack in whole)
    assert {key for pack in whole for key, *_ in pack} == {"a_w0", "a_w1", "a_w2", "a_w3", "b_w0"}
    again = make(tmp_path, num_workers=1, **options)
    next(iter(again))
    resumed = make(tmp_path, num_workers=1, **options)
    resumed.load_states([again.state_dict()])
    assert [facts(pack) for pack in islice(resumed, 5)] == whole[1:6]


def test_one_window_a_clip_goes_on_past_bad_windows(
    tmp_path: Path, write_clip: Callable, write_jsonl: Callable, record: Callable
) -> None:
    """A clip of which one window is bad is not a data set of which nothing can be used."""
    windows = [{"start_frame": s, "end_frame": s + 4, "caption": "c"} for s in (0, 40)]
    write_clip(tmp_path / "videos/a.mp4")
    write_jsonl(tmp_path, [record("a", t2w_windows=windows)])
    loader = make(tmp_path, dataset={"sample_by_window": False})
    assert {s.key for pack in islice(loader, 10) for s in pack} == {"a_w0"}
    assert loader.quarantine.counts == {"window_out_of_range": 1}


def test_ranks_share_the_stream_without_overlap(clips: Callable) -> None:
    """Rank r of 3 takes positions r, r + 3, …; together they are the stream of one rank."""
    folder = clips(7)
    alone = {s.position: s.key for pack in islice(make(folder), 16) for s in pack}
    shared: dict[int, str] = {}
    for rank in range(3):
        loader = make(folder, {"rank": rank, "world_size": 3})
        mine = {s.position: s.key for pack in islice(loader, 5) for s in pack}
        assert {p % 3 for p in mine} == {rank}
        shared |= mine
    common = set(alone) & set(shared)
    assert len(common) > 20
    assert all(alone[p] == shared[p] for p in common)


def test_workers_change_nothing(clips: Callable) -> None:
    folder = clips(7)
    runs = [[facts(p) for p in islice(make(folder, num_workers=n, prefetch_factor=3), 8)] for n in (0, 1, 2)]
    assert runs[0] == runs[1] == runs[2]


@settings(max_examples=12)
@given(cut=st.integers(0, 14), cap=st.integers(60, 200), lookahead=st.integers(1, 10), seed=st.integers(0, 9))
def test_resume_at_any_pack_continues_with_the_same_packs(
    resume_folder: Path, cut: int, cap: int, lookahead: int, seed: int
) -> None:
    """Cut anywhere, pass the state through JSON, go on in a new loader: equal to the run that was never cut."""
    options = {"max_sequence_length": cap, "lookahead": lookahead, "seed": seed}
    whole = [facts(p) for p in islice(make(resume_folder, **options), 18)]
    first = make(resume_folder, **options)
    packs = iter(first)
    head = [facts(p) for p in islice(packs, cut)]
    second = make(resume_folder, **options)
    second.load_states([json.loads(json.dumps(first.state_dict()))])
    assert second.state_dict() == first.state_dict()
    assert head + [facts(p) for p in islice(second, 18 - cut)] == whole


@pytest.mark.parametrize("cut", [0, pytest.param(3, marks=pytest.mark.slow), 7])
def test_resume_with_workers_equals_an_uninterrupted_run_without(resume_folder: Path, cut: int) -> None:
    """What two workers have prefetched is not in the state; resuming twice in a row stays exact."""
    whole = [facts(p) for p in islice(make(resume_folder), 12)]
    made, state = [], None
    for steps in (cut, 2, 10 - cut):
        loader = make(resume_folder, num_workers=2, prefetch_factor=4)
        if state is not None:
            loader.load_states([state])
        made += [facts(p) for p in islice(loader, steps)]
        state = loader.state_dict()
    assert made == whole


@pytest.fixture
def resume_folder(clips: Callable) -> Path:
    return clips(7)


def test_set_aside_samples_are_in_the_state(resume_folder: Path) -> None:
    loader = make(resume_folder, max_sequence_length=60)
    seen = 0
    for _ in islice(loader, 8):
        state = loader.state_dict()
        seen += len(state["set_aside"])
        assert all(p < state["next_position"] for p in state["set_aside"])
        assert state["epoch"] == state["next_position"] // 7
    assert seen > 0


def test_set_aside_samples_survive_a_resume_with_a_shorter_lookahead(resume_folder: Path) -> None:
    """Then a pack is closed before all of them are read again; those that are still to be read stay in the state."""
    first = make(resume_folder, max_sequence_length=60)
    state = next(s for s in (first.state_dict() for _ in islice(first, 20)) if len(s["set_aside"]) >= 4)
    whole = make(resume_folder, max_sequence_length=60, lookahead=1)
    whole.load_states([state])
    expected = [facts(p) for p in islice(whole, 6)]
    made = []
    for _ in range(6):
        loader = make(resume_folder, max_sequence_length=60, lookahead=1)
        loader.load_states([state])
        made += [facts(p) for p in islice(loader, 1)]
        state = loader.state_dict()
    assert made == expected


def test_a_new_iterator_goes_on_and_an_old_one_is_refused(resume_folder: Path) -> None:
    whole = [facts(p) for p in islice(make(resume_folder), 4)]
    loader = make(resume_folder)
    old = iter(loader)
    made = [facts(next(old)), facts(next(old))]
    new = iter(loader)
    made += [facts(next(new)), facts(next(new))]
    assert made == whole
    with pytest.raises(RuntimeError, match="outdated"):
        next(old)


def test_state_of_another_data_set_is_refused_naming_both(
    clips: Callable, tmp_path: Path, write_jsonl: Callable, record: Callable
) -> None:
    loader = make(clips(3))
    state = loader.state_dict()
    other = make(write_jsonl(tmp_path / "other", [record("a"), record("b")]))
    with pytest.raises(ValueError, match=r"number of samples of .*: 3 -> 2"):
        other.load_states([state])
    with pytest.raises(ValueError, match=r"content of .*: x -> "):
        loader.load_states([{**state, "dataset_fingerprint": "x"}])
    with pytest.raises(ValueError, match=r"belong to \(rank, ranks\) \[\(0, 1\), \(0, 1\)\]"):
        loader.load_states([state, state])


def test_cached_latents_replace_decoding(clips: Callable, tmp_path: Path) -> None:
    """A hit does not open the pixels: the clip may even be unreadable by then, as long as its identity is the same."""
    folder = clips(3)
    cache = LatentCache(tmp_path / "cache", "vae")
    options = {"latent_cache": str(tmp_path / "cache"), "max_samples_per_batch": 3, "max_sequence_length": None}
    loader = make(folder, {"latent_cache": cache}, **options)
    (pack,) = islice(loader, 1)
    assert loader.counts["cache_miss"] == 3
    for sample in pack:
        cache.put(sample.cache_key, torch.full((48, *sample.latent_shape), float(sample.num_frames)))
    for workers in (0, 2):
        loader = make(folder, {"latent_cache": cache}, num_workers=workers, **options)
        (pack,) = islice(loader, 1)
        assert loader.counts["cache_hit"] == 3
        assert all(s.video is None and s.latents.shape == (48, *s.latent_shape) for s in pack)
        assert all((s.latents == s.num_frames).all() for s in pack)
    damaged = Path(cache.path_for(pack[0].cache_key))
    damaged.write_bytes(b"")
    loader = make(folder, {"latent_cache": cache}, num_workers=1, **options)
    (pack,) = islice(loader, 1)
    assert (loader.counts["cache_hit"], loader.counts["cache_corrupt"]) == (2, 1)
    assert pack[0].video is not None
    other_vae = LatentCache(tmp_path / "cache", "another vae")
    loader = make(folder, {"latent_cache": other_vae}, **options)
    next(iter(loader))
    assert loader.counts["cache_miss"] == 3


def test_other_frames_or_sizes_have_other_cache_keys(clips: Callable, tmp_path: Path) -> None:
    folder = clips(1, lengths=(17,))
    cache = LatentCache(tmp_path / "cache", "vae")
    keys = set()
    for dataset in (
        {},
        {"resolution": "96"},
        {"num_video_frames": 9},
        {"num_video_frames": 9, "frame_selection_mode": "center"},
    ):
        loader = make(folder, {"latent_cache": cache}, dataset, max_sequence_length=1000)
        keys.add(next(iter(loader))[0].cache_key)
    (folder / "videos/c0.mp4").touch()
    keys.add(next(iter(make(folder, {"latent_cache": cache}, max_sequence_length=1000)))[0].cache_key)
    assert len(keys) == 5


def test_long_captions_are_cut_and_counted(clips: Callable) -> None:
    loader = make(clips(2), max_caption_tokens=5, dataset={"cfg_dropout_rate": 0.0})
    sample = next(iter(loader))[0]
    assert sample.text_ids == tokenize(sample.caption)[:5]
    assert loader.counts["captions_truncated"] == loader.counts["samples"] > 0


def test_caption_dropout_goes_through_the_tokenizer(clips: Callable) -> None:
    """The unconditional text is the template around nothing, not an empty list made up here."""
    loader = make(clips(2), {"tokenizer": lambda text: [7, *text.encode()]}, {"cfg_dropout_rate": 1.0})
    assert all(s.text_ids == [7] and s.caption == "" for s in next(iter(loader)))


def test_samples_above_the_cap_are_listed_not_fatal(clips: Callable, tmp_path: Path) -> None:
    loader = make(clips(3), {"quarantine": Quarantine(tmp_path)}, max_sequence_length=40)
    keys = {s.key for pack in islice(loader, 9) for s in pack}
    assert keys == {"c0_w0", "c1_w0"}
    (line,) = (json.loads(text) for text in (tmp_path / "quarantine.jsonl").read_text().splitlines())
    assert (line["key"], line["reason"]) == ("c2_w0", "over_token_cap")
    assert "max_sequence_length is 40" in line["detail"]
    assert (Path(line["path"]).name, line["line"]) == ("c2.mp4", 3)


def test_sound_samples_above_the_cap_do_not_count_as_bad(clips: Callable) -> None:
    """However many there are: like clips that are too long, they are left out because the config says so."""
    loader = make(clips(3), max_sequence_length=40, max_bad_fraction=0.0, bad_samples_allowed=0)
    assert {s.key for pack in islice(loader, 9) for s in pack} == {"c0_w0", "c1_w0"}
    assert loader.quarantine.counts == {"over_token_cap": 1}


def test_a_window_that_ends_behind_its_clip_is_said_once_and_counted(
    clips: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    folder = clips(3)
    file = next(folder.glob("*.jsonl"))
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records[:2]:
        record["t2w_windows"][0]["end_frame"] = 900
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    with caplog.at_level("WARNING"):
        loader = make(folder)
        kept = {sample.key for pack in islice(loader, 9) for sample in pack}
    assert {key.partition("_")[0] for key in kept} == {"c0", "c1", "c2"}
    assert 0 < loader.counts["windows_shortened"] < loader.counts["samples"]
    assert caplog.text.count("ends at frame 900, but the clip ends at ") == 1


def test_an_uneven_frame_rate_is_said_once_and_counted(
    clips: Callable, write_clip: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    folder = clips(2)
    times = [0, *np.cumsum(np.random.RandomState(0).randint(3, 8, 24) * 5).tolist()]
    for clip in sorted((folder / "videos").iterdir()):
        write_clip(clip, frames=25, fps=30, times=times)
    with caplog.at_level("WARNING"):
        loader = make(folder)
        sample = next(iter(loader))[0]
    assert sample.fps == pytest.approx(25 / (times[-1] / 600), rel=0.06)
    assert loader.counts["variable_rate"] == loader.counts["samples"] > 1
    assert caplog.text.count("frames are unevenly spaced") == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("max_bad_fraction", [0.05, 1.0])
def test_all_bad_ends_at_once_with_counts(
    tmp_path: Path, write_jsonl: Callable, record: Callable, workers: int, max_bad_fraction: float
) -> None:
    """Never an endless loop, not even when any share of bad samples is allowed."""
    file = write_jsonl(tmp_path, [record(f"absent{i}") for i in range(20)])
    loader = make(file, {"quarantine": Quarantine(tmp_path)}, max_bad_fraction=max_bad_fraction, num_workers=workers)
    with pytest.raises(DataError, match=r"missing_file \d+; listed in .*quarantine\.jsonl"):
        next(iter(loader))


def test_all_bad_ends_after_one_look_at_each(
    tmp_path: Path, write_jsonl: Callable, record: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    original = ClipMaker.make
    monkeypatch.setattr(ClipMaker, "make", lambda self, p: looks.append(p) or original(self, p))
    loader = make(write_jsonl(tmp_path, [record(f"absent{i}") for i in range(20)]), max_bad_fraction=1.0)
    with pytest.raises(DataError):
        next(iter(loader))
    assert looks == list(range(20))


def test_a_rank_that_only_ever_sees_bad_samples_ends_too(
    tmp_path: Path, write_clip: Callable, write_jsonl: Callable, record: Callable
) -> None:
    """Two ranks without shuffling share two windows: the rank with the missing one must not spin."""
    folder = tmp_path / "set"
    write_clip(folder / "videos/a.mp4")
    write_jsonl(folder, [record("a"), record("b")])
    loader = make(folder, {"rank": 0, "world_size": 2}, shuffle=False)
    assert loader.dataset.windows[0].key == "b_w0"
    with pytest.raises(DataError, match=r"no sample of .* can be used"):
        next(iter(loader))


def test_an_empty_data_set_is_an_error_with_the_reasons(
    tmp_path: Path, write_jsonl: Callable, record: Callable
) -> None:
    file = write_jsonl(tmp_path, [record("a", frames=4), "{"])
    with pytest.raises(DataError, match=r"2 records and no usable sample \(skipped: bad_json 1, too_short 1\)"):
        make(file)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"max_sequence_length": None}, "exactly one limit is"), ({"max_samples_per_batch": 2}, "exactly one limit is"),
     ({"latent_cache": "folder"}, "the argument latent_cache is None"),
     ({"num_workers": -1}, "num_workers must be at least 0, found -1"),
     ({"max_bad_fraction": 2.0}, "at least 0 and at most 1")],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(tmp_path, **changes)
