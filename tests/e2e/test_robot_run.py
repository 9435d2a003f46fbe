"""Runs on robot episodes and plain clips: all modes are trained and validated; a resumed and a cached run give the same
losses; exports, also of LoRA adapters, are served as the policy of the run with its EMA weights."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_generator
import tiny_runs
from robot_episodes import write_episodes

from worldsmith.cli.main import main
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.robot import LiberoRobot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.sampling.policy import Observation
from worldsmith.tools.policy.serve import ServePolicy
from worldsmith.training.trainer import Outcome, Trainer


def robot_config(world: Path, name: str = "arm", **values: Any) -> Trainer.Config:
    config = tiny_runs.tiny_config(world, **values)
    config.model.config = tiny_generator.generator_config(action_gen=True)
    config.scheduler.cycle_lengths = [4]
    config.objective = ActionFlow.Config(shift=3.0)
    statistics = world / "statistics.json"
    statistics.write_text(json.dumps({"q01": [-1.0] * 10, "q99": [1.0] * 10}))
    robots = RobotDataset.Config(
        path=str(world / "robots"),
        robot=LiberoRobot.Config(normalization="quantile_rot", statistics=str(statistics)),
        steps=4,
        resolution="64",
        split="train",
        val_fraction=0.4,
        modes={"wam": 1.0, "forward_dynamics": 1.0, "inverse_dynamics": 1.0},
    )
    before: Any = config.dataloader_train
    config.dataloader_train = RobotLoader.Config(
        dataset=ClipMix.Config(datasets={name: robots, "films": before.dataset}),
        max_samples_per_batch=6,
        latent_cache=before.latent_cache,
    )
    held_out = RobotLoader.Config(dataset=replace(robots, split="val"), max_samples_per_batch=4)
    config.dataloader_val = replace(held_out, latent_cache=before.latent_cache)
    config.trainer.run_validation, config.trainer.validation_iter = True, 2
    return config


def test_runs_on_robots_and_clips_are_repeatable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = tiny_runs.make_world(tmp_path / "world", clips=3)
    write_episodes(world / "robots")
    for name, cache in (("whole", False), ("cached", True), ("again", True)):
        config = robot_config(world, steps=4, save_iter=2, cache=cache)
        assert Trainer(config, run_folder=tmp_path / name).train() is Outcome.FINISHED
    assert Trainer(robot_config(world, steps=2, save_iter=2), run_folder=tmp_path / "half").train() is Outcome.FINISHED
    resumed = Trainer(robot_config(world, steps=4, save_iter=2), run_folder=tmp_path / "half")
    assert resumed.train() is Outcome.FINISHED
    losses = tiny_runs.read_losses(tmp_path / "whole")
    for name in ("cached", "again", "half"):
        assert tiny_runs.read_losses(tmp_path / name) == losses, name
    validations = tiny_runs.read_validations(tmp_path / "whole")
    assert [(step, samples) for step, _, _, samples in validations] == [(2, 5), (4, 5)]  # one episode of 9 frames
    assert validations[1][1] < 0.9 * validations[0][1]
    assert all(abs(loss - ema_loss) > 1e-4 for _, loss, ema_loss, _ in validations)
    for name in ("cached", "again", "half"):
        assert tiny_runs.read_validations(tmp_path / name) == validations, name
    stored = tmp_path / "whole/arm_robot_statistics.json"
    assert json.loads(stored.read_text())["q99"] == [1.0] * 10
    policies_of_run_and_export(tmp_path / "whole", tmp_path / "again", tmp_path / "export", capsys)


def predict(model: Path, **settings: Any) -> np.ndarray:
    """Returns the actions that `worldsmith serve policy` would answer."""
    stored, policy = ServePolicy(ServePolicy.Config(model=str(model), steps=2, **settings)).prepare()
    policy.model = stored.load("cpu")
    images = {name: np.full((*size, 3), 90, np.uint8) for name, size in policy.spec.cameras.items()}
    return policy(Observation(images, {}, "open the door", seed=3))


def policies_of_run_and_export(run: Path, other: Path, export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that an export has what a policy needs, with the EMA weights, and that models and settings without a
    policy are refused."""

    def serve(*words: str) -> tuple[int, str]:
        code = main(["serve", "policy", *words, "--dryrun"])
        return code, "".join(capsys.readouterr())

    assert main(["export", str(run), "--format", "native", "--dtype", "float32", "-o", str(export)]) == 0
    (stored,) = json.loads((export / "worldsmith.json").read_text())["source"]["robots"].items()
    assert stored == ("arm", json.loads((run / "arm_robot_policy.json").read_text()))
    assert main(["export", str(run), "--dtype", "float32", "-o", str(export.with_name("pipeline"))]) == 0
    printed = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    assert f"worldsmith serve policy {export.with_name('pipeline')}" in printed
    shown = []
    for model in (run, export):
        code, said = serve(str(model), "--port", "0", "--steps", "3")
        assert code == 0, said
        shown.append(json.loads(said.split("policy   ")[1].splitlines()[0]))
        assert shown[-1].pop("about")["steps"] == 3
    assert shown[0] == shown[1]
    assert shown[0]["cameras"] == {"image": [32, 32], "wrist_image": [32, 32]}
    assert (shown[0]["action_width"], shown[0]["chunk_length"], shown[0]["domain"]) == (10, 4, "libero")
    ema, live = predict(run, weights="ema"), predict(run, weights="live")
    assert np.abs(ema - live).max() > 1e-2
    for model in (run, export, export.with_name("pipeline")):
        np.testing.assert_allclose(predict(model), ema, atol=1e-5)
    assert serve(str(run), "--dataset", "films")[1].count("--dataset: expected arm, found 'films'") == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "policy", str(run), "--port", str(taken.getsockname()[1])]) == 2
        assert "Address already in use" in capsys.readouterr().err
    (other / "arm_robot_policy.json").unlink()  # as a run on clips
    code, said = serve(str(other))
    assert (code, "has no robot data" in said) == (2, True)


def test_lora_adapters_of_a_robot_run_are_served_as_its_policy(tmp_path: Path) -> None:
    """The robot is that of the adapters, not the one of the base model."""
    world = tiny_runs.make_world(tmp_path / "world", clips=3)
    write_episodes(world / "robots")
    Trainer(robot_config(world, steps=2, save_iter=2), run_folder=tmp_path / "base").train()
    config = robot_config(world, "tuned", steps=4, save_iter=4)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.ema.trainable_only = True, 4, True
    config.optimizer.lr, config.scheduler.warm_up_steps = 3e-2, [0]
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(tmp_path / "base")
    config.checkpoint.keys_to_skip_loading, config.checkpoint.save_weights = ["net_ema."], "trained"
    Trainer(config, run_folder=tmp_path / "run").train()
    adapter = tmp_path / "adapter"
    assert main(["export", str(tmp_path / "run"), "--format", "adapter", "--dtype", "float32", "-o", str(adapter)]) == 0
    assert main(["serve", "policy", str(adapter), "--dryrun"]) == 0
    expected = predict(tmp_path / "run")
    np.testing.assert_allclose(predict(adapter, dataset="tuned"), expected, atol=1e-5)
    for other in (predict(tmp_path / "run", weights="live"), predict(tmp_path / "base")):
        assert np.abs(other - expected).max() > 2e-3
