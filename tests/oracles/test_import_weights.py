"""Weights that diffusers and transformers wrote, through our readers and back, against what those libraries compute."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored_models import (
    EDGE,
    QWEN,
    diffusers_velocity,
    our_text_states,
    our_velocity,
    random_transformer,
    spec_of,
    their_text_states,
    write_edge_reasoner,
    write_qwen3_vl,
)

from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.checkpoint.sources.warm_start import load_weights
from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.network.architecture import NetworkConfig, edge
from worldsmith.families.cosmos3.network.network import Cosmos3Network, init_weights
from worldsmith.families.cosmos3.weights.network_settings import network_of
from worldsmith.tools.export.convert import convert

FORMATS = ("dcp", "native", "diffusers")


def loaded(path: Path, config: NetworkConfig | None = None) -> Cosmos3Network:
    """A network with the weights at `path`, as a training run with checkpoint.load_path would have it."""
    network = Cosmos3Network(config or network_of(open_weights(path)))
    init_weights(network, 0)
    load_weights(
        str(path), {f"net.{n}": p.detach() for n, p in network.named_parameters()}, spec=spec_of(network.config)
    )
    return network


@pytest.fixture(scope="module", params=["qwen", "edge"])
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """diffusers' transformer, in several shards, and its velocity."""
    transformer = random_transformer(QWEN if request.param == "qwen" else EDGE)
    folder = tmp_path_factory.mktemp(request.param) / "transformer"
    transformer.save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return transformer, folder, diffusers_velocity(transformer)


def test_a_diffusers_transformer_computes_the_same_here(theirs) -> None:
    """Its folder as load_path: the velocity differs by less than 2e-5; the network's config comes from its config."""
    _, folder, velocity = theirs
    assert velocity[:, 1:].std() > 0.1
    assert (our_velocity(loaded(folder)) - velocity).abs().max() < 2e-5
    assert (our_velocity(loaded(folder.parent)) - velocity).abs().max() < 2e-5  # as the folder of a pipeline


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_gives_back_the_bits(theirs, tmp_path: Path, to: str) -> None:
    """diffusers → each format → diffusers: the same tensors and names, byte for byte; and diffusers loads them."""
    from diffusers import Cosmos3OmniTransformer

    transformer, folder, velocity = theirs
    report = convert(str(folder), tmp_path / "base", to=to, max_shard_size=200_000)
    assert (len(report.loaded), report.missing, report.unexpected, report.initialised) == (
        len(transformer.state_dict()), [], [], []
    )  # fmt: skip
    assert (our_velocity(loaded(tmp_path / "base")) - velocity).abs().max() < 2e-5
    convert(str(tmp_path / "base"), tmp_path / "back", to="diffusers")
    back = load_file(tmp_path / "back" / "diffusion_pytorch_model.safetensors")
    state = transformer.state_dict()
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    again = Cosmos3OmniTransformer.from_pretrained(tmp_path / "back")
    assert torch.equal(diffusers_velocity(again), velocity)


