"""Losses and training of videos with robot actions, against the published formula on diffusers' velocities."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from action_judge import EOS, LAYOUTS, QWEN, VISION_START, as_diffusers, diffusers_velocity, random_network
from torch import Tensor

from worldsmith.config import get_recipe
from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.video_sample import RobotActions, VideoSample
from worldsmith.families.cosmos3.attention.modes import NeighborhoodConfig
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.network import init_weights
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.families.cosmos3.task import Cosmos3Task, layout_of
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.tasks.registry import task_of
from worldsmith.training.optimizer import AdamW
from worldsmith.training.step import StepInputs, forward_backward

SEED = 11


def make_samples(layouts=LAYOUTS) -> list[VideoSample]:
    generator = torch.Generator().manual_seed(2)
    samples = []
    for index, layout in enumerate(layouts):
        own = layout.actions
        rows = None if own is None else torch.randn(own.rows, own.channels, generator=generator)
        samples.append(
            VideoSample(
                key=f"sample_{index}", position=40 + index, text_ids=list(layout.text_ids), caption="", video=None,
                latents=torch.randn(8, *layout.latent_shape, generator=generator), latent_shape=layout.latent_shape,
                size=(64, 64), num_frames=4 * (layout.latent_shape[0] - 1) + 1, fps=layout.fps,
                condition_frames=layout.condition_frames, num_tokens=0, cache_key=None, resolution="64",
                actions=None if own is None else RobotActions(rows, own.clean_rows, own.offset, own.domain, own.fps),
            )
        )  # fmt: skip
    return samples


def make_task(objective: Any, network=None, **model: Any) -> Cosmos3Task:
    config = Cosmos3Generator.Config(
        precision="float32", network=QWEN, tokenizer=WanVAE.Config(vae_path="none"),
        text_tokenizer=TextTokenizer.Config(path="none"), **model,
    )  # fmt: skip
    generator = Cosmos3Generator(config, seed=5)
    generator.__dict__["text_tokenizer"] = SimpleNamespace(eos_id=EOS, vision_start_id=VISION_START)
    if network is not None:
        generator.network = network
    return Cosmos3Task(model=generator, objective=objective, data=VideoLoader.Config())


def normal(shape, position: int, stream: int) -> Tensor:
    """The noise of a sample, from numpy alone."""
    seeds = np.random.SeedSequence(SEED, spawn_key=(stream, position))
    return torch.from_numpy(np.random.Generator(np.random.Philox(seeds)).standard_normal(shape, dtype=np.float32))


def formula(task: Cosmos3Task, samples: list[VideoSample], by_active: bool) -> tuple[list[float], list[float]]:
    """(loss of the latents, loss of the actions) of each sample: means of masked squares of diffusers' velocities."""
    transformer = as_diffusers(task.model.network)
    sigmas = [task.objective.sigma(sample, seed=SEED) for sample in samples]
    latent_losses, action_losses = [], []
    for sample, sigma in zip(samples, sigmas, strict=True):
        layout, x0 = layout_of(sample), sample.latents
        noise = normal(tuple(x0.shape), sample.position, 1)
        mask = (torch.arange(x0.shape[1]) >= sample.condition_frames).float()[:, None, None]
        noisy = mask * ((1 - sigma) * x0 + sigma * noise) + (1 - mask) * x0
        rows = actions = row_mask = None
        if sample.actions is not None:
            actions = sample.actions.rows
            row_noise = normal(tuple(actions.shape), sample.position, 20)
            row_mask = (torch.arange(len(actions)) >= sample.actions.clean_rows).float()[:, None]
            mixed = row_mask * ((1 - sigma) * actions + sigma * row_noise) + (1 - row_mask) * actions
            rows = torch.zeros(len(actions), QWEN.max_action_dim)
            rows[:, : actions.shape[1]] = mixed
        velocity, answer = diffusers_velocity(transformer, layout, noisy, torch.tensor(1000 * sigma), rows)

        def mean(errors: Tensor, active: Tensor) -> float:
            errors, active = errors * active, active.expand(errors.shape)
            return float(errors.sum() / max(active.sum(), 1)) if by_active else float(errors.mean())

        latent_losses.append(mean((velocity - (noise - x0)) ** 2, mask))
        action_losses.append(
            0.0 if actions is None else mean((answer[:, : actions.shape[1]] - (row_noise - actions)) ** 2, row_mask)
        )
    return latent_losses, action_losses


