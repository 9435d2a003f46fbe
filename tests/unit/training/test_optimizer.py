"""Which parameters are trained, with which learning rates, and that the steps are those of torch."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from worldsmith.config.declare.configurable import field_names
from worldsmith.config.toml.toml_schema import EXCLUDED, toml_fields
from worldsmith.config.tree.plain import class_defaults
from worldsmith.models.lora import inject_adapters
from worldsmith.models.parameter_names import native_parameters
from worldsmith.training.optimizer import AdamW, ParameterState, parameter_state, trainable_parameters


class TwoTowers(nn.Module):
    """Names as a generator has them: one tower for text, one with the suffix for generation, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"q_proj": nn.Linear(4, 4), "q_proj_moe_gen": nn.Linear(4, 4)}) for _ in range(2)
        )
        self.vae2llm = nn.Linear(4, 4)
        self.llm2vae = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.vae2llm(x)
        for layer in self.layers:
            x = x + torch.tanh(layer["q_proj_moe_gen"](x) + layer["q_proj"](x))
        return self.llm2vae(x)


def train(network: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 10) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in network.parameters()]


@pytest.mark.parametrize("fused", [True, False])
def test_ten_steps_equal_those_of_torch_with_the_same_groups(fused):
    """Two learning rates and weight decay, bit for bit; the torch optimizer is set up by hand."""
    ours, theirs = TwoTowers(), TwoTowers()
    config = AdamW.Config(
        lr=1e-2, betas=[0.9, 0.95], eps=1e-6, weight_decay=0.1, fused=fused, lr_multipliers={"moe_gen": 5.0}
    )
    component = config.build(network=ours)
    slow = [p for name, p in theirs.named_parameters() if "moe_gen" not in name]
    fast = [p for name, p in theirs.named_parameters() if "moe_gen" in name]
    reference = torch.optim.AdamW(
        [{"params": slow}, {"params": fast, "lr": 5e-2}],
        lr=1e-2,
        betas=(0.9, 0.95),
        eps=1e-6,
        weight_decay=0.1,
        fused=fused,
    )
    assert [g["fused"] for g in component.optimizer.param_groups] == [fused] * 2
    for mine, other in zip(train(ours, component.optimizer), train(theirs, reference)):
        assert torch.equal(mine, other)


class WithNorms(TwoTowers):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.norm_proj = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm_proj(self.norm(super().forward(x)))


def test_biases_norms_and_named_parameters_without_decay_equal_groups_of_torch():
    """Across two learning rates, bit for bit; a matrix of a layer that is called a norm decays."""
    ours, theirs = WithNorms(), WithNorms()
    config = AdamW.Config(
        lr=1e-2, weight_decay=0.1, lr_multipliers={"moe_gen": 5.0}, decay_vectors=False, keys_without_decay=["llm2vae"]
    )
    component = config.build(network=ours)
    spared = {name for name, p in theirs.named_parameters() if name.endswith("bias") or "llm2vae" in name}
    spared |= {"norm.weight"}
    assert {name for group in component.groups if not group.weight_decay for name in group.names} == spared
    groups = [
        {"params": [p], "lr": 5e-2 if "moe_gen" in name else 1e-2, "weight_decay": 0.0 if name in spared else 0.1}
        for name, p in theirs.named_parameters()
    ]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)
    assert len(component.optimizer.param_groups) == 4
    for mine, other in zip(train(ours, component.optimizer), train(theirs, reference)):
        assert torch.equal(mine, other)


def test_a_name_without_decay_that_fits_nothing_is_refused():
    with pytest.raises(ValueError, match=r"keys_without_decay: none of the names .* contains 'vae2lm'.*vae2llm"):
        AdamW.Config(weight_decay=0.1, keys_without_decay=["vae2lm"]).build(network=TwoTowers())


def test_the_fused_kernel_agrees_with_the_plain_one():
    networks = [TwoTowers(), TwoTowers()]
    fused, plain = (
        train(network, AdamW.Config(lr=1e-2, fused=fused).build(network=network).optimizer)
        for network, fused in zip(networks, (True, False))
    )
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(fused, plain))


def test_a_device_without_a_fused_kernel_falls_back_and_says_so(caplog):
    """Complex parameters have no fused kernel on any device."""
    network = nn.Linear(2, 2, dtype=torch.complex64)
    with caplog.at_level(logging.WARNING, logger="worldsmith"):
        component = AdamW.Config().build(network=network)
    assert not component.optimizer.param_groups[0]["fused"]
    assert "optimizer.fused: AdamW has no fused kernel for torch.complex64 on cpu" in caplog.text


