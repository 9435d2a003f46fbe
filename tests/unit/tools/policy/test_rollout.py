"""Rollouts count successes, scores and failures as the environment and the policy report them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from mp4 import read_mp4
from scipy.stats import binomtest

from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.config.tree.read_config import from_dict
from worldsmith.monitor.page.run_page import write_page
from worldsmith.sampling.policy import Observation, PolicySpec, RobotPolicy
from worldsmith.tools.policy.policy_server import PolicyServer
from worldsmith.tools.policy.rollout import Rollout, make_environment, run_episode

LIMIT, COUNT, SEED = 6, 30, 100
INSTRUCTION = "Go home."
STUCK, REFUSED, SLOW = 5, 4, -3
"""Start x at which the environment fails in the second step; start y at which the policy refuses, or is too slow."""


class Reach(gymnasium.Env):
    """A point moves towards the target in its action, at most 1 per step and axis; the task is done at the origin."""

    metadata = {"render_fps": 5, "render_modes": []}
    observation_space = gymnasium.spaces.Dict(
        {
            "view": gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8),
            "at": gymnasium.spaces.Box(-9, 9, (2,), np.float64),
        }
    )
    action_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)

    def observe(self) -> dict[str, np.ndarray]:
        return {"view": np.full((16, 16, 3), 30 * self.steps, np.uint8), "at": self.at.copy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.integers(-8, 9, 2).astype(float), 0
        self.start = self.at.copy()
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        if self.start[0] == STUCK and self.steps == 1:
            raise RuntimeError("the joint is stuck")
        self.steps += 1
        self.at += np.clip(action - self.at, -1, 1)
        left = float(np.abs(self.at).max())
        return self.observe(), -left, False, False, {"is_success": left == 0, "closeness": 1 - left / 8}


def starts() -> list[tuple[int, int]]:
    """The initial positions of the episodes, from the generator that Gymnasium documents for a seed."""
    found = [gymnasium.utils.seeding.np_random(SEED + number)[0].integers(-8, 9, 2) for number in range(COUNT)]
    return [(int(x), int(y)) for x, y in found]


def expected(x: int, y: int) -> tuple[bool, int, float, str]:
    """Success, steps, best closeness and failure of an episode in which the policy goes straight home."""
    far = max(abs(x), abs(y))
    if y in (REFUSED, SLOW):
        return False, 0, 0.0, "refused" if y == REFUSED else "timeout"
    if x == STUCK:
        return False, 1, 1 - (far - 1) / 8, "environment"
    return far <= LIMIT, max(1, min(far, LIMIT)), 1 - max(0, far - LIMIT) / 8, ""


class Home(RobotPolicy):
    """Goes to the origin."""

    spec = PolicySpec({"eye": (16, 16)}, {"position": 2}, 2, 3)

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def predict(self, observations: Any) -> list[np.ndarray]:
        for one in observations:
            self.seeds.append(one.seed)
            assert one.instruction == INSTRUCTION
            if one.images["eye"].max() == 0 and one.state["position"][1] == REFUSED:
                raise ValueError("not from here")
            if one.images["eye"].max() == 0 and one.state["position"][1] == SLOW:
                time.sleep(1.2)
        return [np.zeros((3, 2))] * len(observations)


@pytest.fixture(autouse=True, scope="module")
def environments() -> Iterator[None]:
    gymnasium.register("Reach-v0", Reach, max_episode_steps=LIMIT)
    gymnasium.register("Endless-v0", Reach)
    yield
    del gymnasium.registry["Reach-v0"], gymnasium.registry["Endless-v0"]


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    found = PolicyServer(Home(), port=0, max_batch=1)
    threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def config(out: Path, policy: str, **changes: Any) -> Any:
    given = {"environment": "Reach-v0", "cameras": {"eye": "view"}, "state": {"position": "at"}, "score": "closeness"}
    given |= {"episodes": COUNT, "seed": SEED, "instruction": INSTRUCTION, "max_videos": 0, "timeout": 1.0}
    return from_dict({"policy": policy, "out": str(out), **given, **changes}, Rollout.Config)


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_every_episode_has_the_outcome_of_its_start(scheme: str, server: PolicyServer, tmp_path: Path) -> None:
    result = config(tmp_path, f"{scheme}://127.0.0.1:{server.server_port}").build().run()
    facts = json.loads((tmp_path / "rollout.json").read_text())
    wanted = [expected(x, y) for x, y in starts()]
    found = [(one["success"], one["steps"], one["score"], one["failure"]) for one in facts["episodes"]]
    assert found == wanted
    assert facts["failures"] == Counter(one[3] for one in wanted if one[3])
    assert facts["failures"].keys() == {"refused", "timeout", "environment"}
    interval = binomtest(sum(one[0] for one in wanted), COUNT).proportion_ci(method="wilson")
    assert facts["success_rate"] == sum(one[0] for one in wanted) / COUNT
    assert facts["success_rate_interval"] == pytest.approx([interval.low, interval.high])
    assert facts["mean_score"] == pytest.approx(np.mean([one[2] for one in wanted]))
    assert facts["policy_info"]["chunk_length"] == 3
    text = "\n".join(result.lines)
    assert "environment, such as: RuntimeError: the joint is stuck" in text
    assert "not from here" in text
    assert result.code == 1  # more than 5 % have failed
    seeds = server.policy.seeds  # type: ignore[attr-defined]
    assert len(set(seeds)) == len(seeds) > COUNT
    assert all(seed % 100_000 in (0, 3) for seed in seeds)  # chunks of three actions


def test_a_rollout_records_the_served_model_and_is_in_the_report_of_its_run(
    server: PolicyServer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints/iter_000000004").mkdir(parents=True)
    (run / "config.yaml").write_text("trainer: {max_iter: 4}\n")
    write_page(run)
    model = run / "checkpoints/iter_000000004"
    server.policy.spec = replace(Home.spec, about={"model": str(model), "iteration": 4})
    url = f"ws://127.0.0.1:{server.server_port}"
    config(run / "rollout", url, episodes=2, seed=SEED + 2, max_videos=1).build().run()
    (entry,) = json.loads((run / "rollout/lineage.json").read_text())["inputs"]
    assert (entry["role"], entry["path"]) == ("model", str(model))
    html = (run / "report.html").read_text()
    assert "success rate (higher is better)" in html
    assert html.count("<video") == 1


def test_the_horizon_is_the_number_of_executed_actions(server: PolicyServer, tmp_path: Path) -> None:
    far = next(number for number, (x, y) in enumerate(starts()) if max(abs(x), abs(y)) == 6 and expected(x, y)[0])
    chosen = {"seed": SEED + far, "episodes": 1}
    for horizon, steps in ((1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4]), (None, [0, 3])):
        server.policy.seeds.clear()  # type: ignore[attr-defined]
        url = f"ws://127.0.0.1:{server.server_port}"
        config(tmp_path, url, horizon=horizon, force=True, **chosen).build().run()
        assert [seed % 100_000 for seed in server.policy.seeds] == steps  # type: ignore[attr-defined]


def test_several_environments_give_the_same_episodes(tmp_path: Path) -> None:
    found = []
    for count in (1, 3):
        config(tmp_path / str(count), "random", environments=count, max_steps=4).build().run()
        found.append(json.loads((tmp_path / str(count) / "rollout.json").read_text())["episodes"])
    assert found[0] == found[1]
    assert len({one["score"] for one in found[0]}) > 5
    assert {one["steps"] for one in found[0] if not one["failure"] and not one["success"]} == {4}


def test_the_robot_that_stands_still_stays_where_it_starts(tmp_path: Path) -> None:
    facts = config(tmp_path, "still", max_failed=1.0).build().run().facts
    scores = [1 - max(abs(x), abs(y)) / 8 for x, y in starts()]
    assert [one["score"] for one in facts["episodes"]] == scores
    assert facts["clipped_actions"] == 0


def test_videos_show_what_the_policy_sees(tmp_path: Path) -> None:
    """Frame n of an episode has the gray level 30 n, in the frame rate of the environment."""
    config(tmp_path, "still", max_videos=3, episodes=5, max_failed=1.0).build().run()
    videos = sorted((tmp_path / "videos").iterdir())
    assert [video.name for video in videos] == [f"seed_{SEED + number}.mp4" for number in range(3)]
    frames, fps = read_mp4(videos[1])
    assert fps == 5
    np.testing.assert_allclose(frames.float().mean((0, 2, 3)), 30 * np.arange(LIMIT + 1), atol=4)


def test_actions_outside_of_the_space_are_clipped_and_counted(tmp_path: Path) -> None:
    settings = config(tmp_path, "random")
    env = make_environment(settings)
    far = run_episode(env, settings, lambda observation: np.array([[50.0, -50.0]]), SEED + 1)
    assert (far.clipped, far.steps) == (LIMIT, LIMIT)
    x, y = starts()[1]
    there_and_back = np.array([[0.0, 0.0]] * 2 + [[9 * np.sign(x), 9 * np.sign(y)]] * 4)
    best = run_episode(env, settings, lambda observation: there_and_back, SEED + 1)
    assert best.score == 1 - (max(abs(x), abs(y)) - 2) / 8  # not that of the last step
    assert best.reward == -sum(max(abs(x), abs(y)) - away for away in (1, 2, 1, 0, -1, -1))
    for chunk in (np.zeros((3, 4)), np.zeros(2), np.zeros((0, 2))):
        bad = run_episode(env, settings, lambda observation, chunk=chunk: chunk, SEED + 1)
        assert (bad.failure, bad.steps, bad.success) == ("invalid", 0, False)
    seen: list[Observation] = []
    run_episode(env, settings, lambda observation: seen.append(observation) or np.zeros((1, 2)), SEED + 1)
    assert seen[1].state_vector is not None
    assert seen[1].state_vector.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environment": "Nothing-v0"}, "NameNotFound"),
        ({"environment": "no_such_module:Reach-v0"}, "No module named 'no_such_module'"),
        ({"environment": "Endless-v0"}, "set --max-steps"),
        ({"environment": "CartPole-v1"}, "expected actions of one vector, found Discrete"),
        ({"options": {"color": "red"}}, "takes no arguments"),
        ({"cameras": {"eye": "image"}}, "have no 'image'; found: view, at"),
        ({"cameras": {"eye": "at"}}, r"camera eye: expected uint8 \[H, W, 3\], found float64 \[2\]"),
        ({"score": "coverage"}, "has no 'coverage'; found: is_success, closeness"),
        ({"success": "done"}, "has no 'done'; found: is_success, closeness"),
        ({"policy": "tcp://x"}, "expected the address of a policy server"),
        ({"policy": "http://127.0.0.1:9"}, "the policy server does not answer"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        config(tmp_path, **{"policy": "still", **changes}).build().run()
    assert not (tmp_path / "rollout.json").exists()


def test_a_server_of_another_robot_is_refused(server: PolicyServer, tmp_path: Path, monkeypatch) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    for changes, reason in (
        ({"cameras": {"hand": "view"}}, "--cameras: the policy needs eye; found hand"),
        ({"state": {}}, "--state: the policy needs position; found none"),
    ):
        with pytest.raises(UserError, match=reason):
            list(config(tmp_path, url, **changes).build().plan())
    monkeypatch.setattr(Home, "spec", PolicySpec({"eye": (16, 16)}, {"position": 2}, 7, 3))
    with pytest.raises(UserError, match="actions of width"):
        list(config(tmp_path, url).build().plan())


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"cameras": {}, "max_videos": 1}, "max_videos"), ({"domain": "x"}, "domain"), ({"state": {}}, "policy")],
)
def test_settings_that_have_no_effect_are_refused(changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    settings = config(tmp_path, "still", **changes)
    with pytest.raises(WrongValueError, match=field):
        settings.check()


def test_results_are_replaced_on_request_only(tmp_path: Path) -> None:
    config(tmp_path, "still", episodes=2, max_failed=1.0).build().run()
    with pytest.raises(UserError, match="exists"):
        config(tmp_path, "still", episodes=2).build().run()
    assert config(tmp_path, "still", episodes=1, force=True, max_failed=1.0).build().run().code == 0
