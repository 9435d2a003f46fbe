"""`Float8`: what it is refused for, which layers it takes, and its numbers against a reference in plain torch."""

from __future__ import annotations

import copy
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torchao.float8 as library
from torch import Tensor, nn

from worldsmith.config import UserError, WrongValueError
from worldsmith.config.sections import CompileConfig
from worldsmith.models.converters import Float8
from worldsmith.models.converters.converter import convert_network
from worldsmith.models.converters.float8 import supports_float8
from worldsmith.models.lora import adapted_layers, inject_adapters
from worldsmith.models.network_parts import NetworkParts
from worldsmith.models.parameter_names import ADAPTER, native_parameters
from worldsmith.training.parallel import compile_methods

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, CUDA 8.9 or later")
    ),
]


def test_without_torchao_it_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"torchao, which is not installed: `pip install 'worldsmith\[float8\]'`"):
        Float8.Config().check_files()
    with pytest.raises(UserError, match="torchao"):
        Float8.Config().build().convert(nn.Sequential(nn.Linear(16, 16)), NetworkParts(layers=[]))


def test_a_cpu_is_said_and_other_devices_and_precisions_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        Float8.Config().check_device("cpu")
    assert "Float8: no GPU: matmuls of float8 factors are computed in float32, which is slow" in caplog.text
    with pytest.raises(
        UserError, match=r"a CPU, or a GPU of compute capability 8\.9 or higher, but 'mps' is no NVIDIA"
    ):
        Float8.Config().check_device("mps")
    run: Any = type("Run", (), {})
    run.model = run.config = run
    run.precision = "float32"
    with pytest.raises(WrongValueError, match='precision = "float32": float8 requires bfloat16 computation'):
        Float8.Config().check_run(run)


def test_layers_of_other_multiples_stay_as_they_are_and_are_counted() -> None:
    assert [supports_float8(nn.Linear(*sizes)) for sizes in ((16, 48), (16, 24), (8, 16))] == [True, False, False]
    network = nn.Sequential(nn.Linear(16, 48), nn.Linear(48, 24), nn.Linear(24, 16))
    (done,) = convert_network(network, lambda: NetworkParts(layers=list(network)), [Float8.Config()])
    assert done.describe(4) == "Float8: 1 layer (1 × 0); 2 skipped, whose sizes are not multiples of 16"
    assert [type(layer).__name__ for layer in network] == ["Float8Linear", "Linear", "Linear"]
    with pytest.raises(
        ValueError, match=r"Float8.*no linear layer has input and output sizes that are multiples of 16"
    ):
        convert_network(network, lambda: NetworkParts(layers=list(network)[1:]), [Float8.Config()])


def rounded(x: Tensor, *, rows: bool) -> Tensor:
    """`x` as float8_e4m3fn times a scale for each row, or one for all of it, that makes the largest number 448."""
    largest = x.abs().amax(dim=-1, keepdim=True) if rows else x.abs().max()
    scale = 448 / largest.float().clamp(min=1e-12)
    if rows:
        scale = 2 ** scale.log2().floor()  # a power of two, which loses nothing itself
    return (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() / scale


def reference(x: Tensor, weight: Tensor, *, rows: bool) -> Tensor:
    """The product of the rounded factors in float32."""
    return rounded(x, rows=rows) @ rounded(weight, rows=rows).T


@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise"])
def test_the_reference_is_a_rounded_product(recipe: str) -> None:
    """The judge itself: numbers with four bits of mantissa, so that a product is off by a few percent."""
    torch.manual_seed(0)
    x, weight = torch.randn(32, 64), torch.randn(48, 64)
    error = (reference(x, weight, rows=recipe == "rowwise") - x @ weight.T).norm() / (x @ weight.T).norm()
    assert 0.005 < error < 0.06


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise"])
def test_a_layer_computes_the_product_of_its_rounded_factors(recipe: Any, device: str) -> None:
    """27 tokens: the sum in the gradient of a weight is over a number that is no multiple of 16."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 48, bias=False), nn.Linear(48, 24, bias=False)).bfloat16().to(device)
    weight = network[0].weight.detach().clone()
    x = torch.randn(27, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
    parts = NetworkParts(layers=list(network))
    assert Float8.Config(recipe=recipe).build().convert(network, parts) == ["0"]
    assert torch.equal(network[0].weight, weight)
    found = network[0](x)
    expected = reference(x.detach(), weight, rows=recipe == "rowwise")
    assert (found.float() - expected).norm() / expected.norm() < 0.01
    found.float().square().sum().backward()
    assert x.grad is not None
    for gradient, plain in (
        (x.grad, 2 * expected @ weight.float()),
        (network[0].weight.grad, 2 * expected.T @ x.float()),
    ):
        assert (gradient.float() - plain).norm() / plain.norm() < 0.1


def steps(network: nn.Module, forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Two outputs with gradient accumulation between them, and all gradients."""
    outputs = [
        forward(torch.randn(2, 27, 64, generator=torch.Generator().manual_seed(seed)).bfloat16()) for seed in (1, 2)
    ]
    sum(output.float().square().mean() for output in outputs).backward()  # type: ignore[union-attr]
    return [*outputs, *(parameter.grad for parameter in network.parameters() if parameter.grad is not None)]


def block() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 40), nn.Linear(40, 64), nn.Linear(64, 64)
    ).bfloat16()