def test_selection_freezes_everything_else_and_keeps_the_order():
    network = TwoTowers()
    component = AdamW.Config(keys_to_select=["vae2llm", "moe_gen"]).build(network=network)
    expected = [name for name, _ in TwoTowers().named_parameters() if "vae2llm" in name or "moe_gen" in name]
    assert list(trainable_parameters(network)) == expected
    assert component.groups[0].names == expected
    assert [id(p) for p in component.parameters] == [id(p) for p in trainable_parameters(network).values()]
    before = network.layers[0]["q_proj"].weight.detach().clone()
    train(network, component.optimizer)
    assert torch.equal(network.layers[0]["q_proj"].weight, before)
    assert network.layers[0]["q_proj"].weight.grad is None


def test_without_a_selection_everything_is_trained_except_what_is_frozen_already():
    network = TwoTowers()
    network.vae2llm.requires_grad_(False)
    component = AdamW.Config().build(network=network)
    assert component.groups[0].names == [n for n, _ in TwoTowers().named_parameters() if "vae2llm" not in n]


def test_the_first_pattern_in_the_table_decides_and_a_robbed_one_is_reported(caplog):
    network = TwoTowers()
    config = AdamW.Config(lr=1.0, lr_multipliers={"proj": 2.0, "moe_gen": 5.0, "llm2vae": 2.0})
    with caplog.at_level(logging.WARNING, logger="worldsmith"):
        component = config.build(network=network)
    rates = {name: group.lr for group in component.groups for name in group.names}
    assert rates["layers.0.q_proj_moe_gen.weight"] == 2.0
    assert rates["llm2vae.bias"] == 2.0
    assert rates["vae2llm.bias"] == 1.0
    assert len(component.groups) == 2
    assert "lr_multipliers['moe_gen'] = 5 has no effect on 4 of the 4 parameters" in caplog.text
    assert "'proj' comes first" in caplog.text


def test_a_pattern_that_selects_nothing_names_the_nearest_parameters():
    with pytest.raises(
        ValueError, match=r"keys_to_select: none of the names .* contains 'moe_gn'.*layers\.0\.q_proj_moe_gen\.weight"
    ):
        AdamW.Config(keys_to_select=["vae2llm", "moe_gn"]).build(network=TwoTowers())


def test_a_multiplier_that_fits_no_trained_parameter_is_refused():
    with pytest.raises(ValueError, match=r"lr_multipliers: .* contains 'vae2lm'.*vae2llm\.weight"):
        AdamW.Config(lr_multipliers={"vae2lm": 2.0}).build(network=TwoTowers())
    with pytest.raises(ValueError, match="lr_multipliers: 'vae2llm' matches only frozen parameters"):
        AdamW.Config(keys_to_select=["moe_gen"], lr_multipliers={"vae2llm": 2.0}).build(network=TwoTowers())


def test_a_selection_of_frozen_parameters_is_refused():
    network = TwoTowers()
    network.vae2llm.requires_grad_(False)
    with pytest.raises(ValueError, match="keys_to_select: 'vae2llm' matches only frozen parameters"):
        AdamW.Config(keys_to_select=["moe_gen", "vae2llm"]).build(network=network)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"betas": [0.9]}, "betas must be of length 2"),
        ({"betas": [0.9, 1.0]}, r"betas\[1\] must be at least 0 and below 1, found 1.0"),
        ({"lr": -1.0}, "lr must be"),
        ({"eps": -1e-8}, "eps must be"),
        ({"lr_multipliers": {"a": -1.0}}, r"lr_multipliers\.a"),
        ({"keys_to_select": [""]}, "an empty pattern matches every parameter"),
    ],
)
def test_values_that_cannot_work_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        AdamW.Config(**fields).check()


