"""Tiny models of other libraries on disk, and what those libraries compute with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_model import SampleLayout

EOS, VISION_START, VOCAB = 94, 95, 96
QWEN = NetworkConfig(
    vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, mrope_section=[4, 2, 2], latent_channel=8,
)  # fmt: skip
EDGE = replace(
    QWEN, hidden_act="relu2", qk_norm_for_text=False, use_und_k_norm_for_gen=True, rms_norm_eps=1e-5, rope_theta=1e8,
    num_attention_heads=3, num_key_value_heads=1,
)  # fmt: skip
LAYOUT = SampleLayout([5, 6, 7, 60], (3, 4, 6), fps=16.0, condition_frames=1)
PROMPTS = [[4, 5, 6], list(range(30))]


def spec_of(network: NetworkConfig) -> ModelSpec:
    """The model with this network."""
    return ModelSpec(name="cosmos3", config=Cosmos3Generator.Config(network=network))


def randomize(module: torch.nn.Module, seed: int = 3) -> None:
    """Weights where no parameter is one or zero: norms and biases too must arrive in the right place."""
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=stream)
            if parameter.ndim == 1:
                parameter.add_(0.7)


def random_transformer(config: NetworkConfig) -> Any:
    """diffusers' own network with random weights; its config keys are written out here."""
    from diffusers import Cosmos3OmniTransformer

    transformer = Cosmos3OmniTransformer(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers, num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads, head_dim=config.head_dim, rms_norm_eps=config.rms_norm_eps,
        hidden_act=config.hidden_act, qk_norm_for_text=config.qk_norm_for_text, rope_theta=config.rope_theta,
        use_und_k_norm_for_gen=config.use_und_k_norm_for_gen, latent_channel=config.latent_channel,
        patch_latent_dim=4 * config.latent_channel, rope_axes_dim=list(config.mrope_section),
        rope_scaling={"mrope_interleaved": True, "mrope_section": list(config.mrope_section), "rope_type": "default"},
        action_gen=config.action_gen, sound_gen=config.sound_gen,
    )  # fmt: skip
    randomize(transformer)
    return transformer


def random_latent() -> tuple[Tensor, Tensor]:
    """A latent of `LAYOUT` and its timestep."""
    stream = torch.Generator().manual_seed(7)
    return torch.randn(8, *LAYOUT.latent_shape, generator=stream), torch.tensor([300.0])


@torch.no_grad()
def diffusers_velocity(transformer: Any) -> Tensor:
    """The velocity of `random_latent` through diffusers, with positions from the pipeline's own functions."""
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import (
        get_3d_mrope_ids_text_tokens,
        get_3d_mrope_ids_vae_tokens,
    )

    latent, timestep = random_latent()
    ids = [*LAYOUT.text_ids, EOS, VISION_START]
    frames, rows, columns = LAYOUT.latent_shape[0], LAYOUT.latent_shape[1] // 2, LAYOUT.latent_shape[2] // 2
    text, explain_message = get_3d_mrope_ids_text_tokens(len(ids), 0, use_float_positions=True)
    video, _ = get_3d_mrope_ids_vae_tokens(frames, rows, columns, explain_message + 15000, fps=LAYOUT.fps)
    per_frame, end = rows * columns, len(ids) + frames * rows * columns
    dtype = next(transformer.parameters()).dtype
    velocity: Tensor = transformer(
        input_ids=torch.tensor(ids),
        text_indexes=torch.arange(len(ids)),
        position_ids=torch.cat([text, video.float()], dim=1),
        und_len=len(ids),
        sequence_length=end,
        vision_tokens=[latent[None].to(dtype)],
        vision_token_shapes=[(frames, rows, columns)],
        vision_sequence_indexes=torch.arange(len(ids), end),
        vision_mse_loss_indexes=torch.arange(len(ids) + per_frame, end),
        vision_timesteps=timestep.expand((frames - 1) * per_frame),
        vision_noisy_frame_indexes=[torch.arange(1, frames)],
    ).sample[0][0]
    return velocity.float()


@torch.no_grad()
def our_velocity(network: Cosmos3Network) -> Tensor:
    latent, timestep = random_latent()
    pack = pack_samples([LAYOUT], network.config, eos_id=EOS, vision_start_id=VISION_START)
    return network(pack, [latent], timestep)[0]


@torch.no_grad()
def our_text_states(network: Cosmos3Network) -> list[Tensor]:
    """Final states of the understanding tower for each of `PROMPTS`."""
    layouts = [SampleLayout(ids, (1, 2, 2), fps=24.0) for ids in PROMPTS]
    pack = pack_samples(layouts, network.config, eos_id=EOS, vision_start_id=VISION_START)
    return list(network.text_states(pack).split(pack.text_lengths))


@torch.no_grad()
def their_text_states(text_model: Any) -> list[Tensor]:
    """The same from a transformers text model."""
    prompts = [torch.tensor([[*ids, EOS, VISION_START]]) for ids in PROMPTS]
    return [text_model(input_ids=ids).last_hidden_state[0].float() for ids in prompts]


def write_qwen3_vl(
    folder: Path, *, tied: bool = False, max_shard_size: str = "5GB", dtype: str = "float32", **sizes: int
) -> Any:
    """A random Qwen3-VL in the form in which transformers saves it; returns the model. `sizes`: of its text model."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, **sizes}  # fmt: skip
    quarter = text["head_dim"] // 8
    section = [text["head_dim"] // 2 - 2 * quarter, quarter, quarter]
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": section, "mrope_interleaved": True}
    model = Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            tie_word_embeddings=tied,
            text_config={**text, "tie_word_embeddings": tied, "rope_parameters": rope},
            vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, num_position_embeddings=16,
                               out_hidden_size=text["hidden_size"], deepstack_visual_indexes=[0]),
        )
    )  # fmt: skip
    randomize(model)
    model.tie_weights()
    model = model.to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def write_tiny_base(folder: Path) -> None:
    """A Qwen3-VL whose text model has the sizes of the tiny runs (tiny_runs.py)."""
    write_qwen3_vl(
        folder, vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=1, head_dim=8
    )  # fmt: skip


def write_edge_reasoner(folder: Path) -> Any:
    """A random Cosmos3-Edge reasoner in the form in which transformers saves it; returns the model."""
    from transformers import Cosmos3EdgeConfig, Cosmos3EdgeForConditionalGeneration

    model = Cosmos3EdgeForConditionalGeneration(
        Cosmos3EdgeConfig(
            text_config=dict(
                vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3,
                num_key_value_heads=1, head_dim=16,
                rope_parameters={"rope_type": "default", "rope_theta": 1e8, "mrope_section": [4, 2, 2]},
            ),
            vision_config=dict(num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2,
                               num_patches=16),
            projector_hidden_size=32,
        )
    )  # fmt: skip
    randomize(model)
    model.eval().save_pretrained(folder)
    return model
