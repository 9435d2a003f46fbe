"""Adapters: which layers get one, what is trained, first values, and merging."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from worldsmith.config import WrongValueError
from worldsmith.config.sections import ActivationCheckpointingConfig
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig, adaptable_layers, parameter_shapes
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.models.lora import adapted_layers, adapter_state, inject_adapters, match_targets, merge_adapters
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.video_model import SampleLayout

QWEN = NetworkConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, mrope_section=[2, 1, 1], latent_channel=4,
)  # fmt: skip
EDGE = replace(QWEN, hidden_act="relu2", qk_norm_for_text=False, use_und_k_norm_for_gen=True)
HEADS = replace(QWEN, action_gen=True, sound_gen=True, num_embodiment_domains=2)
RECIPE = "q_proj_moe_gen,k_proj_moe_gen,v_proj_moe_gen,o_proj_moe_gen"


def generator(network: NetworkConfig = QWEN, *, seed: int | None = 3, **fields) -> Cosmos3Generator:
    model = {"lora_enabled": True, "lora_rank": 4, "lora_alpha": 8, **fields}
    return Cosmos3Generator(Cosmos3Generator.Config(network=network, **model), seed=seed)


@pytest.mark.parametrize("config", [QWEN, EDGE, HEADS], ids=["qwen", "edge", "heads"])
def test_the_list_of_layers_is_that_of_the_network(config):
    """Every linear layer but those that an adapter cannot be trained for; none of them by hand."""
    with torch.device("meta"):
        network = Cosmos3Network(config)
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    left_out = ("lm_head", "time_embedder", "sound")
    known = adaptable_layers(parameter_shapes(config))
    assert sorted(known) == sorted(n for n in linear if not any(word in n for word in left_out))


def test_every_listed_layer_learns():
    """All adapters get a gradient but those behind the text output of the last layer, which nothing reads."""
    leaves = dict.fromkeys(path.split(".")[-1] for path in adaptable_layers(parameter_shapes(QWEN)))
    network = generator(lora_target_modules=",".join(leaves)).network
    for matrix in adapter_state(network).values():
        matrix.normal_()
    pack = pack_samples([SampleLayout([1, 2, 3], (2, 2, 2), fps=24.0)], QWEN, eos_id=30, vision_start_id=31)
    network(pack, [torch.randn(4, 2, 2, 2)], torch.tensor([500.0]))[0].square().mean().backward()
    still = {name for name, p in native_parameters(network).items() if p.requires_grad and p.grad is None}
    unread = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    assert still == {f"language_model.model.layers.1.{path}.lora_{side}.weight" for path in unread for side in "AB"}
    assert all(p.grad.any() for p in network.parameters() if p.grad is not None)


def test_only_adapters_are_trained_and_all_other_weights_are_those_of_a_plain_network():
    """Same seed with and without LoRA: the same base, so that the first output is the same to the bit."""
    plain, adapted = Cosmos3Generator(Cosmos3Generator.Config(network=QWEN), seed=3), generator()
    weights = native_parameters(adapted.network)
    for name, parameter in native_parameters(plain.network).items():
        assert torch.equal(weights.pop(name), parameter), name
    assert len(weights) == 2 * 4 * 2
    assert all(parameter.requires_grad for parameter in weights.values())
    assert sum(p.requires_grad for p in adapted.network.parameters()) == len(weights)
    assert {p.dtype for p in weights.values()} == {torch.float32}


def test_first_values_are_pefts_by_law_and_the_seeds_by_number():
    """A uniform within ±1/sqrt(in), as `nn.Linear` starts; B zero; each name its own stream; the towers differ."""
    first, again, other = generator(), generator(), generator(seed=4)
    wide = generator(replace(QWEN, hidden_size=256), lora_target_modules="q_proj,q_proj_moe_gen", lora_rank=64)
    for name, tensor in adapter_state(first.network).items():
        assert torch.equal(tensor, adapter_state(again.network)[name])
        assert "lora_A" in name or not tensor.any()
        assert "lora_B" in name or not torch.equal(tensor, adapter_state(other.network)[name])
    state = adapter_state(wide.network)
    low = {name: tensor for name, tensor in state.items() if "lora_A" in name}
    assert len({tensor.sum().item() for tensor in low.values()}) == 4
    for tensor in low.values():
        assert 0.99 / 16 < tensor.abs().max() <= 1 / 16
        assert tensor.std() == pytest.approx(1 / 16 / 3**0.5, rel=0.02)


def test_building_adapters_draws_nothing_from_the_processs_stream():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    generator()
    with torch.random.fork_rng():
        network = nn.Sequential(nn.Linear(4, 4))
    before_injection = torch.get_rng_state()
    inject_adapters(network, rank=2, alpha=2, target_modules="0")
    assert torch.equal(torch.get_rng_state(), before_injection)
    assert torch.equal(before, before_injection)


NAMES = adaptable_layers(parameter_shapes(QWEN))
ENDINGS = sorted({".".join(name.split(".")[cut:]) for name in NAMES for cut in range(len(name.split(".")))})


@settings(max_examples=60)
@given(st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=4, unique=True), st.booleans())
def test_targets_mean_what_they_mean_to_peft(targets, spaces):
    """PEFT's own test of a name against a list of targets is the judge."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    config = LoraConfig(target_modules=targets)
    found = match_targets((" , " if spaces else ",").join(targets), NAMES)
    assert {n for layers in found.values() for n in layers} == {
        n for n in NAMES if check_target_module_exists(config, n)
    }


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ("q_proj_moegen", "'q_proj_moegen' cannot get an adapter.*similar names: q_proj_moe_gen"),
        ("proj_moe_gen", "the complete name is compared"),
        ("self_attn.qproj", "no linear layer has a path that ends with it.*q_proj"),
        ("mlp.q_proj", "no linear layer has a path that ends with it"),
        ("lm_head", "'lm_head' cannot get an adapter.*possible names: q_proj, .*, llm2vae"),
        ("time_embedder.mlp.0", "cannot get an adapter"),
        ("q_proj, q_proj", "'q_proj' occurs twice"),
        ("q_proj,,v_proj", "a name between its commas is empty"),
        (" ", "lora_target_modules = .*it is empty"),
    ],
)
def test_targets_that_cannot_work_are_refused_before_anything_is_built(targets, words):
    with pytest.raises(ValueError, match=words):
        Cosmos3Generator.Config(network=QWEN, lora_enabled=True, lora_target_modules=targets).check()