class TestAdapters:
    @pytest.fixture
    def network(self) -> TwoTowers:
        network = TwoTowers()
        inject_adapters(network, rank=2, alpha=4, target_modules="q_proj,q_proj_moe_gen")
        return network

    @pytest.mark.parametrize(("patterns", "count"), [([], 8), (["lora_"], 8), (["lora_A"], 4), (["moe_gen"], 4)])
    def test_names_are_native_and_the_list_chooses_among_adapters(self, network, patterns, count):
        names = AdamW.Config(keys_to_select=patterns).build(network=network).groups[0].names
        assert len(names) == count
        assert "layers.0.q_proj_moe_gen.lora_A.weight" in names
        assert sum(p.requires_grad for p in network.parameters()) == count

    def test_a_pattern_for_a_frozen_weight_is_refused_with_the_reason(self, network):
        with pytest.raises(ValueError, match=r"'vae2llm' matches only frozen.*with model\.config\.lora_enabled only"):
            AdamW.Config(keys_to_select=["lora_", "vae2llm"]).build(network=network)

    def test_rates_by_name(self, network):
        """A higher rate for B alone, as in LoRA+."""
        groups = AdamW.Config(lr=1.0, lr_multipliers={"lora_B": 16.0}).build(network=network).groups
        assert {group.lr: {name.split(".")[-2] for name in group.names} for group in groups} == {
            1.0: {"lora_A"},
            16.0: {"lora_B"},
        }

    def test_ten_steps_move_the_adapters_and_nothing_else(self, network):
        before = {name: p.detach().clone() for name, p in native_parameters(network).items()}
        with torch.no_grad():
            for name, parameter in native_parameters(network).items():
                parameter.add_(0.1 * ("lora_B" in name))
        train(network, AdamW.Config(lr=1e-2).build(network=network).optimizer)
        for name, parameter in native_parameters(network).items():
            assert torch.equal(parameter, before[name]) == ("lora_" not in name), name


def test_every_field_is_a_key_of_the_toml_in_its_section() -> None:
    keys = [entry.path[-1] for entry in toml_fields() if entry.path[0] == "optimizer"]
    excluded = [path[-1] for path in EXCLUDED if path[0] == "optimizer"]
    assert keys == [name for name in field_names(AdamW.Config) if name not in excluded]


def altered_configs() -> dict[str, AdamW.Config]:
    """The default and, for each switch and number, a config with another value."""
    configs = {"default": AdamW.Config(keys_to_select=["layer"], lr_multipliers={"layer": 2.0})}
    for name, value in class_defaults(AdamW.Config).items():
        if isinstance(value, (bool, float)):
            other: Any = not value if isinstance(value, bool) else value / 2
            configs[name] = AdamW.Config(**{name: other})
    return configs


@pytest.mark.parametrize("name", altered_configs())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_stated_state_is_what_the_optimizer_keeps_after_a_step(name: str, dtype: torch.dtype) -> None:
    config = altered_configs()[name]
    network = nn.ModuleDict({"layer": nn.Linear(3, 5, dtype=dtype)})
    optimizer = config.build(network=network).optimizer
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    stated = parameter_state(config, dtype.itemsize)
    for parameter in network.parameters():
        tensors = optimizer.state[parameter].values()
        alike = [tensor for tensor in tensors if tensor.shape == parameter.shape]
        assert stated.element_bytes == tuple(tensor.element_size() for tensor in alike)
        assert stated.other_bytes == tuple(t.nbytes for t in tensors if t.shape != parameter.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_stated_state_of_8_bits_is_what_the_optimizer_keeps(dtype: torch.dtype, caplog) -> None:
    """Of a large weight a byte per element and 4 per block, twice; of others, and of step counts, as AdamW."""
    network = nn.ModuleDict({"large": nn.Linear(192, 40, dtype=dtype), "small": nn.Linear(3, 5, dtype=dtype)})
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        optimizer = AdamW.Config(name="AdamW8bit").build(network=network).optimizer
    assert "optimizer.fused: AdamW8bit has no fused kernel; the plain implementation is used" in caplog.text
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    total = 0
    for parameter in network.parameters():
        stated = parameter_state(AdamW.Config(name="AdamW8bit"), dtype.itemsize, tuple(parameter.shape))
        kept = sum(tensor.nbytes for tensor in optimizer.state[parameter].values())
        assert kept == parameter.numel() * sum(stated.element_bytes) + sum(stated.other_bytes)
        total += kept
    assert total == 2 * (40 * (192 + 4) + (40 + 20) * dtype.itemsize) + 4 * 4


class WithMaximum(AdamW):
    class Config(AdamW.Config):
        amsgrad: bool = False

    def __init__(self, config: Config, *, network: nn.Module) -> None:
        super().__init__(config, network=network)
        for group in self.optimizer.param_groups:
            group["amsgrad"] = config.amsgrad


def test_the_state_of_an_unknown_setting_is_that_of_a_step() -> None:
    assert parameter_state(WithMaximum.Config(), 2) == parameter_state(AdamW.Config(), 2)
    named: dict[str, Any] = {"keys_to_select": ["q"], "lr_multipliers": {"q": 2.0}, "keys_without_decay": ["k"]}
    for patterns in ({}, named):
        assert parameter_state(WithMaximum.Config(amsgrad=True, **patterns), 2) == ParameterState((2, 2, 2), (4,))
        assert parameter_state(WithMaximum.Config(amsgrad=True, **patterns), 4) == ParameterState((4, 4, 4), (4,))