@pytest.mark.parametrize("by_active", [False, True])
def test_the_loss_is_the_published_formula_on_diffusers_velocities(by_active):
    objective = ActionFlow.Config(
        shift=3.0, loss_scale=4.0, action_loss_weight=10.0, normalize_loss_by_active=by_active
    )
    task, samples = make_task(objective, random_network(QWEN)), make_samples()
    with torch.no_grad():
        found = task.loss(samples, seed=SEED)
        latents, actions = formula(task, samples, by_active)
    predicted = [
        sample.actions is not None and sample.actions.clean_rows < len(sample.actions.rows) for sample in samples
    ]
    assert predicted == [False, False, True, True, True, True]
    mean_actions = sum(actions) / (sum(predicted) if by_active else len(samples))
    expected = 4 * sum(latents) / len(samples) + 10 * mean_actions
    assert float(found.sum) / task.weigh(samples) == pytest.approx(expected, rel=1e-5)
    assert found.tokens == sum(task.model.num_tokens(layout_of(sample)) for sample in samples)
    assert latents[2] == actions[0] == actions[1] == 0
    total, count = found.metrics["loss"]
    assert float(total) / count == pytest.approx((sum(latents) + sum(actions)) / len(samples), rel=1e-5)
    for name, values, number in (("latents", latents, 5), ("actions", actions, 4)):
        total, count = found.metrics[f"loss_of[{name}]"]
        assert (float(total), count) == (pytest.approx(sum(values), rel=1e-5), number)


def test_the_loss_of_plain_videos_is_that_of_rectified_flow():
    samples = make_samples([LAYOUTS[1], replace(LAYOUTS[1], latent_shape=(2, 4, 2))])
    found, plain = (
        make_task(objective(shift=3.0, loss_scale=4.0), random_network(QWEN)).loss(samples, seed=SEED)
        for objective in (ActionFlow.Config, RectifiedFlow.Config)
    )
    assert torch.equal(found.sum, plain.sum)
    assert found.metrics["loss"] == plain.metrics["loss"]
    assert found.metrics["loss_of[actions]"][1] == 0


def test_a_sample_is_noised_alike_in_any_batch():
    samples = make_samples()
    task = make_task(ActionFlow.Config(shift=3.0))
    together = task.prepare(samples, seed=SEED).actions
    alone = task.prepare(samples[4:5], seed=SEED).actions
    mine = together.samples == 4
    assert torch.equal(together.noisy[mine], alone.noisy)
    assert torch.equal(together.targets[mine], alone.targets)
    assert not torch.equal(task.prepare(samples[4:5], seed=SEED + 1).actions.noisy, alone.noisy)


def test_a_sample_that_predicts_nothing_is_named():
    sample = make_samples(LAYOUTS[:1])[0]
    sample.condition_frames = sample.latent_shape[0]
    with pytest.raises(ValueError, match="sample_0: all latent frames and robot actions are given"):
        make_task(ActionFlow.Config(shift=3.0)).loss([sample], seed=1)


def test_robot_actions_need_an_objective_that_has_a_loss_for_them():
    with pytest.raises(UserError, match=r"sample_0 has robot actions, for which RectifiedFlow has no loss.*ActionFlow"):
        make_task(RectifiedFlow.Config(shift=3.0)).loss(make_samples(), seed=1)


