"""What is kept, what is run again, and what is said about patterns that fit nothing."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
import torch
from launch import without_inductor
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from worldsmith.config.errors import WrongValueError
from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig
from worldsmith.distributed.activation_checkpointing import SavedOps, divide_layers, recompute_methods
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.layers import HALVES
from worldsmith.families.cosmos3.network.network import Cosmos3Network, init_weights
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.models.video_model import SampleLayout
from worldsmith.training.parallel import compile_methods

TINY = NetworkConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, mrope_section=[2, 1, 1], latent_channel=8,
)  # fmt: skip
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
PRODUCT = "aten.mm.default"


class Block(nn.Module):
    """A matrix product, and attention over its result."""

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)

    def run(self, x: Tensor) -> Tensor:
        q = self.linear(x).view(1, 1, -1, 8)
        return F.scaled_dot_product_attention(q, q, q).view(-1, 8)


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops[str(args[1] if str(func) == "run_with_rng_state" else func)] += 1
        return func(*args, **(kwargs or {}))


def backward_ops(block: nn.Module, **settings: Any) -> tuple[Counter[str], Tensor]:
    """The ops of the backward pass, and the gradient."""
    torch.manual_seed(0)
    recompute_methods([block], ["run"], ActivationCheckpointingConfig(**settings))
    out = block(torch.randn(5, 8)).square().sum()
    with Count() as count:
        out.backward()
    return count.ops, block.linear.weight.grad


def blocks(number: int) -> list[Block]:
    torch.manual_seed(1)
    first = Block()
    others = [Block() for _ in range(number - 1)]
    for other in others:
        other.load_state_dict(first.state_dict())
    return [first, *others]


def test_full_runs_everything_again_and_selective_all_but_the_ops_that_fit() -> None:
    plain, full, fmha, product = blocks(4)
    ops, expected = backward_ops(plain, mode="none")
    assert (ops[ATTENTION], ops[PRODUCT]) == (0, 1), "the product of the gradient"
    for block, settings, attentions, products in (
        (full, {"mode": "full"}, 1, 2),
        (fmha, {"mode": "selective"}, 0, 2),
        (product, {"mode": "selective", "save_ops_regex": [r"^aten\.mm\b"]}, 1, 1),
    ):
        ops, gradient = backward_ops(block, **settings)
        assert (ops[ATTENTION], ops[PRODUCT]) == (attentions, products), settings
        assert torch.equal(gradient, expected)


def test_a_pattern_that_fits_no_op_is_said_once_and_none_at_all_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    first, second = blocks(2)
    settings: dict[str, Any] = {"mode": "selective", "save_ops_regex": ["fmha", "natten_kernel"]}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            backward_ops(first, **settings)
    assert len(caplog.records) == 2, "once for each of the two calls of recompute_methods"
    assert "['natten_kernel'] matches none of the ops that ran" in caplog.text
    assert ATTENTION in caplog.text
    with pytest.raises(
        ValueError, match=r"save_ops_regex \['fhma'\] matches none .* so no activation is saved; use \[\"fmha\"\]"
    ):
        backward_ops(second, mode="selective", save_ops_regex=["fhma"])


def test_an_op_that_writes_into_its_arguments_is_never_kept() -> None:
    """Compiled code calls `aten.mm.out` on memory that it uses again; PyTorch refuses to keep such a result."""

    class Writing(Block):
        def run(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                torch.mm(x, x.T, out=torch.empty(5, 5)).add_(1)
            return super().run(x)

    ops, gradient = backward_ops(Writing(), mode="selective", save_ops_regex=["fmha", "mm"])
    assert ops[ATTENTION] == 0
    assert gradient is not None


@pytest.mark.parametrize(
    ("name", "kept"),
    [("natten.hopper_na3d_forward.default", True), ("natten.na1d_forward.default", True),
     ("natten.blackwell_fmha_forward.default", True), ("natten.token_permute_3d.default", False)],
)  # fmt: skip
def test_of_natten_only_the_attention_is_kept(name: str, kept: bool) -> None:
    """Its permutations of q, k and v are ops of their own, four times the memory of the result."""
    policy = SavedOps(ActivationCheckpointingConfig()).select(None, None, name)
    assert (policy is CheckpointPolicy.MUST_SAVE) == kept


@pytest.mark.parametrize(
    "name",
    ["flash_attn._flash_attn_varlen_forward.default", "flash_attn_3.fwd.default", "torch_attn._varlen_attn.default",
     "aten._scaled_dot_product_cudnn_attention.default"],
)  # fmt: skip
def test_attention_of_every_gpu_kernel_is_kept(name: str) -> None:
    """The names under which torch and flash-attn register their operations."""
    tokens = torch.empty(1, 1, 5, 8)
    policy = SavedOps(ActivationCheckpointingConfig()).select(None, None, name, tokens, tokens)
    assert policy is CheckpointPolicy.MUST_SAVE


class Noisy(Block):
    def run(self, x: Tensor) -> Tensor:
        return super().run(x) + torch.rand(1)


def test_match_finds_a_recomputation_that_draws_other_numbers() -> None:
    with pytest.raises(RuntimeError, match=r"Noisy\.run had different values .* set preserve_rng_state = true"):
        backward_ops(Noisy(), mode="full", determinism_check="match", preserve_rng_state=False)
    backward_ops(Noisy(), mode="full", determinism_check="match", preserve_rng_state=True)
    backward_ops(Noisy(), mode="full", determinism_check="default", preserve_rng_state=False)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_understanding_tower_is_not_run_again(frozen: bool) -> None:
    """Matrix products in the backward pass: with a frozen tower none of its own is among them."""
    network = Cosmos3Network(TINY)
    init_weights(network, 0)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(not frozen or "_moe_gen" in name or not name.startswith("language_model"))
    recompute_methods(network.language_model.model.layers, HALVES, ActivationCheckpointingConfig(mode="full"))
    pack = pack_samples([SampleLayout([1, 2, 3], (2, 4, 4), 24.0)], TINY, eos_id=62, vision_start_id=63)
    loss = network(pack, [torch.randn(8, 2, 4, 4)], torch.tensor([500.0]))[0].square().sum()
    with Count() as count:
        loss.backward()
    # A product in the forward pass makes two in the backward pass, and is run again unless it is a half's last one.
    writing = 2 * (6 + 14)
    reading = (6 + 14) + (2 + 4)  # a whole half in the first layer, keys and values in the last
    heads = 2 + 1 + 2 + 1  # out, in (no gradient of the latents), and the two of the time embedder
    assert count.ops[PRODUCT] == writing + (0 if frozen else reading) + heads


@pytest.mark.parametrize(
    ("fraction", "recomputed"), [(1.0, [0, 1, 2, 3, 4, 5]), (0.5, [0, 2, 4]), (0.6, [0, 1, 3, 4]), (0.1, [0])]
)
def test_a_fraction_of_the_layers_is_recomputed(fraction: float, recomputed: list[int]) -> None:
    """The products of the backward pass are two per layer, and one more where the forward pass runs again."""
    layers = [Block() for _ in range(6)]
    for modules, config in divide_layers(layers, ActivationCheckpointingConfig(mode="full", layer_fraction=fraction)):
        recompute_methods(modules, ["run"], config)
    assert [index for index, layer in enumerate(layers) if "run" in vars(layer)] == recomputed
    x = torch.randn(5, 8, requires_grad=True)
    for layer in layers:
        x = layer.run(x)
    with Count() as count:
        x.square().sum().backward()
    assert count.ops[PRODUCT] == 2 * len(layers) + len(recomputed)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"mode": "none", "layer_fraction": 0.5}, "no layer is recomputed"),
     ({"mode": "none", "offload": True}, "no layer is recomputed"),
     ({"mode": "full", "other_layers": "selective"}, "only applies with mode full in a part of the layers"),
     ({"mode": "selective", "layer_fraction": 0.5, "other_layers": "selective"}, "only applies with mode full"),
     ({"mode": "full", "save_every_second_matmul": True}, "this mode selects no operators"),
     ({"mode": "selective", "save_ops_regex": []}, "it would keep nothing")],
)  # fmt: skip
def test_settings_without_effect_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(WrongValueError, match=reason):
        ActivationCheckpointingConfig(**settings).check()


class Stack(nn.Module):
    """Five linear layers of equal size, one of them as in an adapter, self-attention and attention to a short text."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(16, 16, bias=index % 2 == 0) for index in range(4))
        self.down, self.up = nn.Linear(16, 1, bias=False), nn.Linear(1, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        for linear in self.linears:
            hidden = torch.tanh(linear(hidden))
        q = (hidden + self.up(self.down(hidden))).view(1, 1, -1, 16)
        attended = F.scaled_dot_product_attention(q, q, q)
        attended = attended + F.scaled_dot_product_attention(q, q[:, :, :2], q[:, :, :2])
        return x + torch.tanh(attended).view(-1, 16)


STACK: dict[str, tuple[dict[str, Any], int, int]] = {
    "none": ({"mode": "none"}, 0, 0),
    "full": ({"mode": "full"}, 2, 6),
    "selective": ({"mode": "selective"}, 1, 6),
    "matmuls": ({"mode": "selective", "save_every_second_matmul": True}, 1, 4),
    "only matmuls": ({"mode": "selective", "save_ops_regex": [], "save_every_second_matmul": True}, 2, 4),
    "half": ({"mode": "full", "layer_fraction": 0.5, "other_layers": "selective"}, 3, 12),
}
"""Settings, and how many attentions and matmuls run again in a layer ("half": in two layers)."""


@pytest.mark.parametrize(
    ("case", "compiled"),
    [
        pytest.param(case, compiled, marks=[pytest.mark.slow] * (compiled and case in ("only matmuls", "half")))
        for case in STACK
        for compiled in (False, True)
    ],
)
def test_layers_recompute_the_same_ops_compiled_or_not(case: str, compiled: bool) -> None:
    """Of every matmul two more belong to the gradients. Equal layers are one graph for all lengths in each mode."""
    settings, attentions, matmuls = STACK[case]
    results = []
    for use in ({}, settings):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        layers = [Stack() for _ in range(4)]
        for modules, config in divide_layers(layers, ActivationCheckpointingConfig(**use)):
            recompute_methods(modules, ["forward"], config)
        with without_inductor():
            compile_methods(layers, ["forward"], CompileConfig(enabled=compiled and bool(use)))
        for length in (30, 40, 50):
            torch.manual_seed(1)
            x = y = torch.randn(length, 16, requires_grad=True)
            for layer in layers:
                y = layer(y)
            with Count() as count:
                y.square().sum().backward()
        results.append(x.grad)
    repeats = 2 if case == "half" else 4
    assert count.ops[ATTENTION] == repeats * attentions
    assert count.ops[PRODUCT] + count.ops["aten.addmm.default"] == 4 * 2 * 6 + repeats * matmuls
    if compiled:
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (2 if case == "half" else 1)
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_inputs_of_recomputed_layers_are_kept_in_host_ram(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each layer only the input is moved, and the gradient has the same bits."""
    moved: list[Tensor] = []
    original = Tensor.cpu

    def cpu(tensor: Tensor) -> Tensor:
        moved.append(tensor)
        return original(tensor)

    resident, offloaded, named = blocks(3)
    _, expected = backward_ops(resident, mode=mode)
    monkeypatch.setattr(Tensor, "cpu", cpu)
    _, found = backward_ops(offloaded, mode=mode, offload=True)
    assert torch.equal(found, expected)
    recompute_methods([named], ["run"], ActivationCheckpointingConfig(mode=mode, offload=True))
    named.run(x=torch.ones(5, 8))
    assert [tensor.shape for tensor in moved] == [(5, 8), (5, 8)]
