"""The packed network against diffusers' `Cosmos3OmniTransformer`, which runs one sample at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusers import Cosmos3OmniTransformer
from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import (
    get_3d_mrope_ids_text_tokens,
    get_3d_mrope_ids_vae_tokens,
)

from worldsmith.families.cosmos3.attention import packed as attention
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.network.rope import video_positions
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.families.cosmos3.weights.diffusers_keys import native_to_diffusers, transformer_config
from worldsmith.models.video_model import SampleLayout

EOS, VISION_START, VOCAB = 94, 95, 96
QWEN = NetworkConfig(
    vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, mrope_section=[4, 2, 2], latent_channel=8,
)  # fmt: skip
EDGE = replace(
    QWEN, hidden_act="relu2", qk_norm_for_text=False, use_und_k_norm_for_gen=True, rms_norm_eps=1e-5, rope_theta=1e8
)
CONFIGS = [pytest.param(QWEN, id="qwen"), pytest.param(EDGE, id="edge")]

# Text-, image- and video-conditioned samples; odd and even sides; one latent frame; several frame rates; and texts from
# empty to long enough that attention groups differ in length.
LAYOUTS = [
    SampleLayout([5, 6, 7], (3, 4, 4), fps=24.0),
    SampleLayout(list(range(40)), (2, 3, 5), fps=16.0, condition_frames=1),
    SampleLayout([], (5, 4, 4), fps=8.0, condition_frames=2),
    SampleLayout(list(range(8, 20)), (1, 7, 2), fps=30.0),
    SampleLayout([9] * 17, (3, 4, 4), fps=29.97, condition_frames=1),
    SampleLayout([1, 2], (4, 2, 6), fps=None, condition_frames=1),
]


@pytest.fixture(params=["one_group", "exact_groups"], autouse=True)
def _padding(request, monkeypatch):
    """Every test runs with attention padded into one batch, and with one batch per pair of lengths."""
    if request.param == "exact_groups":
        monkeypatch.setattr(attention, "PADDING_ENTRIES", 0)
        monkeypatch.setattr(attention, "PADDING_SHARE", 0.0)


def random_network(config: NetworkConfig) -> Cosmos3Network:
    """Weights where no parameter is one or zero: norms and biases too must be in the right place."""
    network = Cosmos3Network(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.7)
    return network


def as_diffusers(network: Cosmos3Network) -> Cosmos3OmniTransformer:
    transformer = Cosmos3OmniTransformer(**transformer_config(network.config))
    state = {native_to_diffusers(name): value for name, value in network.state_dict().items()}
    transformer.load_state_dict(state, strict=True)
    return transformer


def inputs(layouts: list[SampleLayout]) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    latents = [torch.randn(8, *layout.latent_shape, generator=generator) for layout in layouts]
    return latents, torch.rand(len(layouts), generator=generator) * 1000


def diffusers_velocity(transformer, layout: SampleLayout, latent: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """One sample through diffusers, with positions from the pipeline's own functions."""
    ids = [*layout.text_ids, EOS, VISION_START]
    frames, rows, columns = layout.latent_shape[0], -(-layout.latent_shape[1] // 2), -(-layout.latent_shape[2] // 2)
    text_positions, explain_message = get_3d_mrope_ids_text_tokens(len(ids), 0, use_float_positions=True)
    video_positions, _ = get_3d_mrope_ids_vae_tokens(frames, rows, columns, explain_message + 15000, fps=layout.fps)
    noisy = torch.arange(layout.condition_frames, frames)
    per_frame, count = rows * columns, frames * rows * columns
    return transformer(
        input_ids=torch.tensor(ids),
        text_indexes=torch.arange(len(ids)),
        position_ids=torch.cat([text_positions, video_positions.float()], dim=1),
        und_len=len(ids),
        sequence_length=len(ids) + count,
        vision_tokens=[latent[None]],
        vision_token_shapes=[(frames, rows, columns)],
        vision_sequence_indexes=torch.arange(len(ids), len(ids) + count),
        vision_mse_loss_indexes=torch.arange(len(ids) + layout.condition_frames * per_frame, len(ids) + count),
        vision_timesteps=timestep.expand(len(noisy) * per_frame),
        vision_noisy_frame_indexes=[noisy],
    ).sample[0][0]


def packed(network: Cosmos3Network, layouts: list[SampleLayout], latents, timesteps) -> list[torch.Tensor]:
    pack = pack_samples(layouts, network.config, eos_id=EOS, vision_start_id=VISION_START)
    return network(pack, latents, timesteps)


def test_positions_equal_the_pipelines_to_the_last_bit():
    for fps in (8.0, 12.5, 16.0, 23.976, 24.0, 29.97, 30.0, 59.94):
        for text_length in (2, 77, 510):
            theirs, _ = get_3d_mrope_ids_vae_tokens(48, 2, 3, text_length + 15000, fps=fps)
            assert torch.equal(video_positions([(48, 2, 3)], [text_length], [fps], QWEN), theirs), fps


@pytest.mark.parametrize("config", CONFIGS)
def test_each_packed_sample_equals_its_own_run_and_diffusers(config):
    network = random_network(config)
    transformer = as_diffusers(network)
    latents, timesteps = inputs(LAYOUTS)
    with torch.no_grad():
        velocities = packed(network, LAYOUTS, latents, timesteps)
        for index, layout in enumerate(LAYOUTS):
            one = slice(index, index + 1)
            alone = packed(network, LAYOUTS[one], latents[one], timesteps[one])[0]
            theirs = diffusers_velocity(transformer, layout, latents[index], timesteps[index])
            assert velocities[index].shape == latents[index].shape
            assert velocities[index].dtype == torch.float32
            assert theirs[:, layout.condition_frames :].abs().mean() > 0.1, "the comparison needs real outputs"
            assert (velocities[index] - alone).abs().max() <= 1e-5
            assert (velocities[index] - theirs).abs().max() <= 1e-5
            assert (velocities[index][:, : layout.condition_frames] == 0).all(), "clean frames have no velocity"


@pytest.mark.parametrize("config", CONFIGS)
def test_gradient_of_the_packed_mean_loss_is_the_mean_of_unpacked_gradients(config):
    network = random_network(config)
    transformer = as_diffusers(network)
    latents, timesteps = inputs(LAYOUTS)
    sum(v.square().mean() for v in packed(network, LAYOUTS, latents, timesteps)).div(len(LAYOUTS)).backward()
    in_pack = {name: p.grad for name, p in network.named_parameters()}
    network.zero_grad()
    for index, layout in enumerate(LAYOUTS):
        one = slice(index, index + 1)
        packed(network, LAYOUTS[one], latents[one], timesteps[one])[0].square().mean().div(len(LAYOUTS)).backward()
        theirs = diffusers_velocity(transformer, layout, latents[index], timesteps[index])
        theirs.square().mean().div(len(LAYOUTS)).backward()
    diffusers_grads = {name: p.grad for name, p in transformer.named_parameters()}
    used = 0
    for name, p in network.named_parameters():
        reference = diffusers_grads[native_to_diffusers(name)]
        if in_pack[name] is None:  # the language head and the last layer's text output lead nowhere
            assert p.grad is None, name
            assert reference is None or not reference.any(), name
            continue
        used += 1
        scale = max(p.grad.abs().max().item(), 1e-3)
        assert (in_pack[name] - p.grad).abs().max() <= 1e-5 * scale, name
        assert (in_pack[name] - reference).abs().max() <= 1e-5 * scale, name
    assert used > 0.8 * len(in_pack)


@pytest.mark.parametrize("config", CONFIGS)
def test_text_read_once_gives_the_same_velocity(config):
    network = random_network(config)
    latents, timesteps = inputs(LAYOUTS)
    pack = pack_samples(LAYOUTS, config, eos_id=EOS, vision_start_id=VISION_START)
    with torch.no_grad():
        memory = network.read_text(pack)
        for ours, again in zip(network(pack, latents, timesteps), network(pack, latents, timesteps, memory)):
            torch.testing.assert_close(again, ours, rtol=0, atol=0)
