"""diffusers' `Cosmos3OmniTransformer` as judge of samples with robot actions, one sample at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from diffusers import Cosmos3OmniTransformer
from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import (
    get_3d_mrope_ids_text_tokens,
    get_3d_mrope_ids_vae_tokens,
)
from torch import Tensor

from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.weights.diffusers_keys import native_to_diffusers, transformer_config
from worldsmith.models.video_model import ActionLayout, SampleLayout

EOS, VISION_START, VOCAB = 94, 95, 96
"""Special tokens and vocabulary of the networks."""
QWEN = NetworkConfig(
    vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, mrope_section=[4, 2, 2], latent_channel=8,
    action_gen=True, max_action_dim=10, num_embodiment_domains=5,
)  # fmt: skip
EDGE = replace(
    QWEN, hidden_act="relu2", qk_norm_for_text=False, use_und_k_norm_for_gen=True, rms_norm_eps=1e-5, rope_theta=1e8
)


def actions(
    rows: int, clean_rows: int, *, channels: int = 7, offset: int = 1, domain: int = 3, fps: float = 20.0
) -> ActionLayout:
    return ActionLayout(rows, channels, clean_rows, offset, domain, fps)


FD = SampleLayout([5, 6, 7], (3, 4, 4), 20.0, condition_frames=1, actions=actions(8, 8))
ID = SampleLayout(list(range(20)), (3, 4, 6), 20.0, condition_frames=3, actions=actions(8, 0, domain=1))
WAM = SampleLayout([8, 9], (2, 3, 5), 15.0, condition_frames=1, actions=actions(4, 0, channels=10, fps=15.0))
STATE = SampleLayout([], (3, 4, 4), 15.0, condition_frames=1, actions=actions(9, 1, offset=0, channels=8, fps=15.0))
HISTORY = SampleLayout([2] * 9, (3, 2, 4), 10.0, condition_frames=1, actions=actions(11, 2, offset=-2, fps=10.0))
PLAIN = SampleLayout([1, 2], (3, 4, 4), 24.0, condition_frames=1)
LAYOUTS = [FD, PLAIN, ID, WAM, STATE, HISTORY]


def random_network(config: NetworkConfig, **settings: Any) -> Cosmos3Network:
    network = Cosmos3Network(config, **settings)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            table = name.split(".")[0] in ("action2llm", "llm2action")
            scale = 0.2 if table else parameter.shape[-1] ** -0.5
            parameter.normal_(0, scale, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.7)
    return network


def as_diffusers(network: Cosmos3Network) -> Cosmos3OmniTransformer:
    transformer = Cosmos3OmniTransformer(**transformer_config(network.config))
    state = {native_to_diffusers(name): value for name, value in network.state_dict().items()}
    transformer.load_state_dict(state, strict=True)
    return transformer


def inputs(layouts: list[SampleLayout]) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Latents, timesteps, and one [rows, max_action_dim] for each sample that has actions."""
    generator = torch.Generator().manual_seed(7)
    latents = [torch.randn(8, *layout.latent_shape, generator=generator) for layout in layouts]
    timesteps = torch.rand(len(layouts), generator=generator) * 1000
    rows = []
    for layout in layouts:
        if layout.actions is not None:
            values = torch.randn(layout.actions.rows, 10, generator=generator)
            values[:, layout.actions.channels :] = 0
            rows.append(values)
    return latents, timesteps, rows


def diffusers_positions(layout: SampleLayout, config: NetworkConfig = QWEN) -> Tensor:
    length = len(layout.text_ids) + 2
    frames, rows, columns = layout.latent_shape[0], -(-layout.latent_shape[1] // 2), -(-layout.latent_shape[2] // 2)
    text, start = get_3d_mrope_ids_text_tokens(length, 0, use_float_positions=True)
    start = start + config.unified_3d_mrope_temporal_modality_margin
    parts = [text, get_3d_mrope_ids_vae_tokens(frames, rows, columns, start, fps=layout.fps)[0].float()]
    if layout.actions is not None:
        found, _ = get_3d_mrope_ids_vae_tokens(
            layout.actions.rows,
            1,
            1,
            start,
            fps=layout.actions.fps,
            temporal_compression_factor=1,
            base_temporal_compression_factor=4,
            start_frame_offset=layout.actions.offset,
        )
        parts.append(found)
    return torch.cat(parts, dim=1)


def diffusers_velocity(
    transformer: Any, layout: SampleLayout, latent: Tensor, timestep: Tensor, rows: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """(velocity of the latents, velocity of the actions or None) of one sample in diffusers."""
    ids = [*layout.text_ids, EOS, VISION_START]
    frames, height, width = layout.latent_shape[0], -(-layout.latent_shape[1] // 2), -(-layout.latent_shape[2] // 2)
    noisy = torch.arange(layout.condition_frames, frames)
    per_frame, count = height * width, frames * height * width
    actions, given = layout.actions, dict[str, Any]()
    if actions is not None:
        noised = torch.arange(actions.clean_rows, actions.rows)
        start = len(ids) + count
        given = {
            "action_tokens": [rows],
            "action_token_shapes": [(actions.rows, 1, 1)],
            "action_sequence_indexes": torch.arange(start, start + actions.rows),
            "action_mse_loss_indexes": start + noised,
            "action_timesteps": timestep.expand(len(noised)),
            "action_noisy_frame_indexes": [noised],
            "action_domain_ids": [torch.tensor([actions.domain])],
        }
    found = transformer(
        input_ids=torch.tensor(ids),
        text_indexes=torch.arange(len(ids)),
        position_ids=diffusers_positions(layout),
        und_len=len(ids),
        sequence_length=len(ids) + count + (0 if actions is None else actions.rows),
        vision_tokens=[latent[None]],
        vision_token_shapes=[(frames, height, width)],
        vision_sequence_indexes=torch.arange(len(ids), len(ids) + count),
        vision_mse_loss_indexes=torch.arange(len(ids) + layout.condition_frames * per_frame, len(ids) + count),
        vision_timesteps=timestep.expand(len(noisy) * per_frame),
        vision_noisy_frame_indexes=[noisy],
        **given,
    )
    return found.sample[0][0], None if actions is None else found.action[0]
