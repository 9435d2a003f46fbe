"""Converters on a network of linear layers: their order, what they may not change, and which layers they find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from toy_family import ToyModel

from worldsmith.models.converters.converter import Conversion, Converter, linear_layers, replace_modules
from worldsmith.models.network_parts import NetworkParts
from worldsmith.models.parameter_names import native_parameters


class Scaled(nn.Module):
    """A layer whose outputs are multiplied."""

    def __init__(self, layer: nn.Module, factor: float) -> None:
        super().__init__()
        self.base_layer, self.factor = layer, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) * self.factor


class Scale(Converter):
    """Multiplies what layers give."""

    class Config(Converter.Config):
        factor: float = 2.0
        """By this."""

    config: Config

    def convert(self, network: nn.Module, parts: NetworkParts) -> Sequence[str]:
        found = [f"layers.{index}" for index in range(len(parts.layers))]
        return replace_modules(network, {n: Scaled(network.get_submodule(n), self.config.factor) for n in found})


class Negative(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


class Negate(Converter):
    """Turns the sign of the last layer's outputs."""

    def convert(self, network: nn.Module, parts: NetworkParts) -> Sequence[str]:
        return replace_modules(network, {"layers.1": Negative(4, 4)})


class Renamer(Converter):
    """Wraps a layer under a name that becomes part of the weights' names."""

    def convert(self, network: nn.Module, parts: NetworkParts) -> Sequence[str]:
        return replace_modules(network, {"layers.0": nn.Sequential(network.get_submodule("layers.0"))})


class Idle(Converter):
    """Finds nothing."""

    def convert(self, network: nn.Module, parts: NetworkParts) -> Sequence[str]:
        return []


def model(*converters: Converter.Config, **fields: Any) -> ToyModel:
    return ToyModel(ToyModel.Config(converters=list(converters), precision="float32", **fields), seed=3)


def test_each_converter_finds_the_network_as_the_one_before_has_left_it() -> None:
    """Each layer is scaled by 2, and that by 3; the weights are those of the plain network, name by name."""
    plain, changed = model(depth=1), model(Scale.Config(), Scale.Config(factor=3.0), depth=1)
    x = torch.randn(2, 4)
    torch.testing.assert_close(changed.network(x), 6 * plain.network(x))
    assert [type(m).__name__ for m in changed.network.modules()] == [
        *("Network", "ModuleList", "Scaled", "Scaled", "Linear")
    ]
    found, expected = native_parameters(changed.network), native_parameters(plain.network)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert [done.converter for done in changed.conversions] == ["Scale", "Scale"]


def test_adapters_are_put_on_converted_layers_that_are_linear_still() -> None:
    lora = {"lora_enabled": True, "lora_rank": 1, "lora_target_modules": "1"}
    network = model(Negate.Config(), **lora).network
    trained = [name for name, p in native_parameters(network).items() if p.requires_grad]
    assert trained == ["layers.1.lora_A.weight", "layers.1.lora_B.weight"]
    x = torch.randn(2, 4)
    torch.testing.assert_close(network(x), -model(**lora).network(x))
    with pytest.raises(ValueError, match="'1' cannot get an adapter: no linear layer has this name"):
        model(Scale.Config(), **lora)


@pytest.mark.parametrize(
    ("converters", "message"),
    [
        ([Idle.Config()], r"converters\[0\] \(Idle\) matches no layer"),
        ([Scale.Config(), Idle.Config()], r"converters\[1\] \(Idle\)"),
        ([Renamer.Config()], r"\(Renamer\) changes the names or shapes of 4 .* layers\.0\.0\.bias.*`base_layer`"),
    ],
    ids=["idle", "second", "renamer"],
)
def test_a_converter_that_does_nothing_or_renames_weights_is_refused(
    converters: list[Converter.Config], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        model(*converters)


def test_layers_are_found_by_parts_of_their_paths() -> None:
    network = nn.ModuleDict({"head": nn.Linear(2, 2), "blocks": nn.ModuleList(self_attention() for _ in range(2))})
    blocks = list(network["blocks"])
    parts = NetworkParts(layers=blocks, full_precision=[blocks[1]["norm"]])
    assert list(linear_layers(network, parts, [])) == ["blocks.0.to_q", "blocks.0.norm", "blocks.1.to_q"]
    assert list(linear_layers(network, parts, ["norm", "blocks.1"])) == ["blocks.0.to_q"]
    with pytest.raises(ValueError, match=r"leave_out: no layer .* has 'to_p' in its path; similar paths: to_q"):
        linear_layers(network, parts, ["norm", "to_p"])


def self_attention() -> nn.Module:
    return nn.ModuleDict({"to_q": nn.Linear(2, 2), "norm": nn.Linear(2, 2), "act": nn.GELU()})


def test_a_conversion_names_kinds_of_layers_and_bytes() -> None:
    paths = ["blocks.0.to_q", "blocks.0.to_out.0", "blocks.1.to_q", "blocks.1.to_out.0"]
    done = Conversion("FrozenBase", paths, numbers=3 << 20, quantized_bytes=1 << 20)
    assert done.describe(4) == (
        "FrozenBase: 4 layers (2 × to_q, 2 × to_out.0); their weights take 1.00 MiB instead of 12.00 MiB"
    )
    scaled = Conversion("Scale", ["layers.0", "layers.1"], numbers=0, quantized_bytes=0)
    assert scaled.describe(4) == "Scale: 2 layers (1 × layers.0, 1 × layers.1)"