@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise"])
def test_outputs_and_gradients_are_those_of_torchao_and_close_to_bfloat16(recipe: Any) -> None:
    """To the bit those of the library's own conversion; 10 % of the norm from unconverted layers."""
    ours, theirs, plain = block(), block(), block()
    Float8.Config(recipe=recipe).build().convert(ours, NetworkParts(layers=list(ours)))
    settings = library.Float8LinearConfig.from_recipe_name(recipe)
    library.convert_to_float8_training(theirs, module_filter_fn=lambda _, path: path in ("0", "4"), config=settings)
    found, expected, exact = (steps(network, network) for network in (ours, theirs, plain))
    assert len(found) == 10
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    errors = [float(((a - b).float().norm() / b.float().norm()).detach()) for a, b in zip(found, exact, strict=True)]
    assert 0.005 < max(errors) < 0.1


def test_the_cpu_computes_what_the_emulation_of_the_library_does() -> None:
    """The factors are rounded as its documentation says, whatever kernel multiplies them."""
    ours, theirs = block(), block()
    Float8.Config().build().convert(ours, NetworkParts(layers=list(ours)))
    settings = replace(library.Float8LinearConfig.from_recipe_name("rowwise"), emulate=True)
    library.convert_to_float8_training(theirs, module_filter_fn=lambda _, path: path in ("0", "4"), config=settings)
    for a, b in zip(steps(ours, ours), steps(theirs, theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)


def test_a_frozen_layer_under_adapters_has_the_gradients_of_a_plain_loop() -> None:
    """Adapters are not converted; their layer is, and gets no gradient."""
    network = block()
    Float8.Config().build().convert(network, NetworkParts(layers=list(network)))
    adapted = copy.deepcopy(network)
    inject_adapters(adapted, rank=4, alpha=8, target_modules="0,4")
    for layer in adapted_layers(adapted).values():
        assert type(layer.base_layer).__name__ == "Float8Linear"
        assert type(layer.lora_A[ADAPTER]) is nn.Linear
        nn.init.normal_(layer.lora_B[ADAPTER].weight, std=0.1)
    x = torch.randn(27, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    low, high = (getattr(adapted[0], side)[ADAPTER].weight for side in ("lora_A", "lora_B"))
    expected = network[0](x) + 2 * ((x.to(low.dtype) @ low.T) @ high.T)
    found = adapted[0](x)
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=2e-2, atol=2e-2)
    adapted(x).float().square().mean().backward()
    trained = {name for name, parameter in native_parameters(adapted).items() if parameter.grad is not None}
    assert trained == {f"{path}.{side}.weight" for path in ("0", "4") for side in ("lora_A", "lora_B")}


def test_compiled_layers_compute_what_eager_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **words: compile_(*args, backend="aot_eager", **words))
    found = []
    for enabled in (False, True):
        network = block()
        Float8.Config().build().convert(network, NetworkParts(layers=list(network)))
        compile_methods([network], ["forward"], CompileConfig(enabled=enabled, compile_dynamic=False))
        found.append(steps(network, network.forward))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
