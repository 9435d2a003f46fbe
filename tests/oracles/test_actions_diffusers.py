"""Robot actions in the packed network against diffusers' `Cosmos3OmniTransformer`, which runs one sample at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from action_judge import (
    EDGE,
    EOS,
    FD,
    LAYOUTS,
    PLAIN,
    QWEN,
    VISION_START,
    actions,
    as_diffusers,
    diffusers_positions,
    diffusers_velocity,
    inputs,
    random_network,
)

from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.attention.modes import attention_modes
from worldsmith.families.cosmos3.network.architecture import names_without_gradients
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.network.rope import action_positions
from worldsmith.families.cosmos3.network.sequence import PackedSequence, pack_samples
from worldsmith.families.cosmos3.weights.diffusers_keys import native_to_diffusers
from worldsmith.models.video_model import SampleLayout


def make_pack(network: Cosmos3Network, layouts: list[SampleLayout]) -> PackedSequence:
    return pack_samples(layouts, network.config, eos_id=EOS, vision_start_id=VISION_START, attention=network.attention)


def split_actions(layouts: list[SampleLayout], velocities: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The velocities of the actions by sample."""
    rows = [layout.actions.rows for layout in layouts if layout.actions is not None]
    parts = iter(velocities[-1].split(rows))
    return [None if layout.actions is None else next(parts) for layout in layouts]


def test_positions_equal_the_pipelines_to_the_last_bit():
    for fps in (5.0, 10.0, 12.5, 15.0, 20.0, 23.976, 24.0, 29.97):
        for offset in (-3, 0, 1):
            layout = replace(FD, fps=fps, actions=actions(33, 0, offset=offset, fps=fps))
            theirs = diffusers_positions(layout)[:, -33:]
            assert layout.actions is not None
            assert torch.equal(action_positions(layout.actions, 5, QWEN), theirs), (fps, offset)


def test_every_fourth_action_has_the_time_of_a_latent_frame():
    libero = replace(FD, latent_shape=(5, 2, 2), actions=actions(16, 0))
    pack = pack_samples([libero], QWEN, eos_id=EOS, vision_start_id=VISION_START)
    time = pack.gen_positions[0] - 5 - 15000
    torch.testing.assert_close(time[:5], torch.tensor([0, 1.2, 2.4, 3.6, 4.8]), rtol=0, atol=2e-3)
    assert torch.equal(time[5 + 3 :: 4], time[1:5])
    assert not pack.gen_positions[1:, 5:].any()


@pytest.mark.parametrize("config", [pytest.param(QWEN, id="qwen"), pytest.param(EDGE, id="edge")])
def test_each_packed_sample_equals_diffusers_in_every_mode(config):
    network = random_network(config)
    transformer = as_diffusers(network)
    latents, timesteps, rows = inputs(LAYOUTS)
    with torch.no_grad():
        velocities = network(make_pack(network, LAYOUTS), latents, timesteps, actions=torch.cat(rows))
        values = iter(rows)
        for index, (layout, found) in enumerate(zip(LAYOUTS, split_actions(LAYOUTS, velocities), strict=True)):
            own = None if layout.actions is None else next(values)
            theirs, theirs_actions = diffusers_velocity(transformer, layout, latents[index], timesteps[index], own)
            assert (velocities[index] - theirs).abs().max() <= 1e-5
            assert (velocities[index][:, : layout.condition_frames] == 0).all()
            if layout.condition_frames < layout.latent_shape[0]:
                assert theirs[:, layout.condition_frames :].abs().mean() > 0.1, "the comparison needs real outputs"
            if layout.actions is not None:
                noised, used = slice(layout.actions.clean_rows, None), layout.actions.channels
                assert (found[: layout.actions.clean_rows] == 0).all()
                assert (found[:, used:] == 0).all()
                assert (found[noised, :used] - theirs_actions[noised, :used]).abs().sum() <= 1e-5 * max(
                    found.numel(), 1
                )
                assert layout.actions.clean_rows == layout.actions.rows or found.abs().mean() > 0.1


def test_gradients_equal_those_of_diffusers():
    network = random_network(QWEN)
    transformer = as_diffusers(network)
    latents, timesteps, rows = inputs(LAYOUTS)
    sum(
        v.square().sum() for v in network(make_pack(network, LAYOUTS), latents, timesteps, actions=torch.cat(rows))
    ).backward()
    values = iter(rows)
    for index, layout in enumerate(LAYOUTS):
        own = None if layout.actions is None else next(values)
        video, action = diffusers_velocity(transformer, layout, latents[index], timesteps[index], own)
        used = 0 if layout.actions is None else layout.actions.channels
        (video.square().sum() + (0 if action is None else action[:, :used].square().sum())).backward()
    theirs = {name: p.grad for name, p in transformer.named_parameters()}
    compared = []
    for name, parameter in network.named_parameters():
        reference = theirs[native_to_diffusers(name)]
        if parameter.grad is None:
            assert reference is None or not reference.any(), name
            continue
        compared.append(name)
        scale = max(reference.abs().max().item(), 1e-3)
        assert (parameter.grad - reference).abs().max() <= 2e-5 * scale, name
    heads = {name for name in compared if "action" in name}
    assert heads == {name for name, _ in network.named_parameters() if "action" in name}
    table = network.action2llm.fc.weight.grad
    assert table is not None
    assert [bool(row.any()) for row in table] == [False, True, False, True, False], "only the domains that occur"


