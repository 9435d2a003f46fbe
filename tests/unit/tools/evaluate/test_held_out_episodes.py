"""`worldsmith evaluate RUN` on robot episodes: its numbers follow from the generated rows, videos and the network."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generator_run import write_generator_run
from robot_episodes import rows as stored_rows
from robot_run import HIGH, LOW, robots, vary, write_robot_run

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.cli.main import main
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.evaluation.intervals import mean_interval, ratio_interval
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.families.cosmos3.task import Cosmos3Task, crop_latents, layout_of
from worldsmith.objectives.noise_schedule import sample_noise
from worldsmith.sampling.generate_videos import GenerationRequest, generate_actions
from worldsmith.sampling.sample_files import read_condition
from worldsmith.tools.evaluate import held_out_episodes
from worldsmith.training.validation import Validator

WINDOWS = {f"episode_{episode:06d}_f{first}": (episode, first) for episode, count in ((0, 2), (1, 2), (2, 3))
           for first in range(0, 4 * count, 4)}  # fmt: skip
"""Key → (episode, first frame) of the windows that follow each other in episodes of 12, 9 and 15 frames."""
SCALE = (np.array(HIGH) - LOW) / 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("robots")
    write_robot_run(folder)
    return folder


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def evaluate(words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["evaluate", *shlex.split(words)]) == code, capsys.readouterr().err
    said = capsys.readouterr()
    return said.out if code == 0 else " ".join(said.err.split())


def facts_of(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(out, "evaluation.json").read_text())
    return found


def actions_of(window: tuple[int, int]) -> np.ndarray:
    """The actions of a window of `other`, in the units of the data, with the gripper flipped [4, 7]."""
    episode, first = window
    rows = stored_rows(episode, first + 4)
    vary(episode, rows)
    found = np.array(rows["action"][first:])
    found[:, 6] = 1 - found[:, 6]
    return found


def normalized(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((values - (np.array(HIGH) + LOW) / 2) / SCALE).float()


def samples(model: Any, mode: str) -> list[VideoSample]:
    """The windows of `other` in a mode, as training builds them, in the order of the dataset."""
    data = robots(Path("other").resolve(), modes={mode: 1.0}, history=0, window_stride=4, cfg_dropout_rate=0.0)
    data.split, data.val_fraction = "all", 0.0
    config = RobotLoader.Config(dataset=data, max_samples_per_batch=1, shuffle=False)
    loader = Cosmos3Task(model=model, objective=ActionFlow.Config(shift=3.0), data=config).loader()
    return list(loader.first_samples())


def test_errors_of_actions_are_those_of_the_generated_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "run --dataset other -o out --evaluators inverse_dynamics --steps 2 --max-videos 4 --device cpu"
    assert "videos      4 per model, inverse_dynamics" in evaluate(f"{words} --dryrun", capsys)
    evaluate(words, capsys)
    figures = facts_of("out")["figures"]
    model: Any = find_model("run").load("cpu")
    normal, physical = {}, {}
    windows = samples(model, "inverse_dynamics")
    for seed, index in enumerate((0, 1, 3, 5)):  # evenly spaced among 7
        sample = windows[index]
        assert sample.video is not None
        request = GenerationRequest(
            prompt=sample.caption, height=64, width=96, num_frames=5, fps=10.0, seed=seed, condition=sample.video,
            condition_frames=2, structured_metadata=False, actions=sample.actions,
        )  # fmt: skip
        (found,) = generate_actions(model, [request], steps=2, guidance=1.0)
        predicted, truth = found.rows[1:].numpy(), actions_of(WINDOWS[sample.key])  # row 0 is the state
        normal[sample.key] = float(((predicted - normalized(truth).numpy()) ** 2).mean())
        physical[sample.key] = ((predicted * SCALE + (np.array(HIGH) + LOW) / 2 - truth) ** 2).mean(0)
    assert figures["action_mse"]["trained"] == {
        "mean": pytest.approx(np.mean(list(normal.values())), rel=1e-4),
        "interval": pytest.approx(mean_interval(list(normal.values())), rel=1e-4), "samples": 4,
    }  # fmt: skip
    errors = [figures[f"action_mse_{channel}"]["trained"]["mean"] for channel in range(7)]
    assert errors == pytest.approx(list(np.mean(list(physical.values()), axis=0)), rel=1e-4)
    assert len(figures) == 8
    assert np.mean(list(normal.values())) > 0.1


def test_losses_with_true_and_other_actions_have_the_same_noise(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "run --dataset other --evaluators forward_dynamics --steps 1 --max-videos 2 --device cpu"
    evaluate(f"{words} -o fd", capsys)
    facts = facts_of("fd")
    figures = facts["figures"]
    model: Any = find_model("run").load("cpu")
    model.network.eval()
    objective = ActionFlow(ActionFlow.Config(shift=3.0))
    others = held_out_episodes.other_windows(7, 42)
    assert sorted(others) == list(range(7))
    assert all(other != own for own, other in enumerate(others))
    losses: dict[str, list[float]] = {"loss_true_actions": [], "loss_shuffled_actions": []}
    keys = list(WINDOWS)
    for index, sample in enumerate(samples(model, "forward_dynamics")):
        assert sample.key == keys[index]
        assert sample.video is not None
        assert sample.actions is not None
        clean = crop_latents(model.encode(sample.video), sample).float()
        noise = sample_noise(tuple(clean.shape), seed=42, position=index)
        sigma = objective.sigma(sample, seed=42)
        noisy = sigma * noise + (1 - sigma) * clean
        noisy[:, :1] = clean[:, :1]
        for name, window in zip(losses, (index, others[index])):
            given = torch.cat((sample.actions.rows[:1], normalized(actions_of(WINDOWS[keys[window]]))))
            padded = torch.nn.functional.pad(given, (0, model.config.network.max_action_dim - 7))
            pack = model.plan_pack([layout_of(sample)])
            with torch.no_grad():
                velocity = model.network(pack, [noisy], torch.tensor([1000 * sigma]), actions=padded)[0]
            errors = (velocity.float() - (noise - clean)) ** 2
            losses[name].append(float(errors[:, 1:].sum() / errors.numel()))
    for name, values in losses.items():
        assert figures[name]["trained"]["mean"] == pytest.approx(np.mean(values), rel=1e-4), name
    true, shuffled = losses.values()
    ratio = figures["shuffled_to_true"]["trained"]
    assert ratio["mean"] == pytest.approx(np.mean(shuffled) / np.mean(true), rel=1e-4)
    assert ratio["interval"] == pytest.approx(ratio_interval(shuffled, true), rel=1e-3)
    stored = json.loads(Path("fd/trained/held_out_loss.json").read_text())["actions"]
    effects = [stored["loss_shuffled_actions"][key] - stored["loss_true_actions"][key] for key in keys]
    assert effects == pytest.approx(np.subtract(shuffled, true).tolist(), rel=0.05, abs=1e-6)
    assert np.abs(effects).mean() > 2e-5
    for sample in facts["samples"]["trained"]:
        video, real = (
            read_condition(str(path), 5)[:, 1:].double() for path in (f"fd/{sample['file']}", sample["real"])
        )
        error = ((video - real) ** 2).mean()
        assert sample["figures"]["psnr"] == pytest.approx(float(10 * torch.log10(255**2 / error)))
    monkeypatch.setattr(held_out_episodes, "other_windows", lambda count, seed: list(range(count)))
    evaluate(f"{words} -o same", capsys)
    assert facts_of("same")["figures"]["shuffled_to_true"]["trained"]["mean"] == 1


def test_the_own_validation_episodes_are_measured_without_a_dataset(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "run -o run/held_out --evaluators loss --evaluators forward_dynamics --max-videos 1 --steps 1 --device cpu"
    said = evaluate(words, capsys)
    facts = facts_of("run/held_out")
    losses = facts["losses"]["trained"]
    assert set(losses) == {key for key, (episode, _) in WINDOWS.items() if episode == 1}
    assert facts["held_out"]["in_training_data"] == 0
    data = robots(Path("robots").resolve(), window_stride=4, cfg_dropout_rate=0.0)
    data.split = "val"
    model: Any = find_model("run").load("cpu")
    loader = RobotLoader.Config(dataset=data, max_samples_per_batch=1)
    task = Cosmos3Task(model=model, objective=ActionFlow.Config(shift=3.0), data=loader, split="val")
    found = Validator(task, max_packs=None).run(None)
    assert found is not None
    assert sum(losses.values()) / 2 == pytest.approx(found.metrics["val/loss"], rel=1e-4)
    assert evaluate(words, capsys).splitlines()[1:] == said.splitlines()
    (video,) = Path("run/held_out/trained/forward_dynamics").glob("*_f0.mp4")
    video.unlink()
    evaluate(words, capsys)
    assert video.is_file()
    everything = json.loads(evaluate("run --dataset robots -o all --evaluators loss --device cpu --json", capsys))
    assert everything["held_out"]["windows"] == 7
    assert everything["held_out"]["in_training_data"] == 5


def test_what_does_not_fit_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = "run -o refused --device cpu"
    assert "motion: the model was trained on robot episodes; available: loss, inverse_dynamics" in evaluate(
        f"{run} --evaluators motion", capsys, 2
    )
    assert "skipped     motion: " in evaluate(f"{run} --evaluators motion --evaluators loss --dryrun", capsys)
    assert "--model-mode: does not apply" in evaluate(f"{run} --model-mode image2video", capsys, 2)
    assert "the loss and actions need a dataset" in evaluate(
        f"{run} -i a.yaml --evaluators inverse_dynamics", capsys, 2
    )
    clips = folder / "clips"
    clips.mkdir()
    write_generator_run(clips)
    assert "not trained on robot episodes" in evaluate(
        "clips/run --dataset clips/data -o refused --evaluators inverse_dynamics", capsys, 2
    )
    assert "give one" in evaluate("clips/run -o refused", capsys, 2)
    tree = Path("run/config.yaml").read_text()
    shutil.copytree("run", "whole")
    Path("whole/config.yaml").write_text(
        tree.replace("split: train", "split: all").replace("fraction: 0.4", "fraction: 0.0")
    )
    assert "no held-out episodes" in evaluate("whole -o refused", capsys, 2)
    assert not Path("refused").exists()


def test_one_dataset_of_several_is_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder / "mix"
    root.mkdir()
    write_robot_run(root, ClipMix.Config(datasets={"arm": robots(root / "robots"), "leg": robots(root / "other")}))
    words = "mix/run -o mixed --device cpu --dryrun"
    assert "name one of arm, leg" in evaluate(words, capsys, 2)
    assert "data        2 windows of" in evaluate(f"{words} --dataset leg", capsys)


def test_a_model_without_text_is_measured_without_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained with all captions dropped, or with `prompt: none`: the losses are equal, and not those with text."""
    tree = Path("run/config.yaml").read_text()
    losses = {}
    for name, line in {"text": "", "dropped": "cfg_dropout_rate: 1.0", "none": "prompt: none"}.items():
        shutil.copytree("run", name)
        assert line.partition(":")[0] in tree
        Path(name, "config.yaml").write_text(re.sub(rf"\b{line.partition(':')[0]}: \S+", line, tree) if line else tree)
        evaluate(f"{name} -o of_{name} --evaluators loss --device cpu", capsys)
        losses[name] = facts_of(f"of_{name}")["losses"]["trained"]
    assert losses["dropped"] == losses["none"] != losses["text"]