def test_targets_of_another_backbone_are_refused():
    fields = {"lora_enabled": True, "lora_target_modules": "gate_proj"}
    Cosmos3Generator.Config(network=QWEN, **fields).check()
    with pytest.raises(ValueError, match="'gate_proj' cannot get an adapter"):
        Cosmos3Generator.Config(network=EDGE, **fields).check()


def test_merging_adds_the_scaled_product_and_gives_back_a_plain_network():
    model = generator(lora_target_modules=f"{RECIPE},vae2llm", lora_rank=3, lora_alpha=5)
    before = {name: p.detach().clone() for name, p in native_parameters(model.network).items()}
    for name, tensor in adapter_state(model.network).items():
        before[name] = tensor.normal_().clone()
    assert merge_adapters(model.network) == 9
    after = dict(model.network.named_parameters())
    assert list(after) == list(Cosmos3Network(QWEN).state_dict())
    for name, weight in after.items():
        path = name.removesuffix(".weight")
        expected = before[name]
        if f"{path}.lora_A.weight" in before:
            low, high = before[f"{path}.lora_A.weight"].double(), before[f"{path}.lora_B.weight"].double()
            expected = before[name].double() + 5 / 3 * high @ low
            assert not torch.equal(weight, before[name])
        assert (weight - expected).abs().max() < 1e-5, name
    assert not hasattr(model.network, "peft_config")
    with pytest.raises(ValueError, match="no adapters to merge"):
        merge_adapters(model.network)
    inject_adapters(model.network, rank=2, alpha=2, target_modules="q_proj")


