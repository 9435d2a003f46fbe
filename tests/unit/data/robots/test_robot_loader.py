"""Packs of robot episodes: frames, rows and prompts of a window, the modes, mixes, resuming and the latent cache."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robot_episodes import CAMERAS, FPS, color, encode, frames, write_episodes

from worldsmith.config import WrongValueError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.data.latent_cache import LatentCache
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.robot import DroidJoints, LiberoRobot, PushTRobot, Robot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.data.robots.robot_maker import arrange, pad_to
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.video_decoder import examine, pick, pick_times

GRID = LatentGrid(frames=4, pixels=16, patch=2)
WRIST = "observation.images.wrist_image"


def robot_data(folder: Path, robot: Robot.Config | None = None, **values: Any) -> RobotDataset.Config:
    settings = {"steps": 4, "resolution": "64", "cfg_dropout_rate": 0.0, **values}
    return RobotDataset.Config(path=str(folder), robot=robot or LiberoRobot.Config(), **settings)


def load(dataset: Any, runtime: dict[str, Any] | None = None, **values: Any) -> RobotLoader:
    config = RobotLoader.Config(**{"dataset": dataset, "max_samples_per_batch": 4, **values})
    found: RobotLoader = config.build(
        **{"grid": GRID, "tokenizer": lambda text: list(text.encode()), **(runtime or {})}
    )
    return found


def epoch(loader: RobotLoader) -> list[VideoSample]:
    return list(loader.first_samples())


def place(sample: VideoSample) -> tuple[int, int]:
    """Returns (episode, first frame) of a sample."""
    episode, _, first = sample.key.rpartition("/")[2].removeprefix("episode_").partition("_f")
    return int(episode), int(first)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_frames_and_rows_of_a_window_belong_together(version: str, tmp_path: Path) -> None:
    """The camera of the scene is left, that of the wrist right; the colors identify episode and frame."""
    loader = load(robot_data(write_episodes(tmp_path, version), resolution="64x32"))
    samples = epoch(loader)
    assert len(samples) == len({sample.key for sample in samples}) == 24
    for sample in samples:
        episode, first = place(sample)
        assert sample.video is not None
        assert sample.video.shape == (3, 5, 32, 64)
        assert sample.video.is_contiguous()
        for number in range(5):
            left, right = sample.video[:, number, :, :32], sample.video[:, number, :, 32:]
            for view, camera in ((left, 0), (right, 1)):
                wanted = torch.tensor(color(episode, first + number, camera)).view(3, 1, 1)
                assert (view.int() - wanted).abs().max() <= 3, (sample.key, number, camera)
        assert sample.actions is not None
        assert torch.allclose(sample.actions.rows[:, 0], torch.tensor(episode / 10))
        assert torch.allclose(sample.actions.rows[:, 1], torch.arange(first, first + 4) / 100)
        assert (sample.latent_shape, sample.size, sample.num_frames, sample.fps) == ((2, 2, 4), (32, 64), 5, FPS)
        assert sample.num_tokens == len(sample.text_ids) + 1 + 2 * 1 * 2 + 2 + 4
        assert (sample.actions.domain, sample.actions.fps) == (5, FPS)


def test_the_prompt_states_viewpoint_idle_rows_and_canvas(tmp_path: Path) -> None:
    samples = epoch(load(robot_data(write_episodes(tmp_path))))
    found = {place(sample)[0]: json.loads(sample.caption) for sample in samples}
    assert found[1]["actions"][0] == {"time": "0:00-0:00", "description": "open the door.", "idle_frame": "0 out of 4."}
    assert found[1]["resolution"] == {"H": 64, "W": 128}
    assert found[1]["cinematography"]["framing"].endswith("the right half shows the wrist-mounted camera.")
    phrasings = Counter(json.loads(sample.caption)["actions"][0]["description"] for sample in samples)
    assert set(phrasings) == {"pick up the cup.", "take the cup.", "open the door."}
    (text, *_) = epoch(load(robot_data(tmp_path, prompt="task", episodes="1:2")))
    assert text.caption == "open the door"


def test_captions_are_dropped_at_random(tmp_path: Path) -> None:
    samples = list(load(robot_data(write_episodes(tmp_path), cfg_dropout_rate=0.5)).first_samples(4))
    dropped = sum(sample.caption == "" for sample in samples)
    assert 30 <= dropped <= 66  # of 96


STATE = ["position action[0:3]", "rotation action[3:6] axis_angle", "gripper action[6]"]
MODES = [
    # mode, state row, history -> clean latent frames, clean rows, rows, offset: `build_sequence_plan_from_mode` of
    # cosmos_framework 5eee9ed
    ("wam", False, 0, (1, 0, 4, 1)),
    ("wam", True, 0, (1, 1, 5, 0)),
    ("wam", False, 3, (1, 3, 7, -2)),
    ("wam", True, 3, (1, 4, 8, -3)),
    ("policy", False, 0, (1, 0, 4, 1)),
    ("policy", False, 3, (1, 3, 7, -2)),
    ("forward_dynamics", False, 0, (1, 4, 4, 1)),
    ("forward_dynamics", True, 0, (1, 5, 5, 0)),
    ("forward_dynamics", True, 3, (1, 8, 8, -3)),
    ("inverse_dynamics", False, 0, (2, 0, 4, 1)),
    ("inverse_dynamics", True, 0, (2, 1, 5, 0)),
    ("inverse_dynamics", True, 3, (2, 4, 8, -3)),
]


@pytest.mark.parametrize(("mode", "state", "history", "expected"), MODES)
def test_a_mode_sets_what_is_given(
    mode: str, state: bool, history: int, expected: tuple[int, ...], tmp_path: Path
) -> None:
    robot = LiberoRobot.Config(rotation="axis_angle", state=STATE if state else [])
    dataset = robot_data(write_episodes(tmp_path), robot, modes={mode: 1.0}, history=history)
    samples = epoch(load(dataset))
    full = [s for s in samples if s.actions is not None and len(s.actions.rows) == expected[2]]
    assert full
    for sample in full:
        rows = sample.actions
        assert rows is not None
        assert (sample.condition_frames, rows.clean_rows, len(rows.rows), rows.offset) == expected
        assert ("idle_frame" in sample.caption) == (mode != "inverse_dynamics")
        first = place(sample)[1]
        numbers = [first - history + n for n in range(history)] + [first] * state + [first + n for n in range(4)]
        assert torch.allclose(rows.rows[:, 1], torch.tensor(numbers) / 100)
    assert f'"idle_frame": "0 out of {4 + state}."' in full[0].caption or mode == "inverse_dynamics"


def test_history_is_the_complete_one_or_a_random_part(tmp_path: Path) -> None:
    robot = DroidJoints.Config(
        cameras=[WRIST], actions=["joints action"], state=["joints observation.state", "joints action[0]"]
    )
    dataset = robot_data(
        write_episodes(tmp_path, lengths=(40,)), robot, history=8, history_of="states", resolution="64"
    )
    counts: Counter[int] = Counter()
    for sample in load(dataset).first_samples(30):
        first, actions = place(sample)[1], sample.actions
        assert actions is not None
        if first >= 8:
            counts[len(actions.rows) - 5] += 1
            history = len(actions.rows) - 5
            assert torch.allclose(actions.rows[: history + 1, 0], torch.arange(first - history, first + 1) / 100)
            assert torch.allclose(actions.rows[history + 1 :, 1], torch.arange(first, first + 4) / 100)
    total = sum(counts.values())
    assert counts[8] / total == pytest.approx(0.5 + 0.5 / 9, abs=0.06)
    assert all(counts[n] / total == pytest.approx(0.5 / 9, abs=0.03) for n in range(8))


def test_modes_are_drawn_by_weight_and_position(tmp_path: Path) -> None:
    modes = {"wam": 2.0, "forward_dynamics": 1.0, "inverse_dynamics": 1.0}
    dataset = robot_data(write_episodes(tmp_path), modes=modes)
    maker = load(dataset).maker
    found = Counter(maker.features(sample)["mode"][0] for sample in load(dataset).first_samples(30))
    assert {name: found[name] / 720 for name in modes} == pytest.approx(
        {"wam": 0.5, "forward_dynamics": 0.25, "inverse_dynamics": 0.25}, abs=0.06
    )
    again = [sample.condition_frames for sample in load(dataset, num_workers=2).first_samples(3)]
    assert again == [sample.condition_frames for sample in load(dataset).first_samples(3)]


def test_rows_are_normalized(tmp_path: Path) -> None:
    write_episodes(tmp_path)
    file = tmp_path / "stats.json"
    file.write_text(json.dumps({"min": [0.0] * 7, "max": [0.5] * 7}))
    robot = PushTRobot.Config(cameras=[WRIST], normalization="minmax", statistics=str(file))
    for sample in epoch(load(robot_data(tmp_path, robot))):
        assert sample.actions is not None
        episode, first = place(sample)
        assert torch.allclose(sample.actions.rows[:, 0], torch.tensor(episode / 10 * 4 - 1))
        assert torch.allclose(sample.actions.rows[:, 1], torch.arange(first, first + 4) / 25 - 1, atol=1e-6)
    clamped = PushTRobot.Config(cameras=[WRIST], normalization="minmax", statistics=str(file), clamp=True)
    assert max(float(s.actions.rows.max()) for s in epoch(load(robot_data(tmp_path, clamped))) if s.actions) == 1


@pytest.mark.parametrize(
    ("size", "counts", "resolution", "content", "canvas"),
    [
        # sizes of `find_closest_target_size` and `reflection_pad_to_target` of cosmos_framework 5eee9ed
        ((256, 256), [2], "256", (320, 160), (320, 192)),
        ((640, 360), [1, 2], "480", (640, 540), (736, 544)),
        ((640, 360), [1], "256", (320, 180), (320, 192)),
        ((96, 96), [1], "256", (96, 96), (256, 256)),
        ((480, 640), [1], "480", (480, 640), (544, 736)),
        ((720, 1080), [1], "480", (512, 768), (512, 768)),
        ((256, 256), [2], "64", (128, 64), (128, 64)),
        ((100, 50), [1], "96x96", (96, 48), (96, 96)),
    ],
)
def test_cameras_are_arranged_as_in_the_reference(
    size: tuple[int, int], counts: list[int], resolution: str, content: tuple[int, int], canvas: tuple[int, int]
) -> None:
    found = arrange(size, counts, resolution)
    assert (found.content, found.canvas) == (content, canvas)


def test_two_small_cameras_are_below_a_large_one(tmp_path: Path) -> None:
    cameras = {"wrist": (64, 32), "left": (64, 32), "right": (64, 32)}
    write_episodes(tmp_path, cameras=cameras)
    robot = LiberoRobot.Config(cameras=["wrist", "left | right"])
    for sample in epoch(load(robot_data(tmp_path, robot, resolution="64x64", episodes="2:"))):
        assert sample.video is not None
        assert sample.video.shape[2:] == (64, 64)
        assert sample.latent_shape == (2, 3, 4)
        parts = [(0, 32, 0, 64, 0), (32, 48, 0, 32, 1), (32, 48, 32, 64, 2)]
        for top, bottom, left, right, camera in parts:
            image = sample.video[:, 0, top:bottom, left:right].int()
            wanted = torch.tensor(color(*place(sample), camera)).view(3, 1, 1)
            assert (image - wanted).abs().max() <= 3
        # 16 rows of padding reflect the content above
        assert torch.equal(sample.video[:, :, 48:63], sample.video[:, :, 32:47].flip(2))


def test_padding_reflects_or_repeats() -> None:
    video = np.arange(2 * 3, dtype=np.uint8).reshape(1, 1, 2, 3).repeat(3, 0)
    assert pad_to(video, (5, 3))[0, 0].tolist() == [[0, 1, 2, 1, 0], [3, 4, 5, 4, 3], [0, 1, 2, 1, 0]]
    assert pad_to(video, (4, 4))[0, 0].tolist() == [[0, 1, 2, 2], [3, 4, 5, 5], [3, 4, 5, 5], [3, 4, 5, 5]]


@pytest.mark.parametrize("gop", [1, 4, 50])
def test_frames_are_found_by_their_times(gop: int, tmp_path: Path) -> None:
    path = str(tmp_path / "a.mp4")
    encode(Path(path), frames(0, 30, 0, (32, 32)), gop=gop)
    _, info = examine(path)
    for first in range(26):
        times = [(first + n) / FPS for n in range(4)]
        found = [frame.to_ndarray() for frame in pick_times(path, info, times, 0.02)]
        wanted = [frame.to_ndarray() for frame in pick(path, info, range(first, first + 4))]
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("times", "reason"), [([0.44], "times_differ"), ([2.9, 3.0], "truncated"), ([0.4, 0.5, 0.6], "times_differ")]
)
def test_a_frame_that_is_not_there_is_reported(times: list[float], reason: str, tmp_path: Path) -> None:
    path = str(tmp_path / "a.mp4")
    encode(Path(path), frames(0, 30, 0, (32, 32)), skip=[5])
    _, info = examine(path)
    with pytest.raises(SampleError, match=reason):
        list(pick_times(path, info, times, 0.025))


def test_windows_without_their_frames_are_rejected_not_replaced(tmp_path: Path) -> None:
    write_episodes(tmp_path, "v2.1")
    (tmp_path / f"videos/chunk-000/{WRIST}/episode_000001.mp4").unlink()
    encode(tmp_path / f"videos/chunk-000/{WRIST}/episode_000002.mp4", frames(2, 15, 1, CAMERAS[WRIST])[:-2])
    loader = load(robot_data(tmp_path), max_bad_fraction=1.0)
    assert Counter(place(sample)[0] for sample in loader.first_samples()) == {0: 8, 2: 9}
    assert loader.quarantine.counts == {"missing_file": 5, "truncated": 2}
    with pytest.raises(DataError, match="E101"):
        list(load(robot_data(tmp_path), bad_samples_allowed=0).first_samples())


def facts(pack: list[VideoSample]) -> list[tuple[Any, ...]]:
    """Everything in a pack that training could notice, pixels included."""
    found = []
    for s in pack:
        assert s.video is not None
        rows = None if s.actions is None else (s.actions.rows.tolist(), s.actions.clean_rows, s.actions.offset)
        found.append(
            (s.key, s.position, s.caption, s.condition_frames, s.num_tokens, rows, hash(s.video.numpy().tobytes()))
        )
    return found


def random_data(folder: Path) -> RobotDataset.Config:
    modes = {"wam": 1.0, "forward_dynamics": 1.0, "inverse_dynamics": 1.0}
    return robot_data(folder, modes=modes, history=3, cfg_dropout_rate=0.2)


def mixed(tmp_path: Path, clips: Callable[..., Path], **values: Any) -> ClipMix.Config:
    plain = VideoDataset.Config(path=str(clips(3)), resolution="64", min_frames=5)
    robots = {
        name: random_data(write_episodes(tmp_path / name, lengths=(9, count))) for name, count in (("a", 12), ("b", 7))
    }
    return ClipMix.Config(datasets={**robots, "videos": plain}, **values)


def test_a_mix_has_every_sample_once_per_epoch(tmp_path: Path, clips: Callable[..., Path]) -> None:
    loader = load(mixed(tmp_path, clips))
    samples = epoch(loader)
    found = Counter(sample.key.partition("/")[0] for sample in samples)
    assert found == {"a": 13, "b": 8, "videos": 3}
    assert len({sample.key for sample in samples}) == len(samples) == 24
    assert all((sample.actions is None) == sample.key.startswith("videos") for sample in samples)
    packs = [{sample.key[0] for sample in pack} for pack in islice(loader, 6)]
    assert {"a", "v"} <= set.union(*packs)
    assert any(len(pack) > 1 for pack in packs)


def test_weights_set_the_ratio_and_later_epochs_continue(tmp_path: Path, clips: Callable[..., Path]) -> None:
    config = mixed(tmp_path, clips, weights={"a": 1.0, "b": 1.0, "videos": 2.0})
    loader = load(config)
    first = epoch(loader)
    assert Counter(sample.key.partition("/")[0] for sample in first) == {"a": 13, "b": 13, "videos": 26}
    assert {sample.key for sample in first} == {sample.key for sample in epoch(load(mixed(tmp_path, clips)))}
    keys = Counter(sample.key for sample in loader.first_samples(8) if sample.key.startswith("b/"))
    assert set(keys.values()) == {13}  # 8 epochs of 13 samples of 8 windows: each window is seen equally often
    same = Counter(sample.key for sample in loader.first_samples(1) if sample.key.startswith("b/"))
    assert sorted(same.values()) == [1, 1, 1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, "at least one dataset"),
        ({"datasets": {"a": ClipMix.Config()}}, "cannot contain another"),
        ({"datasets": {"a": RobotDataset.Config()}, "weights": {"b": 1.0}}, "positive weight"),
        ({"datasets": {"a": RobotDataset.Config()}, "weights": {"a": 0.0}}, "positive weight"),
    ],
)
def test_a_mix_that_contradicts_itself_is_refused(values: dict[str, Any], found: str) -> None:
    with pytest.raises(WrongValueError, match=found):
        ClipMix.Config(**values).check()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_continues_with_the_packs_that_would_have_followed(
    workers: int, tmp_path: Path, clips: Callable[..., Path]
) -> None:
    config = mixed(tmp_path, clips, weights={"a": 1.0, "b": 2.0, "videos": 1.0})
    limits = {"max_samples_per_batch": None, "max_sequence_length": 900}
    whole = [facts(pack) for pack in islice(load(config, **limits), 9)]
    loader = load(config, num_workers=workers, **limits)
    begin = [facts(pack) for pack in islice(loader, 4)]
    states = json.loads(json.dumps([loader.state_dict()]))
    loader = load(config, num_workers=workers, **limits)
    loader.load_states(states)
    assert begin + [facts(pack) for pack in islice(loader, 5)] == whole


def test_ranks_share_the_epoch(tmp_path: Path, clips: Callable[..., Path]) -> None:
    config = mixed(tmp_path, clips)
    parts = [epoch(load(config, {"rank": rank, "world_size": 2})) for rank in range(2)]
    assert sorted(s.key for part in parts for s in part) == sorted(s.key for s in epoch(load(config)))


def test_latents_are_cached_by_content(tmp_path: Path) -> None:
    write_episodes(tmp_path / "a")
    cache = LatentCache(tmp_path / "cache", "vae")

    def read(**values: Any) -> dict[str, VideoSample]:
        found = load(robot_data(tmp_path / "a", **values), {"latent_cache": cache}, latent_cache="cache")
        return {sample.key: sample for sample in epoch(found)}

    samples = read()
    assert len({sample.cache_key for sample in samples.values()}) == 24
    for sample in samples.values():
        assert sample.cache_key is not None
        cache.put(sample.cache_key, torch.full((16, *sample.latent_shape), float(sample.position)))
    again = read(modes={"forward_dynamics": 1.0}, prompt="task")  # the latents do not depend on these
    for key, sample in again.items():
        assert sample.video is None
        assert sample.latents is not None
        assert float(sample.latents[0, 0, 0, 0]) == samples[key].position
    assert all(sample.latents is None for sample in read(resolution="96").values())
    assert all(sample.latents is None for sample in read(robot=LiberoRobot.Config(cameras=[WRIST])).values())
    wrist = tmp_path / f"a/videos/{WRIST}/chunk-000/file-001.mp4"
    encode(wrist, frames(2, 15, 0, CAMERAS[WRIST]), gop=3)
    hit = {key for key, sample in read().items() if sample.latents is not None}
    assert hit == {key for key in samples if not key.startswith("episode_000002")}


def test_a_sample_is_sent_through_a_pipe(tmp_path: Path) -> None:
    (sample, *_) = epoch(load(robot_data(write_episodes(tmp_path))))
    again = pickle.loads(pickle.dumps(sample))
    assert facts([again]) == facts([sample])


def test_numbers_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    write_episodes(tmp_path)
    with pytest.raises(DataError, match="multiple of 4"):
        load(robot_data(tmp_path, steps=6))
    with pytest.raises(DataError, match="conditioning images"):
        load(robot_data(tmp_path), {"first_frames": "cached"})
    loader = load(robot_data(tmp_path), {"required_latent_shape": (2, 4, 4)})
    with pytest.raises(DataError, match="other_shape"):
        next(iter(loader))
    loader = load(robot_data(tmp_path), max_samples_per_batch=None, max_sequence_length=100)
    with pytest.raises(DataError, match="over_token_cap"):
        next(iter(loader))


def test_statistics_go_to_the_run_folder(tmp_path: Path) -> None:
    write_episodes(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps({"q01": [0] * 10, "q99": [1] * 10}))
    robot = LiberoRobot.Config(normalization="quantile_rot", statistics=str(tmp_path / "s.json"))
    dataset = ClipMix.Config(datasets={"a": robot_data(tmp_path, robot), "b": robot_data(tmp_path)}).build()
    files = dataset.run_files()
    stated = {name: json.loads(files.pop(f"{name}_robot_policy.json"))["statistics"] for name in "ab"}
    assert files == {"a_robot_statistics.json": (tmp_path / "s.json").read_text()}
    assert stated == {"a": json.loads((tmp_path / "s.json").read_text()), "b": {}}


def test_droid_is_read_with_its_three_cameras_and_scalar_columns(tmp_path: Path) -> None:
    """Wrist above, two half-size cameras below; 7 joints and the flipped gripper; the measured state is row 0."""
    wrist, sides = "observation.image.wrist_image_left", [f"observation.image.exterior_image_{n}_left" for n in (1, 2)]
    number = {"dtype": "float32", "names": None}
    features = {
        name: {**number, "shape": [7]} for name in ("action.joint_position", "observation.state.joint_positions")
    }
    features |= {
        name: {**number, "shape": [1]} for name in ("action.gripper_position", "observation.state.gripper_position")
    }

    def change(episode: int, found: dict[str, list[Any]]) -> None:
        count = len(found["action"])
        found["action.joint_position"] = [[n / 100 + joint for joint in range(7)] for n in range(count)]
        found["observation.state.joint_positions"] = [[n / 100 - joint for joint in range(7)] for n in range(count)]
        found["action.gripper_position"] = [n / 100 for n in range(count)]
        found["observation.state.gripper_position"] = [[n / 200] for n in range(count)]

    cameras = {wrist: (64, 36), sides[0]: (64, 36), sides[1]: (64, 36)}
    write_episodes(tmp_path, lengths=(40,), cameras=cameras, features=features, change=change)
    loader = load(robot_data(tmp_path, DroidJoints.Config(), steps=32, resolution="96"))
    for sample in epoch(loader):
        first, actions = place(sample)[1], sample.actions
        assert actions is not None
        assert sample.video is not None
        assert (actions.rows.shape, actions.clean_rows, actions.offset, actions.domain) == ((33, 8), 1, 0, 8)
        assert actions.rows[0].tolist() == pytest.approx([*(first / 100 - n for n in range(7)), 1 - first / 200])
        assert actions.rows[5].tolist() == pytest.approx(
            [*((first + 4) / 100 + n for n in range(7)), 1 - (first + 4) / 100]
        )
        assert "out of 33." in sample.caption
        assert (sample.video.shape, sample.latent_shape) == ((3, 33, 96, 128), (9, 3, 4))
        for camera, (row, column) in enumerate(((18, 32), (45, 16), (45, 48))):
            wanted = torch.tensor(color(0, first, camera))
            assert (sample.video[:, 0, row, column].int() - wanted).abs().max() <= 3