def test_a_config_that_cannot_train_on_robot_actions_is_refused():
    run: Any = get_recipe("vision_sft_tiny")
    model = run.model.config
    run.objective = ActionFlow.Config(shift=3.0)
    with pytest.raises(WrongValueError, match="no action heads"):
        Cosmos3Task.check(run)
    model.network.action_gen = True
    Cosmos3Task.check(run)
    model.joint_attn_implementation, model.video_temporal_causal = "three_way", True
    with pytest.raises(WrongValueError, match=r"video_temporal_causal.*require dense attention"):
        Cosmos3Task.check(run)
    model.video_temporal_causal = False
    layers = model.network.num_hidden_layers
    model.natten_parameter_list = [{}] * (layers - 1) + [{"3d": NeighborhoodConfig(window_size=[-1, 2, 2])}]
    with pytest.raises(WrongValueError, match=r"natten_parameter_list.*require dense attention"):
        Cosmos3Task.check(run)


def test_a_family_without_robot_actions_refuses_their_objective():
    run: Any = get_recipe("wan21_t2v_tiny")
    run.objective = ActionFlow.Config(shift=3.0)
    with pytest.raises(WrongValueError, match="of the family 'wan' requires a RectifiedFlow"):
        task_of("wan").check(run)


@pytest.mark.parametrize("lora", [False, True])
def test_training_lowers_both_losses(lora):
    """With adapters only, the heads stay as they are."""
    settings: dict[str, Any] = {"lora_enabled": True, "lora_rank": 4} if lora else {}
    task, samples = make_task(ActionFlow.Config(shift=1.0), **settings), make_samples()
    network = task.model.network
    init_weights(network, seed=7)
    before = {name: p.detach().clone() for name, p in network.named_parameters() if "action" in name}
    adamw = AdamW.Config(lr=2e-2 if lora else 3e-3, fused=False).build(network=network)
    losses = []
    for _ in range(25):
        step = forward_backward(StepInputs(0, [samples]), task, seed=SEED)
        losses.append((step.metrics["loss_of[latents]"], step.metrics["loss_of[actions]"]))
        adamw.optimizer.step()
        adamw.optimizer.zero_grad(set_to_none=True)
    (first_latents, first_actions), (last_latents, last_actions) = losses[0], losses[-1]
    assert last_latents < 0.85 * first_latents
    assert last_actions < 0.85 * first_actions
    changed = {name for name, p in network.named_parameters() if name in before and not torch.equal(p, before[name])}
    assert changed == (set() if lora else set(before))


def test_true_actions_predict_the_video_better_than_shuffled_ones():
    """Forward dynamics learns from its actions: the latents move with the action, from a fixed first frame."""
    layout = replace(LAYOUTS[0], text_ids=[3])
    generator = torch.Generator().manual_seed(1)
    samples = []
    for position in range(24):
        (sample,) = make_samples([layout])
        direction = float(torch.randint(0, 2, (), generator=generator)) * 2 - 1
        sample.position = position
        sample.actions.rows = torch.full((8, 7), direction)
        sample.latents = torch.zeros(8, 3, 4, 4)
        sample.latents[:, 1:] = 2 * direction
        samples.append(sample)
    task = make_task(ActionFlow.Config(shift=5.0))
    init_weights(task.model.network, seed=7)
    adamw = AdamW.Config(lr=5e-3, fused=False).build(network=task.model.network)
    for index in range(60):
        forward_backward(StepInputs(index, [samples]), task, seed=index)
        adamw.optimizer.step()
        adamw.optimizer.zero_grad(set_to_none=True)
    wrong = [replace(sample, actions=replace(sample.actions, rows=-sample.actions.rows)) for sample in samples]
    with torch.no_grad():
        true, shuffled = (float(task.loss(own, seed=99).sum) for own in (samples, wrong))
    assert true < 0.5 * shuffled


def test_latents_of_a_padded_canvas_are_cropped(monkeypatch):
    task, sample = make_task(ActionFlow.Config(shift=3.0)), make_samples(LAYOUTS[:1])[0]
    sample.latents, sample.video = None, torch.zeros(3, 9, 96, 128, dtype=torch.uint8)
    canvas = torch.randn(8, 3, 6, 8)
    monkeypatch.setattr(Cosmos3Generator, "encode", lambda self, video: canvas)
    assert torch.equal(task.latents([sample])[0], canvas[:, :, :4, :4])