def test_the_domain_and_every_action_change_the_latents():
    network = random_network(QWEN)
    latents, timesteps, rows = inputs([FD])
    with torch.no_grad():
        velocity, _ = network(make_pack(network, [FD]), latents, timesteps, actions=rows[0])
        other = replace(FD, actions=actions(8, 8, domain=2))
        assert (
            network(make_pack(network, [other]), latents, timesteps, actions=rows[0])[0] - velocity
        ).abs().mean() > 1e-3
        for row in range(8):
            changed = rows[0].clone()
            changed[row, 0] += 1
            assert (network(make_pack(network, [FD]), latents, timesteps, actions=changed)[0] != velocity).any()


def test_text_read_once_gives_the_same_velocities():
    network = random_network(QWEN)
    latents, timesteps, rows = inputs(LAYOUTS)
    pack = make_pack(network, LAYOUTS)
    with torch.no_grad():
        memory = network.read_text(pack)
        first = network(pack, latents, timesteps, actions=torch.cat(rows))
        again = network(pack, latents, timesteps, memory, torch.cat(rows))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_pack_without_actions_gives_the_same_bits_and_zero_gradients_of_the_heads():
    """Frozen heads get none; those of a network without action heads do not exist."""
    layouts = [PLAIN, replace(PLAIN, latent_shape=(2, 6, 4))]
    latents, timesteps, _ = inputs(layouts)
    network, plain = random_network(QWEN), Cosmos3Network(replace(QWEN, action_gen=False))
    weights = {name: value for name, value in network.state_dict().items() if "action" not in name}
    plain.load_state_dict(weights)
    found, expected = (own(make_pack(own, layouts), latents, timesteps) for own in (network, plain))
    assert len(found) == len(expected) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    for velocities in (found, expected):
        sum(v.square().mean() for v in velocities).backward()
    for name, parameter in network.named_parameters():
        if "action" in name:
            assert parameter.grad is not None, name
            assert not parameter.grad.any(), name
        elif parameter.grad is not None:
            assert torch.equal(parameter.grad, plain.get_parameter(name).grad), name
    reached = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    never = tuple(names_without_gradients(QWEN))
    assert reached == {name for name, _ in network.named_parameters() if not name.startswith(never)}
    network.zero_grad()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_("action" not in name)
    network(make_pack(network, layouts), latents, timesteps)[0].square().mean().backward()
    assert not any(p.grad is not None for name, p in network.named_parameters() if "action" in name)


def test_forward_dynamics_gives_the_reading_head_a_zero_gradient():
    network = random_network(QWEN)
    latents, timesteps, rows = inputs([FD])
    sum(v.square().mean() for v in network(make_pack(network, [FD]), latents, timesteps, actions=rows[0])).backward()
    gradient = network.llm2action.fc.weight.grad
    assert gradient is not None
    assert not gradient.any()
    assert network.action2llm.fc.weight.grad.any()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (replace(FD, actions=actions(0, 0)), r"actions.rows must be at least 1, found 0"),
        (replace(FD, actions=actions(8, 0, channels=11)), "actions.channels must be between 1 and 10, found 11"),
        (replace(FD, actions=actions(8, 9)), "actions.clean_rows must be between 0 and 8, found 9"),
        (replace(FD, actions=actions(8, 0, domain=5)), "actions.domain must be between 0 and 4, found 5"),
        (replace(FD, actions=actions(8, 0, fps=0.0)), "actions.fps must be above 0, found 0"),
    ],
)
def test_bad_actions_are_named(layout, words):
    with pytest.raises(ValueError, match=f"sample 1: {words}"):
        make_pack(random_network(QWEN), [PLAIN, layout])


def test_a_network_that_cannot_have_actions_says_why():
    with pytest.raises(ValueError, match="no action heads"):
        make_pack(Cosmos3Network(replace(QWEN, action_gen=False)), [FD])
    causal = Cosmos3Network(QWEN, attention_modes("three_way", 3, video_temporal_causal=True))
    with pytest.raises(UserError, match="video_temporal_causal: samples with robot actions require dense attention"):
        make_pack(causal, [FD])
    network = random_network(QWEN)
    latents, timesteps, rows = inputs([FD])
    with pytest.raises(ValueError, match=r"requires robot actions of shape \[8, 10\], found None"):
        network(make_pack(network, [FD]), latents, timesteps)
    with pytest.raises(ValueError, match=r"requires robot actions of shape None, found \[8, 10\]"):
        network(make_pack(network, [PLAIN]), *inputs([PLAIN])[:2], actions=rows[0])
