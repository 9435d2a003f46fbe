"""`Float8`: what it is refused for, which layers it takes, and its numbers against a reference in plain torch."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from worldsmith.config import UserError, WrongValueError
from worldsmith.models.converters import Float8
from worldsmith.models.converters.float8 import supports_float8
from worldsmith.models.network_parts import NetworkParts

MISSING = importlib.util.find_spec("torchao") is None
ABLE = not MISSING and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


@pytest.mark.skipif(not MISSING, reason="torchao is installed")
def test_without_torchao_it_is_refused_with_the_extra() -> None:
    with pytest.raises(UserError, match=r"torchao, which is not installed: `pip install 'worldsmith\[float8\]'`"):
        Float8.Config().check_files()
    with pytest.raises(UserError, match="torchao"):
        Float8.Config().build().convert(nn.Sequential(nn.Linear(16, 16)), NetworkParts(layers=[]))


def test_a_cpu_and_other_precisions_are_refused() -> None:
    with pytest.raises(UserError, match=r"needs a GPU of compute capability 8\.9 or higher, but 'cpu' is no GPU"):
        Float8.Config().check_device("cpu")
    run: Any = type("Run", (), {})
    run.model = run.config = run
    run.precision = "float32"
    with pytest.raises(WrongValueError, match='precision = "float32": float8 requires bfloat16 computation'):
        Float8.Config().check_run(run)


def test_layers_of_other_multiples_stay_as_they_are() -> None:
    assert [supports_float8(nn.Linear(*sizes)) for sizes in ((16, 48), (16, 24), (8, 16))] == [True, False, False]


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


@pytest.mark.skipif(
    not ABLE, reason="would compare outputs and gradients of torchao's layers with plain torch on a GPU"
)
@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise"])
def test_a_layer_computes_the_product_of_its_rounded_factors(recipe: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 48, bias=False), nn.Linear(48, 24, bias=False)).bfloat16().cuda()
    weight = network[0].weight.detach().clone()
    x = torch.randn(32, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    parts = NetworkParts(layers=list(network))
    assert Float8.Config(recipe=recipe).build().convert(network, parts) == ["0"]  # type: ignore[arg-type]
    assert torch.equal(network[0].weight, weight)
    found = network[0](x)
    expected = reference(x.detach(), weight, rows=recipe == "rowwise")
    assert (found.float() - expected).norm() / expected.norm() < 0.01
    found.float().square().sum().backward()
    assert x.grad is not None
    plain = 2 * expected @ weight.float()
    assert (x.grad.float() - plain).norm() / plain.norm() < 0.1
