"""A reasoner on 1, 2 and 4 ranks against plain transformers and torch's AdamW in one process, to 1e-5 relative.

The ranks have batches of unequal length and kind: one has text alone while another has videos.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reasoner_ranks
import torch
from launch import launch, without_inductor
from reasoner_ranks import CASES, SEED, Case, samples_of
from tiny_reasoner import DECODERS, plain_losses
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from worldsmith.distributed.world import World
from worldsmith.models.parameter_names import native_parameters

ON_RANKS = {
    2: [
        "packed",
        "packed_4",
        "padded",
        "padded_4",
        "tied",
        "frozen",
        "recomputed",
        "adapters",
        "windows",
        "aot_full",
        "aot_matmuls",
        *DECODERS,
        "adapters_offloaded",
        "frozen_offloaded",
        "packed_offloaded",
        "tied_offloaded",
    ],
    4: ["packed", "packed_4", "padded", "padded_4", "replicated", "frozen_recomputed"],
}
ON_RANKS[2] = [name for name in ON_RANKS[2] if name in CASES]
LONG = {"packed_4", "padded_4", "recomputed", "windows", "aot_matmuls", "qwen3", "deepseek_v3", "llama4_text"}
"""Cases on two ranks of the slow run, which have a launch of their own."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folders: dict[tuple[int, bool], Path] = {}

    def get(ranks: int, name: str) -> dict[str, Any]:
        key = ranks, ranks == 2 and name in LONG
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp(f"ranks_{ranks}")
            names = [each for each in ON_RANKS[ranks] if (ranks == 2 and each in LONG) == key[1]]
            launch(Path(reasoner_ranks.__file__), ranks, [str(folders[key]), *names])
        result: dict[str, Any] = torch.load(folders[key] / f"{name}.pt", weights_only=False)
        assert result["sharded"]
        return result

    return get


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Losses and gradients of plain transformers, by case."""
    known: dict[str, Any] = {}

    def get(name: str) -> dict[str, Any]:
        if name not in known:
            known[name] = run_plain(CASES[name], tmp_path_factory.mktemp("plain"))
        return known[name]

    return get


def run_plain(case: Case, folder: Path) -> dict[str, Any]:
    """The steps of a case: each sample on its own, logits of all positions, torch.optim.AdamW."""
    model = reasoner_ranks.make_config(case, folder).build(seed=SEED)
    config = reasoner_ranks.backbone(case)
    if case.settings.get("lora_enabled"):
        network = model.network  # PEFT's own layers in the class of transformers
    else:
        kind: Any = AutoModelForCausalLM if config.model_type in DECODERS else AutoModelForImageTextToText
        attention = model.network.config._attn_implementation
        network = kind.from_config(config, dtype=torch.float32, attn_implementation=attention)
        network.load_state_dict(model.network.state_dict())
        trained = {name for name, p in native_parameters(model.network).items() if p.requires_grad}
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name in trained)
    trained_parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained_parameters, lr=1e-3, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.01)
    losses, gradients = [], []
    for index in range(case.steps):
        loss = plain_losses(network, samples_of(case, index))
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append({name: p.grad.clone() for name, p in native_parameters(network).items() if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "gradients": gradients}


def require_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    for name, gradient in expected["gradients"][0].items():
        error = float((found["gradients"][0][name] - gradient).norm())
        assert error <= 1e-5 * float(gradient.norm()), f"{name}: off by {error}"


ON_ONE = [
    "packed",
    "packed_4",
    "padded",
    "padded_4",
    "frozen",
    "recomputed",
    "selective",
    "adapters",
    "windows",
    "windows_recomputed",
]


@pytest.mark.parametrize("name", [*ON_ONE, pytest.param("compiled", marks=pytest.mark.slow)])
def test_one_rank(name: str, plain: Any, tmp_path: Path) -> None:
    require_equal(reasoner_ranks.run_case(CASES[name], World(), tmp_path), plain(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aot_full", "aot_selective", "aot_adapters", "aot_matmuls"])
def test_layers_are_compiled_with_their_recomputation(name: str, plain: Any, tmp_path: Path) -> None:
    with without_inductor():
        found = reasoner_ranks.run_case(CASES[name], World(), tmp_path)
    require_equal(found, plain(name))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in ON_RANKS[2]]
)
def test_two_ranks(name: str, results: Any, plain: Any) -> None:
    require_equal(results(2, name), plain(name))


@pytest.mark.parametrize("name", ["adapters", "frozen", "packed", "tied"])
def test_offloaded_weights_change_no_bit(name: str, results: Any, tmp_path: Path) -> None:
    require_same_bits(results(2, f"{name}_offloaded"), results(2, name))
    found, expected = (reasoner_ranks.run_case(CASES[case], World(), tmp_path) for case in (f"{name}_offloaded", name))
    require_same_bits(found, expected)


def require_same_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == expected["losses"]
    for ours, theirs in zip(found["gradients"], expected["gradients"], strict=True):
        assert ours.keys() == theirs.keys()
        assert not [name for name in theirs if not torch.equal(ours[name], theirs[name])]


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_RANKS[4])
def test_four_ranks(name: str, results: Any, plain: Any) -> None:
    require_equal(results(4, name), plain(name))
