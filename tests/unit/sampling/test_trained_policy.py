"""A trained policy gets images, text and state as in training, and returns actions in the units of the data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_generator
import torch
from robot_episodes import FPS, Rows, color, rows, write_episodes

from worldsmith.config.errors import UserError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.data.robots.robot import POLICY_FILE, Robot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.sampling.policy import Observation, RequestError
from worldsmith.sampling.requests import read_request
from worldsmith.sampling.trained_policy import TrainedPolicy, short_names

TOP, LEFT, RIGHT = (f"observation.images.{name}" for name in ("top", "left", "right"))
CAMERAS = {TOP: (96, 64), LEFT: (32, 32), RIGHT: (40, 20)}
GRIPPER = "observation.gripper"


def add_gripper(episode: int, found: Rows) -> None:
    found[GRIPPER] = [[0.25 * (n % 3)] for n in range(len(found["action"]))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robots")
    feature = {GRIPPER: {"dtype": "float32", "shape": [1], "names": None}}
    (folder / "s.json").write_text(json.dumps({"q01": [-1.0] * 6 + [0.2], "q99": [3.0] * 6 + [0.7]}))
    return write_episodes(folder, change=add_gripper, cameras=CAMERAS, features=feature)


@pytest.fixture(scope="module")
def model() -> Cosmos3Generator:
    return Cosmos3Generator(tiny_generator.generator_config(action_gen=True, **tiny_generator.WIDER), seed=0)


def robot_data(folder: Path, **values: Any) -> RobotDataset.Config:
    robot = Robot.Config(
        embodiment="arm",
        domain_id=24,
        cameras=[TOP, f"{LEFT} | {RIGHT}"],
        actions=["joints action[0:6]", "flipped_gripper action[6]"],
        state=["joints observation.state", f"flipped_gripper {GRIPPER}"],
        normalization="quantile_rot",
        statistics=str(folder / "s.json"),
    )
    settings = {"steps": 4, "resolution": "80x64", "cfg_dropout_rate": 0.0, "history": 2, **values}
    return RobotDataset.Config(path=str(folder), robot=robot, **settings)


def load(model: Cosmos3Generator, folder: Path, **values: Any) -> tuple[list[VideoSample], TrainedPolicy]:
    """Returns the samples of training, and the policy that the run folder describes."""
    grid = LatentGrid(*model.latent_grid)
    config = RobotLoader.Config(dataset=robot_data(folder, **values), max_samples_per_batch=4)
    loader: RobotLoader = config.build(grid=grid, tokenizer=model.tokenize)
    data = json.loads(loader.dataset.run_files()[POLICY_FILE])
    policy = TrainedPolicy(data, grid, {"run": "a"}, steps=2, guidance=2.0, shift=3.0)
    policy.model = model
    return list(loader.first_samples()), policy


def observe(sample: VideoSample) -> Observation:
    """What the robot reports at the first frame of a sample; the colors of the images identify it."""
    episode, first = (int(part) for part in sample.key.removeprefix("episode_").split("_f"))
    images = {
        name: np.full((height, width, 3), color(episode, first, index), np.uint8)
        for index, (name, (width, height)) in enumerate(zip(("top", "left", "right"), CAMERAS.values()))
    }
    found = rows(episode, first + 1)
    state = {"state": found["observation.state"][first], "gripper": [0.25 * (first % 3)]}
    arrays = {name: np.array(state[name], np.float32) for name in ("gripper", "state")}
    spoken = json.loads(sample.caption)["actions"][0]["description"] if sample.caption[:1] == "{" else sample.caption
    return Observation(images, arrays, spoken.rstrip("."), 3)


@pytest.mark.parametrize("prompt", ["json", "task"])
def test_a_request_is_the_start_of_a_training_sample(prompt: str, model: Cosmos3Generator, folder: Path) -> None:
    samples, policy = load(model, folder, prompt=prompt)
    sampler = model.sampler(model.defaults.sampling(steps=2))
    assert len(samples) == 24
    for sample in samples:
        request = policy.observe(observe(sample), seed=3)
        assert sample.video is not None
        assert request.condition is not None
        assert request.condition.shape == (3, 1, 64, 80)
        assert (request.condition[:, 0].int() - sample.video[:, 0].int()).abs().max() <= 3
        assert request.prompt == sample.caption  # "0 out of 5.": the gripper moves in each row
        assert "0 out of 5" in request.prompt or prompt == "task"
        read = read_request(sampler, request)
        assert list(read.conditional.text_ids) == sample.text_ids
        assert list(read.unconditional.text_ids) == list(model.tokenize(""))  # as a dropped text in training
        assert read.conditional.latent_shape == sample.latent_shape
        trained, asked = sample.actions, request.actions
        assert trained is not None
        assert asked is not None
        history = -trained.offset
        torch.testing.assert_close(asked.rows[0], trained.rows[history])
        assert (asked.clean_rows, asked.offset) == (1, 0)  # as a window at the start of an episode
        assert (trained.clean_rows, asked.fps, asked.domain) == (history + 1, trained.fps, trained.domain)


@pytest.mark.parametrize("mode", ["forward_dynamics", "inverse_dynamics"])
def test_a_request_of_another_mode_is_a_training_sample(mode: str, model: Cosmos3Generator, folder: Path) -> None:
    """Actions are given in the units of the data, with the number of idle rows; without actions it is not stated."""
    samples, policy = load(model, folder, history=0, modes={mode: 1.0, "wam": 0.001})
    assert len({sample.caption for sample in samples}) > 1
    checked = 0
    for sample in samples:
        trained = sample.actions
        assert trained is not None
        assert sample.video is not None
        if sample.condition_frames == 1 and trained.clean_rows == 1:
            continue  # wam
        episode, first = (int(part) for part in sample.key.removeprefix("episode_").split("_f"))
        start, given = observe(sample), np.array(rows(episode, first + 4)["action"])[first:]
        frames = {
            name: np.stack([np.full(image.shape, color(episode, first + n, index), np.uint8) for n in range(5)])
            for index, (name, image) in enumerate(start.images.items())
        }
        actions = given if mode == "forward_dynamics" else None
        request = policy.request(start.instruction, frames, start.state, 3, mode=mode, actions=actions)
        assert request.prompt == sample.caption
        assert request.condition_frames == sample.condition_frames
        assert request.condition is not None
        count = request.condition.shape[1]
        assert count == (1 if mode == "forward_dynamics" else 5)
        assert (request.condition.int() - sample.video[:, :count].int()).abs().max() <= 3
        asked = request.actions
        assert asked is not None
        assert (asked.clean_rows, asked.offset, asked.domain) == (trained.clean_rows, trained.offset, trained.domain)
        torch.testing.assert_close(asked.rows[: asked.clean_rows], trained.rows[: asked.clean_rows])
        checked += 1
    assert checked > 12


def test_actions_are_those_of_the_data(model: Cosmos3Generator, folder: Path) -> None:
    samples, policy = load(model, folder, history=0)
    for sample in samples:
        episode, first = (int(part) for part in sample.key.removeprefix("episode_").split("_f"))
        assert sample.actions is not None
        wanted = np.array(rows(episode, first + 4)["action"])[first:]
        np.testing.assert_allclose(policy.actions(sample.actions.rows), wanted, atol=1e-6)


def test_chunks_depend_on_the_observation_and_its_seed_only(model: Cosmos3Generator, folder: Path) -> None:
    samples, policy = load(model, folder)
    assert policy.spec.cameras == {"top": (64, 96), "left": (32, 32), "right": (20, 40)}
    assert policy.spec.state == {"gripper": 1, "state": 6}
    assert (policy.spec.action_width, policy.spec.chunk_length, policy.spec.domain) == (7, 4, "arm")
    assert policy.spec.about == {
        "run": "a",
        "steps": 2,
        "guidance": 2.0,
        "shift": 3.0,
        "actions": policy.config.robot.actions,
        "fps": FPS,
    }
    first, second = observe(samples[0]), observe(samples[-1])
    together = policy.predict([first, second])
    for chunk, alone in zip(together, [policy(first), policy(second)]):
        assert chunk.shape == (4, 7)
        np.testing.assert_allclose(chunk, alone, atol=1e-4)
    assert np.abs(together[0] - together[1]).max() > 1e-2
    unseeded = Observation(first.images, first.state, first.instruction)
    assert np.abs(policy(unseeded) - policy(unseeded)).max() > 1e-2


def test_an_instruction_with_too_many_tokens_is_refused(model: Cosmos3Generator, folder: Path, monkeypatch) -> None:
    samples, policy = load(model, folder)
    monkeypatch.setattr(model, "defaults", replace(model.defaults, max_caption_tokens=300))
    good = observe(samples[0])
    assert policy(good).shape == (4, 7)
    with pytest.raises(RequestError, match=r"has \d+ tokens, but the model was trained with at most 300"):
        policy(replace(good, instruction="push the block " * 300))


def test_a_model_that_predicts_no_actions_is_refused(model: Cosmos3Generator, folder: Path) -> None:
    with pytest.raises(UserError, match="trained in the modes forward_dynamics, inverse_dynamics: a policy needs wam"):
        load(model, folder, modes={"forward_dynamics": 1.0, "inverse_dynamics": 1.0})


def test_names_of_cameras() -> None:
    assert short_names(["observation.image"]) == {"image": "observation.image"}
    assert [*short_names(["a.left.image", "a.right.image"])] == ["a.left.image", "a.right.image"]