def test_shards_written_here_load_in_diffusers(theirs, tmp_path: Path) -> None:
    """A transformer folder in several files with an index: from_pretrained computes the same bits."""
    from diffusers import Cosmos3OmniTransformer

    _, folder, velocity = theirs
    convert(str(folder), tmp_path / "sharded", to="diffusers", max_shard_size=100_000)
    index = json.loads((tmp_path / "sharded" / "diffusion_pytorch_model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 2
    assert index["metadata"]["total_size"] == sum(p.numel() * 4 for p in theirs[0].parameters())
    assert torch.equal(diffusers_velocity(Cosmos3OmniTransformer.from_pretrained(tmp_path / "sharded")), velocity)


def test_bfloat16_keeps_the_time_embedder_and_rounds_the_rest(theirs, tmp_path: Path) -> None:
    """--dtype bfloat16: each weight is the rounded one, and the velocity is within 3 % of its spread."""
    transformer, folder, velocity = theirs
    convert(str(folder), tmp_path / "bf16", to="diffusers", dtype="bfloat16")
    stored = load_file(tmp_path / "bf16" / "diffusion_pytorch_model.safetensors")
    for name, value in transformer.state_dict().items():
        expected = value if name.startswith("time_embedder.") else value.bfloat16()
        assert torch.equal(stored[name], expected), name
    error = (our_velocity(loaded(tmp_path / "bf16")) - velocity)[:, 1:].abs().max() / velocity[:, 1:].std()
    assert 0 < error < 0.03


def test_a_released_repository_with_one_index_at_its_root(theirs, tmp_path: Path) -> None:
    """One weight_map at the root over transformer/ and vision_encoder/, with prefixes: the other folder is left out."""
    transformer, _, velocity = theirs
    state = {f"transformer.{name}": value for name, value in transformer.state_dict().items()}
    (tmp_path / "transformer").mkdir()
    save_file(state, tmp_path / "transformer" / "part.safetensors")
    (tmp_path / "transformer" / "config.json").write_text(json.dumps(dict(transformer.config)))
    weight_map = {**dict.fromkeys(state, "transformer/part.safetensors"),
                  "vision_encoder.blocks.0.attn.qkv.weight": "vision_encoder/model.safetensors"}  # fmt: skip
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert (our_velocity(loaded(tmp_path)) - velocity).abs().max() < 2e-5
    assert open_weights(tmp_path).unknown == ["vision_encoder.blocks.0.attn.qkv.weight"]


@pytest.mark.parametrize("form", ["plain", "tied", "sharded"])
@pytest.mark.parametrize("way", ["direct", "converted"])
def test_qwen3_vl_becomes_both_towers(tmp_path: Path, form: str, way: str) -> None:
    """Understanding: text states equal transformers' to 1e-5. Generation: the same bits. Heads: initial values.

    Tied embeddings become the language head.
    """
    model = write_qwen3_vl(
        tmp_path / "qwen", tied=form == "tied", max_shard_size="60KB" if form == "sharded" else "5GB"
    )
    path = tmp_path / "qwen"
    if way == "converted":
        report = convert(str(path), tmp_path / "base", to="dcp", seed=0)
        assert (len(report.copied), len(report.initialised)) == (23 + (form == "tied"), 8)
        assert any("visual" in name for name in report.unexpected)
        path = tmp_path / "base"
    network = loaded(path, replace(QWEN, latent_channel=48))
    for ours, reference in zip(our_text_states(network), their_text_states(model.model.language_model), strict=True):
        assert reference.std() > 0.3
        assert (ours - reference).abs().max() < 1e-5
    state = network.state_dict()
    assert torch.equal(state["language_model.lm_head.weight"], model.lm_head.weight)
    generation = [name for name in state if "_moe_gen" in name]
    assert len(generation) == 2 * 11 + 1
    assert all(torch.equal(state[name], state[name.replace("_moe_gen", "")]) for name in generation)
    fresh = Cosmos3Network(network.config)
    init_weights(fresh, 0)
    heads = [name for name in state if name.startswith(("vae2llm", "llm2vae", "time_embedder"))]
    assert all(torch.equal(state[name], fresh.state_dict()[name]) for name in heads)


def test_qwen3_vl_in_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    """bf16 files, the usual form, arrive in float32 networks without a rounding; `stored` keeps them bf16."""
    model = write_qwen3_vl(tmp_path / "qwen", dtype="bfloat16")
    convert(str(tmp_path / "qwen"), tmp_path / "base", to="native", heads=["action"])
    stored = load_file(tmp_path / "base" / "model.safetensors")
    name = "language_model.model.layers.1.self_attn.q_proj_moe_gen.weight"
    theirs = model.model.language_model.layers[1].self_attn.q_proj.weight
    assert torch.equal(stored[f"model.net.{name}"], theirs)
    assert stored["model.net.action2llm.fc.weight"].dtype == torch.float32
    network = loaded(tmp_path / "base")
    assert network.config.action_gen
    assert torch.equal(network.state_dict()[name], theirs.float())


def test_the_edge_reasoner_becomes_both_towers(tmp_path: Path) -> None:
    """transformers' Cosmos3-Edge: text states equal to 1e-5; query and key norms, which it lacks, start at one."""
    model = write_edge_reasoner(tmp_path / "edge")
    report = convert(str(tmp_path / "edge"), tmp_path / "base")
    network = loaded(tmp_path / "base")
    assert network.config == replace(EDGE, latent_channel=48)
    for ours, reference in zip(our_text_states(network), their_text_states(model.model.language_model), strict=True):
        assert reference.std() > 0.3
        assert (ours - reference).abs().max() < 1e-5
    state = network.state_dict()
    assert torch.equal(
        state["language_model.model.layers.1.mlp_moe_gen.up_proj.weight"],
        model.model.language_model.layers[1].mlp.fc1.weight,
    )
    norms = [name for name in state if name.endswith(("q_norm_moe_gen.weight", "k_norm_und_for_gen.weight"))]
    assert len(norms) == 4
    assert all(bool((state[name] == 1).all()) for name in norms)
    assert {f"net.{name}" for name in norms} <= set(report.initialised)


def test_a_reasoner_of_alternating_blocks(tmp_path: Path) -> None:
    """Nemotron-style names (block 2i attention, 2i+1 MLP) of the same weights give the same network."""
    write_edge_reasoner(tmp_path / "edge")
    plain = load_file(tmp_path / "edge" / "model.safetensors")
    blocks = {"backbone.embeddings.weight": "embed_tokens.weight", "backbone.norm_f.weight": "norm.weight",
              "lm_head.weight": "lm_head.weight"}  # fmt: skip
    for layer in range(2):
        attention, mlp = f"backbone.layers.{2 * layer}", f"backbone.layers.{2 * layer + 1}"
        blocks |= {f"{attention}.norm.weight": f"layers.{layer}.input_layernorm.weight",
                   f"{mlp}.norm.weight": f"layers.{layer}.post_attention_layernorm.weight"}  # fmt: skip
        for block, leaf in (("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("o_proj", "to_out")):
            blocks[f"{attention}.mixer.{block}.weight"] = f"layers.{layer}.self_attn.{leaf}.weight"
        blocks |= {
            f"{mlp}.mixer.{leaf}.weight": f"layers.{layer}.mlp.{leaf}.weight" for leaf in ("up_proj", "down_proj")
        }
    (tmp_path / "nemotron").mkdir()
    save_file({name: plain[source] for name, source in blocks.items()}, tmp_path / "nemotron" / "model.safetensors")
    shutil.copy(tmp_path / "edge" / "config.json", tmp_path / "nemotron")
    ours, reference = loaded(tmp_path / "nemotron").state_dict(), loaded(tmp_path / "edge").state_dict()
    assert all(torch.equal(ours[name], reference[name]) for name in reference)


def write_nemotron(folder: Path, **settings) -> Any:
    """A random Nemotron-H of two layers, each a block of attention and one MLP block, as transformers saves it."""
    from transformers import NemotronHConfig, NemotronHForCausalLM

    sizes = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 2,
             "num_key_value_heads": 1, "head_dim": 128, "layers_block_type": ["full_attention", "mlp"] * 2}  # fmt: skip
    model = NemotronHForCausalLM(NemotronHConfig(**{**sizes, **settings}))
    model.save_pretrained(folder)
    return model


def test_a_nemotron_checkpoint_with_its_own_config(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Written by transformers: blocks count twice, the epsilon has its own name, rotary values are those of Edge."""
    theirs = write_nemotron(tmp_path / "nemotron").state_dict()
    convert(str(tmp_path / "nemotron"), tmp_path / "base")
    network = loaded(tmp_path / "base")
    assert network.config == replace(
        edge(), vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    assert "lacks rope_theta and mrope_section" in caplog.text
    state = network.state_dict()
    ours = {name for name in state if "moe_gen" not in name and "und_for_gen" not in name and name.startswith("lang")}
    assert len(ours) == len(theirs) == 3 + 2 * 8
    for layer, (block, part, name) in itertools.product(
        range(2), [(0, "mixer.k_proj", "self_attn.k_proj"), (1, "mixer.up_proj", "mlp.up_proj"),
                   (1, "norm", "post_attention_layernorm")]
    ):  # fmt: skip
        key = next(key for key in theirs if key.endswith(f"layers.{2 * layer + block}.{part}.weight"))
        assert torch.equal(state[f"language_model.model.layers.{layer}.{name}.weight"], theirs[key])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"layers_block_type": ["mlp", "full_attention"] * 2}, "layers_block_type: expected alternating"),
        ({"layers_block_type": ["full_attention", "mlp", "linear_attention", "moe"]}, r"found attention, mlp, linear_"),
        ({"layers_block_type": ["full_attention", "mlp"] * 3}, r"\(6 blocks\)"),
        ({"layers_block_type": None, "hybrid_override_pattern": "M-*-"}, r"found mamba, mlp, attention, mlp"),
        ({"layers_block_type": None, "num_hidden_layers": 2}, r"num_hidden_layers: expected 4 blocks"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act is 'silu'; expected relu2"),
        ({"use_bias": True}, "use_bias is true"),
    ],
)  # fmt: skip
def test_another_nemotron_is_refused(tmp_path: Path, change: dict, complaint: str) -> None:
    write_nemotron(tmp_path / "nemotron")
    file = tmp_path / "nemotron" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=rf"config\.json: .*{complaint}"):
        open_weights(tmp_path / "nemotron")


def test_older_nemotron_configs_and_other_head_sizes(tmp_path: Path) -> None:
    """The pattern as letters; a rotary base of its own counts; without one, heads of another size are not Edge's."""
    write_nemotron(tmp_path / "nemotron")
    file = tmp_path / "nemotron" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "layers_block_type": None, "hybrid_override_pattern": "*-*-",
                                "rope_theta": 10000, "norm_eps": 1e-4, "layer_norm_epsilon": None}))  # fmt: skip
    network = network_of(open_weights(tmp_path / "nemotron"))
    assert (network.num_hidden_layers, network.rope_theta, network.rms_norm_eps) == (2, 1e4, 1e-4)
    file.write_text(json.dumps({**config, "head_dim": 64}))
    with pytest.raises(UserError, match="rope_theta of this network are unknown"):
        network_of(open_weights(tmp_path / "nemotron"))


def test_transformers_reads_our_understanding_tower(theirs, tmp_path: Path) -> None:
    """transformers' Cosmos3 classes on a transformer folder of ours: their text states equal ours to 1e-5."""
    import transformers

    _, folder, _ = theirs
    network = loaded(folder)
    convert(str(folder), tmp_path / "out", to="diffusers")
    (tmp_path / "out" / "diffusion_pytorch_model.safetensors").rename(tmp_path / "out" / "model.safetensors")
    if network.config.hidden_act == "silu":
        config = write_qwen3_vl(tmp_path / "qwen").config.to_dict()
        config = transformers.Cosmos3OmniConfig(
            text_config=config["text_config"], vision_config=config["vision_config"]
        )
        kind = transformers.Cosmos3OmniForConditionalGeneration
    else:
        config = write_edge_reasoner(tmp_path / "edge").config
        kind = transformers.Cosmos3EdgeForConditionalGeneration
    model = kind.from_pretrained(tmp_path / "out", config=config).eval()
    for ours, reference in zip(our_text_states(network), their_text_states(model.model.language_model), strict=True):
        assert reference.std() > 0.3
        assert (ours - reference).abs().max() < 1e-5


def test_weights_of_another_network_are_refused_before_a_tensor_is_read(theirs) -> None:
    """Sizes and settings that differ are named, those included that no shape shows."""
    _, folder, _ = theirs
    config = network_of(open_weights(folder))
    theta = replace(config, rope_theta=1e4)
    with pytest.raises(
        UserError, match=r"rope_theta is .* in the weights and 10000.0 in the config.*Set model.config.network"
    ):
        loaded(folder, theta)
    with pytest.raises(UserError, match=r"hidden_size is 48 in the weights and 96 in the config.*Other shapes"):
        loaded(folder, replace(config, hidden_size=96))
    flipped = replace(config, hidden_act="relu2" if config.hidden_act == "silu" else "silu")
    with pytest.raises(UserError, match=r"hidden_act is .* in the weights and .* in the config"):
        loaded(folder, flipped)