def velocity(model: Cosmos3Generator, seed: int = 0) -> torch.Tensor:
    """The output for a fixed input; dropout masks are drawn from `seed`."""
    pack = pack_samples([SampleLayout([1, 2, 3], (2, 2, 2), fps=24.0)], QWEN, eos_id=30, vision_start_id=31)
    latent = torch.randn(4, 2, 2, 2, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(seed)
    return model.network(pack, [latent], torch.tensor([500.0]))[0]


def test_dropout_acts_in_training_mode_and_leaves_evaluation_and_merging_as_they_are():
    dropped, whole = (generator(lora_target_modules=RECIPE, lora_dropout=p) for p in (0.3, 0.0))
    for model in (dropped, whole):
        for name, p in sorted(native_parameters(model.network).items()):
            torch.nn.init.normal_(p.detach(), 0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    assert torch.equal(velocity(dropped, seed=1), velocity(dropped, seed=1))
    assert not torch.equal(velocity(dropped, seed=1), velocity(dropped, seed=2))
    expected = velocity(whole)
    dropped.network.eval()
    assert torch.equal(velocity(dropped), expected)
    for model in (dropped, whole):
        merge_adapters(model.network.train())
    assert torch.equal(velocity(dropped, seed=1), velocity(whole, seed=2))


def test_dropout_without_the_forward_passs_random_state_in_the_recomputation_is_refused():
    recompute = ActivationCheckpointingConfig(mode="full", preserve_rng_state=False)
    generator(lora_target_modules=RECIPE, activation_checkpointing=recompute)
    with pytest.raises(WrongValueError, match="recomputation would use another dropout mask"):
        generator(lora_target_modules=RECIPE, lora_dropout=0.1, activation_checkpointing=recompute)
    for wrong in (1.0, -0.1):
        with pytest.raises(WrongValueError, match="at least 0 and below 1"):
            generator(lora_target_modules=RECIPE, lora_dropout=wrong)


def test_merging_untrained_adapters_is_refused_and_changes_nothing():
    model = generator()
    names = list(native_parameters(model.network))
    with pytest.raises(ValueError, match="adapters of all 8 layers are zero, as before training"):
        merge_adapters(model.network)
    assert list(native_parameters(model.network)) == names


def test_a_merge_that_drowns_in_rounding_is_an_error():
    """Adapters far below bfloat16's resolution of the weights leave every number as it was."""
    model = generator()
    model.network.to(torch.bfloat16)
    with torch.no_grad():
        for name, parameter in native_parameters(model.network).items():
            parameter.fill_(1e-6 if "lora_" in name else 1.0)
    with pytest.raises(ValueError, match=r"changed no weight.*torch\.bfloat16.*float32"):
        merge_adapters(model.network)


@pytest.mark.parametrize("config", [QWEN, HEADS], ids=["qwen", "heads"])
def test_all_linear_is_every_layer_that_an_adapter_can_be_trained_for(config):
    model = generator(config, lora_target_modules="all-linear")
    assert set(adapted_layers(model.network)) == set(adaptable_layers(parameter_shapes(config)))


def test_a_second_set_of_adapters_is_refused():
    with pytest.raises(ValueError, match="already has adapters"):
        inject_adapters(generator().network, rank=2, alpha=2, target_modules="q_proj")


def test_without_adapters_peft_is_not_imported():
    """Its import takes seconds."""
    program = (
        "import sys; from worldsmith.families.cosmos3.model import Cosmos3Generator as G;"
        "from worldsmith.families.cosmos3.network.architecture import NetworkConfig as N;"
        "g = G(G.Config(network=N(num_hidden_layers=1)), device='meta'); sys.exit('peft' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=240).returncode == 0
