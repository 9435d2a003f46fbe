"""The demonstrations of the PushT task replay exactly, as a LeRobot dataset whose images do not show the actions."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas
import pytest
from mp4 import read_mp4

from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.sampling.policy import Observation, PolicySpec, RobotPolicy
from worldsmith.tools.datasets.imports.lerobot import read_lerobot
from worldsmith.tools.datasets.imports.source_clips import Choices
from worldsmith.tools.policy.policy_server import PolicyServer
from worldsmith.tools.policy.remote_policy import RemotePolicy
from worldsmith.tools.policy.rollout import Rollout

ROOT = Path(__file__).parents[2]
EPISODES, VAL, HOLD = 3, 1, 16


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples/pusht" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load("make_dataset")


@pytest.fixture(scope="module")
def demonstrations(example: ModuleType) -> list[Any]:
    return list(example.read_demonstrations(10_000))


@pytest.fixture(scope="module")
def dataset(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pusht") / "set"
    assert example.make_dataset(out, EPISODES, VAL, 96, HOLD) == (EPISODES, [])
    assert example.make_dataset(out, EPISODES, VAL, 96, HOLD) is None
    return out


def test_demonstrations_have_distinct_starts_and_whole_pixels(demonstrations: list[Any]) -> None:
    seeds = [seed for seed, *_ in demonstrations]
    assert len(set(seeds)) == len(seeds) == 819
    assert max(seeds) < 20_000  # the first seed of a rollout
    for _, actions, rest in demonstrations:
        assert actions.dtype == np.int16
        assert 1 <= len(actions) <= 300
        assert 0 <= min(actions.min(), rest.min()) <= max(actions.max(), rest.max()) <= 512
    assert (ROOT / "examples/pusht/demonstrations.npz").stat().st_size < 400_000


def test_rows_and_frames_are_those_of_the_simulator(example: ModuleType, demonstrations: Any, dataset: Path) -> None:
    """Judged by pandas, and by a simulation that is separate from that of the script."""
    rows = pandas.read_parquet(dataset / "data/chunk-000/file-000.parquet")
    info = json.loads((dataset / "meta/info.json").read_text())
    lengths = [len(actions) + HOLD for _, actions, _ in demonstrations[:EPISODES]]
    assert info["total_frames"] == len(rows) == sum(lengths)
    assert info["splits"] == {"train": "0:2", "val": "2:3"}
    assert rows["index"].tolist() == list(range(len(rows)))
    env = example.make_environment(96)
    for number, (seed, actions, rest) in enumerate(demonstrations[:EPISODES]):
        episode = rows[rows["episode_index"] == number]
        assert episode["frame_index"].tolist() == list(range(lengths[number]))
        np.testing.assert_allclose(episode["timestamp"], np.arange(lengths[number]) / 10, rtol=1e-6)
        stored = np.stack(episode["action"].tolist())
        np.testing.assert_array_equal(stored[: len(actions)], actions)
        np.testing.assert_array_equal(stored[len(actions) :], np.tile(rest, (HOLD, 1)))
        frames, fps = read_mp4(dataset / f"videos/observation.image/chunk-000/file-{number:03d}.mp4")
        assert (fps, len(frames[0])) == (10, lengths[number])
        observation, _ = env.reset(seed=seed)
        done = []
        for step, action in enumerate(stored):
            error = np.abs(frames[:, step].permute(1, 2, 0).numpy().astype(int) - observation["pixels"])
            assert error.mean() < 2
            state = episode["observation.state"].iloc[step]
            np.testing.assert_array_equal(state, observation["agent_pos"].astype(np.float32))
            observation, _, terminated, _, info = env.step(action)
            done.append(terminated)
            assert episode["next.success"].iloc[step] == info["is_success"]
        assert done.index(True) == len(actions) - 1
        assert info["coverage"] > 0.92  # the robot does not push the block on while it stops


def test_the_dataset_is_one_of_lerobot(dataset: Path) -> None:
    """LeRobot takes the text of a task from the index of the table, as pandas reads it."""
    tasks = pandas.read_parquet(dataset / "meta/tasks.parquet")
    text = "Push the T-shaped block onto the T-shaped target."
    assert tasks.iloc[0].name == text
    clips = list(read_lerobot(dataset, Choices()))
    assert not any(isinstance(clip, Rejection) for clip in clips)
    assert [(clip.captions, clip.split) for clip in clips] == [
        ({"caption": text}, split) for split in ("train", "train", "val")
    ]
    rows = pandas.read_parquet(dataset / "data/chunk-000/file-000.parquet")
    stats = json.loads((dataset / "meta/stats.json").read_text())
    for name in ("action", "observation.state"):
        values = np.stack(rows[name].tolist()).astype(float)
        for key, judged in (
            ("mean", values.mean(0)),
            ("std", values.std(0)),
            ("q99", np.quantile(values, 0.99, axis=0)),
        ):
            np.testing.assert_allclose(stats[name][key], judged, rtol=1e-5)
    assert np.shape(stats["observation.image"]["mean"]) == (3, 1, 1)


def test_images_do_not_show_the_action(example: ModuleType, demonstrations: Any) -> None:
    """`render()` marks the target with a red cross; in the stored frames only a point of contact is red."""

    def reds(image: np.ndarray) -> int:
        red, green, blue = np.moveaxis(image.astype(int), 2, 0)
        return int(((red > 150) & (green < 100) & (blue < 100)).sum())

    seed, actions, rest = demonstrations[0]
    env = example.make_environment(96)
    frames, _ = example.replay(env, seed, actions, rest, 0)
    env.unwrapped.visualization_width = env.unwrapped.visualization_height = 96
    assert max(reds(frame) for frame in frames) < 4 < reds(env.render())


def test_a_replay_that_differs_is_dropped_and_counted(
    example: ModuleType, demonstrations: Any, tmp_path: Path, monkeypatch
) -> None:
    good, (seed, bad, rest) = demonstrations[:2]
    late = [good, (seed, bad[:-1], rest), (seed, np.concatenate([bad, bad[-1:]]), rest), good]
    monkeypatch.setattr(example, "read_demonstrations", lambda count: iter(late))
    assert example.make_dataset(tmp_path / "set", 4, 1, 96, 0) == (2, [seed, seed])
    described = json.loads((tmp_path / "set/dataset.json").read_text())
    assert described["dropped_seeds"] == [seed, seed]
    assert len(list((tmp_path / "set/videos").rglob("*.mp4"))) == 2


def test_the_planner_finds_episodes_that_replay(example: ModuleType, tmp_path: Path) -> None:
    planner = load("plan_demonstrations")
    actions, coverage, rest = planner.plan_episode(30_000, 60, planner.Simulator())
    assert coverage > 0.95
    assert example.replay(example.make_environment(96), 30_000, np.array(actions), np.array(rest), 16) is not None


class Demonstrator(RobotPolicy):
    """Repeats a demonstration; the step is in the seed of the request."""

    spec = PolicySpec({"image": (96, 96)}, {"state": 2}, 2, 8)

    def __init__(self, actions: np.ndarray) -> None:
        self.actions = np.concatenate([actions, actions[-1:].repeat(8, 0)])

    def predict(self, observations: Any) -> list[np.ndarray]:
        return [self.actions[one.seed % 100_000 :][:8] for one in observations]


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_a_demonstration_succeeds_in_a_rollout(scheme: str, demonstrations: Any, tmp_path: Path) -> None:
    """The whole way: images over the network, chunks of actions back, in the simulator; then the client example."""
    seed, actions, _ = min(demonstrations[:20], key=lambda one: len(one[1]))
    server = PolicyServer(Demonstrator(actions), port=0)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    settings = {
        "policy": f"{scheme}://127.0.0.1:{server.server_port}",
        "environment": "gym_pusht:gym_pusht/PushT-v0",
        "options": {"obs_type": "pixels_agent_pos"},
        "cameras": {"image": "pixels"},
        "state": {"state": "agent_pos"},
        "score": "coverage",
        "episodes": 1,
        "seed": seed,
        "out": str(tmp_path),
    }
    facts = from_dict(settings, Rollout.Config).build().run().facts
    assert (facts["success_rate"], facts["mean_steps"], facts["failures"]) == (1.0, len(actions), {})
    assert facts["mean_score"] > 0.95
    if scheme == "http":
        server.policy.actions = np.full((400, 2), 256)  # type: ignore[attr-defined]
        server.policy.predict = lambda seen: [np.tile([256, 256], (100, 1))] * len(seen)  # type: ignore[method-assign]
        command = [sys.executable, str(ROOT / "examples/policy_client.py"), settings["policy"]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("success: False, the block covers "), done.stderr
    server.shutdown()
    server.server_close()


@contextmanager
def serving(command: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Runs a `worldsmith serve` command in a process; yields the address that it prints."""
    words = shlex.split(command)
    with subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            found = (re.search(r"serving \S+ at (http://127\.0\.0\.1:\d+)$", line.strip()) for line in lines)
            yield next(match[1] for match in found if match)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert process.returncode == 130  # interrupted


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page(tmp_path: Path) -> None:
    """The commands of docs/robot_guide.md run as they stand, and the server of docs/policy.md answers."""
    page = (ROOT / "docs/robot_guide.md").read_text(encoding="utf-8")
    bash = "".join(re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S))
    (python,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/policy.md").read_text("utf-8"), re.M | re.S)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    (config,) = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "pusht.yaml").write_text(config)
    done = subprocess.run(
        ["bash", "-euc", bash], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "success rate  0.000 [0.000, 0.658] over 2 episodes" in done.stdout
    run = tmp_path / "outputs/train/worldsmith/action_sft/pusht"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps if "loss" in step] == [1, 2, 3, 4]
    assert (run / "robot_statistics.json").read_text() == (tmp_path / "pusht_statistics.json").read_text()
    assert len(list((tmp_path / "random/videos").glob("*.mp4"))) == 2
    metrics = json.loads((run / "held_out/evaluation.json").read_text())["figures"]
    assert {"loss", "action_mse", "shuffled_to_true", "psnr"} <= metrics.keys()
    serve, rollout = re.findall(r"^```sh\n(worldsmith serve .*)\n(.*)\n```", page, re.M)[0]
    with serving(f"{serve} --port 0 --steps 1", tmp_path, environment) as address:
        assert "--episodes" not in rollout
        command = f"{rollout.replace('http://127.0.0.1:8000', address)} --episodes 1 --max-steps 20"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads((run / "rollout/rollout.json").read_text())
        assert (found["failures"], found["mean_steps"], found["policy_info"]["chunk_length"]) == ({}, 20, 8)
        assert found["policy_info"]["about"]["iteration"] == 4
        client = [sys.executable, str(ROOT / "examples/policy_client.py"), address]
        done = subprocess.run(client, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("success: False, the block covers "), done.stderr
    names: dict[str, Any] = {}
    exec(python.replace("port=8000", "port=0").replace("server.serve_forever()", ""), names)
    threading.Thread(target=names["server"].serve_forever, daemon=True).start()
    policy = RemotePolicy(f"ws://127.0.0.1:{names['server'].server_port}", 10)
    state = {"state": np.array([0, 512], np.float32)}
    chunk = policy(Observation({"image": np.zeros((96, 96, 3), np.uint8)}, state, "Push."))
    np.testing.assert_allclose(chunk[[0, -1]], [[0, 512], [256, 256]])
    names["server"].shutdown()
    names["server"].server_close()
