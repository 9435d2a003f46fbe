"""The network as a module: names, initial weights, precision, inputs that do not fit, checkpointing a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.layers import RMSNorm
from worldsmith.families.cosmos3.network.network import Cosmos3Network, init_weights
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.models.video_model import SampleLayout

SMALL = NetworkConfig(
    vocab_size=64, hidden_size=96, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, mrope_section=[4, 2, 2], action_gen=True, max_action_dim=8, sound_gen=True,
)  # fmt: skip
EDGE = replace(SMALL, hidden_act="relu2", qk_norm_for_text=False, use_und_k_norm_for_gen=True)


def initialised(config: NetworkConfig, seed: int = 0) -> Cosmos3Network:
    network = Cosmos3Network(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(torch.nan)
    init_weights(network, seed)
    return network


def one_sample(config: NetworkConfig):
    layout = SampleLayout([1, 2, 3], (2, 4, 4), 24.0)
    pack = pack_samples([layout], config, eos_id=62, vision_start_id=63)
    latent = torch.randn(48, *layout.latent_shape, generator=torch.Generator().manual_seed(1))
    return pack, [latent], torch.tensor([500.0])


def test_state_dict_has_the_native_names():
    names = set(Cosmos3Network(SMALL).state_dict())
    layer = "language_model.model.layers.1."
    assert {
        layer + "self_attn.q_proj_moe_gen.weight", layer + "self_attn.k_norm.weight",
        layer + "mlp_moe_gen.gate_proj.weight",
        layer + "post_attention_layernorm_moe_gen.weight", "language_model.lm_head.weight", "vae2llm.bias",
        "language_model.model.norm_moe_gen.weight", "time_embedder.mlp.0.weight", "action2llm.fc.weight",
        "llm2action.bias.weight", "action_modality_embed", "sound2llm.bias", "sound_modality_embed",
    } <= names  # fmt: skip
    edge_names = set(Cosmos3Network(EDGE).state_dict())
    assert layer + "self_attn.k_norm_und_for_gen.weight" in edge_names
    assert not {layer + "self_attn.q_norm.weight", layer + "mlp.gate_proj.weight"} & edge_names


def test_initial_values_follow_the_published_distributions():
    weights = initialised(SMALL).state_dict()
    gate = weights["language_model.model.layers.0.mlp.gate_proj.weight"]
    assert gate.std().item() == pytest.approx(0.02, rel=0.05)
    assert gate.abs().max() > 0.06, "a plain normal is not cut at three deviations"
    for name, fan_in in (
        ("vae2llm.weight", 192), ("llm2vae.weight", 96), ("time_embedder.mlp.0.weight", 256),
        ("time_embedder.mlp.2.weight", 96), ("action2llm.fc.weight", 8), ("llm2action.fc.weight", 96),
        ("sound2llm.weight", 64), ("llm2sound.weight", 96), ("action_modality_embed", 96),
    ):  # fmt: skip
        deviation = fan_in**-0.5
        assert weights[name].std().item() == pytest.approx(
            0.987 * deviation, rel=0.2 if weights[name].ndim == 1 else 0.05
        )
        assert weights[name].abs().max() <= 3 * deviation
    for name, value in weights.items():
        assert value.isfinite().all(), name
        if "norm" in name:
            assert (value == 1).all(), name
        if name.endswith(".bias") or ".bias." in name:
            assert (value == 0).all(), name


def test_generation_tower_starts_as_a_copy_of_the_understanding_tower():
    for config in (SMALL, EDGE):
        weights = initialised(config).state_dict()
        copies = [name for name in weights if "_moe_gen" in name and name.replace("_moe_gen", "") in weights]
        assert len(copies) > 15
        for name in copies:
            assert torch.equal(weights[name], weights[name.replace("_moe_gen", "")]), name


def test_initialisation_depends_on_generator_and_name_only():
    first, again, other = initialised(SMALL), initialised(SMALL), initialised(SMALL, seed=1)
    without_heads = initialised(replace(SMALL, action_gen=False, sound_gen=False)).state_dict()
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert name not in without_heads or torch.equal(value, without_heads[name])
    assert not torch.equal(first.vae2llm.weight, other.vae2llm.weight)
    weights = first.state_dict()
    layers = [weights[f"language_model.model.layers.{i}.self_attn.q_proj.weight"] for i in range(2)]
    assert not torch.equal(*layers)


def test_cast_keeps_the_time_embedder_and_the_output_in_float32_and_stays_close():
    generator = Cosmos3Generator(Cosmos3Generator.Config(network=SMALL), seed=0)
    network = generator.network
    inputs = one_sample(SMALL)
    with torch.no_grad():
        exact = network(*inputs)[0]
        generator.cast(torch.bfloat16)
        rounded = network(*inputs)[0]
    dtypes = {name: p.dtype for name, p in network.named_parameters()}
    assert {d for n, d in dtypes.items() if n.startswith("time_embedder")} == {torch.float32}
    assert {d for n, d in dtypes.items() if not n.startswith("time_embedder")} == {torch.bfloat16}
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("config", [SMALL, EDGE])
def test_autocast_runs_both_streams_in_bfloat16_also_when_text_was_read_before(config):
    network = initialised(config)
    pack, latents, timesteps = one_sample(config)
    with torch.no_grad():
        exact = network(pack, latents, timesteps)[0]
        with torch.autocast("cpu", torch.bfloat16):
            memory = network.read_text(pack)
            rounded = network(pack, latents, timesteps)[0]
            again = network(pack, latents, timesteps, memory)[0]
    assert {x.dtype for pair in memory for x in pair} == {torch.bfloat16}
    assert torch.equal(rounded, again)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.abs().max()


def test_inputs_that_do_not_fit_the_pack_are_refused():
    network = initialised(SMALL)
    pack, latents, timesteps = one_sample(SMALL)
    with pytest.raises(ValueError, match="1 latents and timesteps of shape"):
        network(pack, latents, torch.tensor(500.0))
    with pytest.raises(ValueError, match=r"sample 0: .* \[48, 2, 4, 4\], found \[48, 2, 4, 6\]"):
        network(pack, [torch.zeros(48, 2, 4, 6)], timesteps)


def test_a_checkpointed_layer_gives_the_same_gradients():
    network = initialised(SMALL)
    pack, _, _ = one_sample(SMALL)
    layer = network.language_model.model.layers[0]
    und = torch.randn(len(pack.text_ids), 96, requires_grad=True)
    gen = torch.randn(len(pack.timestep_rows), 96, requires_grad=True)
    geometry = network.geometry(pack)
    outputs = layer(und, gen, geometry), checkpoint(layer, und, gen, geometry, use_reentrant=False)
    plain, recomputed = (
        torch.autograd.grad(sum(x.square().sum() for x in out), [und, gen, *layer.parameters()]) for out in outputs
    )
    for a, b in zip(plain, recomputed):
        assert torch.equal(a, b)


def test_rms_norm_equals_torch_with_gradients_in_both_flavours():
    x = torch.randn(5, 3, 16, requires_grad=True)
    grad = torch.randn(5, 3, 16)
    for scale_in_fp32 in (False, True):
        norm = RMSNorm(16, 1e-5, scale_in_fp32=scale_in_fp32)
        torch.nn.init.normal_(norm.weight, 1.0)
        reference = F.rms_norm(x, (16,), norm.weight, 1e-5)
        torch.testing.assert_close(norm(x), reference)
        ours, theirs = (torch.autograd.grad(y, (x, norm.weight), grad) for y in (norm(x), reference))
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b)
        assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
