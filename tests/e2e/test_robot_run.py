"""Runs on robot episodes and plain clips: all modes are trained; a resumed and a cached run give the same losses."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

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
from worldsmith.training.trainer import Outcome, Trainer


def robot_config(world: Path, **values: Any) -> Trainer.Config:
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
        modes={"wam": 1.0, "forward_dynamics": 1.0, "inverse_dynamics": 1.0},
    )
    before: Any = config.dataloader_train
    config.dataloader_train = RobotLoader.Config(
        dataset=ClipMix.Config(datasets={"arm": robots, "films": before.dataset}),
        max_samples_per_batch=6,
        latent_cache=before.latent_cache,
    )
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
    stored = tmp_path / "whole/arm_robot_statistics.json"
    assert json.loads(stored.read_text())["q99"] == [1.0] * 10
    policies_of_run_and_export(tmp_path / "whole", tmp_path / "again", tmp_path / "export", capsys)


def policies_of_run_and_export(run: Path, other: Path, export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that an export contains what a policy needs, and that models and settings without a policy are refused."""

    def serve(*words: str) -> tuple[int, str]:
        code = main(["serve", "policy", *words, "--dryrun"])
        return code, "".join(capsys.readouterr())

    assert main(["export", str(run), "--format", "native", "-o", str(export)]) == 0
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
    assert serve(str(run), "--dataset", "films")[1].count("--dataset: expected arm, found 'films'") == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "policy", str(run), "--port", str(taken.getsockname()[1])]) == 2
        assert "Address already in use" in capsys.readouterr().err
    (other / "arm_robot_policy.json").unlink()  # as a run on clips
    code, said = serve(str(other))
    assert (code, "has no robot data" in said) == (2, True)
