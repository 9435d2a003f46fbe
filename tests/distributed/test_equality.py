"""Every arrangement of processes trains like one process: losses and all gradients of five steps, to 1e-5 relative.

The reference runs in this process; each number of ranks is one launch that goes through its cases.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import equality
import pytest
import torch
from equality import CASES, CHECKS, SLOW
from launch import launch, without_inductor

from worldsmith.distributed.world import World

FEW_ON_FOUR = {"cp_2_hsdp_2_2_frozen_full", "cp_2_hsdp_2_2_frozen_every_pack"}
"""Four ranks of the default run: replicas, shards and shared packs at once."""
LONG = SLOW | {"compiled"} | (set(CASES[4]) - FEW_ON_FOUR)
"""Cases of the slow run, which have launches of their own; the default run compiles without inductor."""
REFERENCES = ("qwen", "edge", "frozen", "lora", "dropout", "windows", "actions")


@pytest.fixture(scope="module")
def references() -> dict[str, dict[str, Any]]:
    return {name: equality.run_case(CASES[1][name], World()) for name in REFERENCES}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`results(ranks, slow)`: what the cases of a launch gave, by name."""
    launched: dict[tuple[int, bool], Path] = {}

    def get(ranks: int, slow: bool = False) -> dict[str, Any]:
        names = [name for name in CASES[ranks] if (name in LONG) == slow]
        if (ranks, slow) not in launched:
            folder = launched[ranks, slow] = tmp_path_factory.mktemp(f"ranks_{ranks}")
            launch(Path(equality.__file__), ranks, [str(folder), *names])
        files = {name: launched[ranks, slow] / f"{name}.pt" for name in names}
        return {name: torch.load(path, weights_only=False) for name, path in files.items() if path.exists()}

    return get


def cases(ranks: int) -> list[Any]:
    names = [name for name in CASES[ranks] if name not in REFERENCES and name not in CHECKS]
    return [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in names]


def require_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["samples"] == expected["samples"] == 12
    for step, (ours, theirs) in enumerate(zip(found["gradients"], expected["gradients"], strict=True)):
        assert ours.keys() == theirs.keys()
        for name, gradient in theirs.items():
            error = float((ours[name] - gradient).norm())
            assert error <= 1e-5 * float(gradient.norm()), f"step {step}, {name}: off by {error}"


@pytest.mark.parametrize("name", cases(1))
def test_one_rank(name: str, references: dict[str, Any]) -> None:
    case = CASES[1][name]
    require_equal(equality.run_case(case, World()), references[case.reference])


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("compiled_full", "compiled_selective")),
        "compiled_matmuls",
    ],
)
def test_layers_are_compiled_with_their_recomputation(name: str, references: dict[str, Any]) -> None:
    with without_inductor():
        found = equality.run_case(CASES[1][name], World())
    require_equal(found, references["qwen"])


@pytest.mark.parametrize("name", cases(2))
def test_two_ranks(name: str, results: Any, references: dict[str, Any]) -> None:
    require_equal(results(2, name in LONG)[name], references[CASES[2][name].reference])


@pytest.mark.parametrize("name", cases(4))
def test_four_ranks(name: str, results: Any, references: dict[str, Any]) -> None:
    require_equal(results(4, name in LONG)[name], references[CASES[4][name].reference])


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("lora_offloaded", "lora"),
        ("lora_all_offloaded", "lora"),
        ("offloaded", "qwen"),
        ("frozen_offloaded_half", "frozen"),
    ],
)
def test_offloaded_weights_change_no_bit(name: str, plain: str, references: dict[str, Any]) -> None:
    require_same_bits(equality.run_case(CASES[1][name], World()), references[plain])


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("fsdp_2_lora_offloaded", "fsdp_2_lora"),
        ("cp_2_lora_offloaded", "cp_2_lora"),
        ("fsdp_2_lora_all_offloaded", "fsdp_2_lora"),
        ("fsdp_2_offloaded", "fsdp_2"),
        ("fsdp_2_every_pack_offloaded_half", "fsdp_2_every_pack"),
        ("replicate_2_offloaded", "replicate_2"),
        ("cp_2_offloaded", "cp_2"),
    ],
)
def test_offloaded_weights_change_no_bit_on_two_ranks(name: str, plain: str, results: Any) -> None:
    require_same_bits(results(2)[name], results(2)[plain])


def require_same_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == expected["losses"]
    for ours, theirs in zip(found["gradients"], expected["gradients"], strict=True):
        assert ours.keys() == theirs.keys()
        assert not [name for name in theirs if not torch.equal(ours[name], theirs[name])]


def test_dropout_changes_what_adapters_learn(references: dict[str, Any]) -> None:
    """While B is zero, A gets no gradient and the loss is that without dropout; then every number differs."""
    dropped, whole = references["dropout"], references["lora"]
    assert dropped["losses"][0] == whole["losses"][0]
    assert all(ours != theirs for ours, theirs in zip(dropped["losses"][1:], whole["losses"][1:], strict=True))
    for name, gradient in whole["gradients"][0].items():
        assert torch.equal(dropped["gradients"][0][name], gradient) == (not gradient.any()), name


def test_ranks_that_share_a_pack_recompute_their_dropout_masks(
    results: Any, references: dict[str, dict[str, Any]]
) -> None:
    """Recomputation changes nothing, and the masks are other ones than those of a single process."""
    kept, recomputed, alone = results(2)["cp_2_dropout"], results(2)["cp_2_dropout_full"], references["dropout"]
    require_equal(recomputed, kept)
    assert kept["losses"][0] == pytest.approx(alone["losses"][0], rel=1e-5)  # B is zero
    for name, gradient in alone["gradients"][0].items():
        error = float((kept["gradients"][0][name] - gradient).norm())
        assert error > 0.01 * float(gradient.norm()) or not gradient.any(), name


@pytest.mark.slow
def test_compiled_layers_recompute_their_dropout_masks() -> None:
    case = replace(CASES[1]["dropout"], compile=equality.COMPILED)
    recomputed = replace(case, recompute=equality.recompute("full"))
    require_equal(equality.run_case(recomputed, World()), equality.run_case(case, World()))


def test_gradients_of_a_step_are_reduced_once_whatever_the_number_of_packs(results: Any) -> None:
    """Two packs per rank send as many reductions as one pack; with `reduce_every_pack` twice as many, bytes too."""
    two, one, every = (reductions(results(2)[name]) for name in ("fsdp_2", "fsdp_2_one_pack_each", "fsdp_2_every_pack"))
    assert two == one
    assert every == {key: 2 * value for key, value in one.items()}


def test_replicas_are_summed_once_per_step_even_when_shards_are_reduced_for_each_pack(results: Any) -> None:
    """HSDP: only the reduce-scatter is repeated, the all-reduce over the replicas is not."""
    once, every = (
        results(4)[name]["traffic"] for name in ("cp_2_hsdp_2_2_frozen_full", "cp_2_hsdp_2_2_frozen_every_pack")
    )
    assert reductions({"traffic": every}) == {k: 2 * v for k, v in reductions({"traffic": once}).items()}
    assert every["c10d.allreduce_.default calls"] == once["c10d.allreduce_.default calls"]


def reductions(result: dict[str, Any]) -> dict[str, int]:
    return {key: value for key, value in result["traffic"].items() if "reduce_scatter" in key}


def test_a_frozen_understanding_tower_has_no_gradients(references: dict[str, Any]) -> None:
    """And the last layer's unused text output has none in any run."""
    frozen, whole = references["frozen"]["gradients"][0], references["qwen"]["gradients"][0]
    assert frozen.keys() < whole.keys()
    assert not [name for name in frozen if not any(part in name for part in equality.WRITING_TOWER)]
    unused = "language_model.model.layers.1."
    assert {f"{unused}self_attn.q_proj.weight", f"{unused}mlp.down_proj.weight"}.isdisjoint(whole)
    assert {f"{unused}self_attn.k_proj.weight", f"{unused}self_attn.v_proj.weight"} <= whole.keys()


def test_ranks_without_robot_actions_reduce_the_gradients_of_the_action_heads(results: Any) -> None:
    """The packs of the first of two ranks have no robot actions."""
    found = results(2)["fsdp_2_actions"]["gradients"][0]
    heads = {name for name in found if "action" in name}
    assert len(heads) == 5
    assert all(found[name].any() for name in heads)


def test_weights_are_equal_bits_for_every_sharding_and_each_rank_holds_its_share(results: Any) -> None:
    alone = equality.sampling_from_shards(CASES[1]["qwen"], World())
    sharded = results(2)["sampling_from_shards"]
    assert sharded["weights"].keys() == alone["weights"].keys()
    assert not [name for name, value in alone["weights"].items() if not torch.equal(sharded["weights"][name], value)]
    assert sum(sharded["held"]) == alone["held"][0]
    assert max(sharded["held"]) <= 0.51 * alone["held"][0]


@pytest.mark.parametrize("name", ["sampling_from_shards", "sampling_in_context"])
def test_sampling_from_a_sharded_network_equals_one_rank(name: str, results: Any) -> None:
    """Text that is read once, its last states, and velocities with and without it."""
    alone, found = equality.sampling_from_shards(CASES[1]["qwen"], World()), results(2)[name]
    torch.testing.assert_close(found["states"], alone["states"], rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(found["velocities"], alone["velocities"], strict=True):
        for velocity, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(velocity, expected, rtol=1e-5, atol=1e-6)
    heads = slice(0, 1) if name == "sampling_in_context" else slice(None)  # rank 0 has the first half of the key heads
    for ours, theirs in zip(found["memory"], alone["memory"], strict=True):
        for tensor, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(tensor, expected[:, heads], rtol=1e-5, atol=1e-6)


def test_a_context_group_divides_the_encoding_and_notices_different_data(results: Any) -> None:
    found = results(2)["group_agrees"]
    assert found["made"] == [[0, 2, 4], [1, 3]]
    for tensors in found["tensors"]:
        assert [tensor.dtype for tensor in tensors] == [torch.float32] * 5
        assert [tensor.flatten()[0].item() for tensor in tensors] == [0, 11, 20, 31, 40]
    for rank, complaint in enumerate(found["complaints"]):
        assert complaint.startswith(f"[E121] rank {rank} and its context-parallel group have read different samples")


def test_bfloat16_masters_keep_the_time_embedder_and_come_close(
    results: Any, references: dict[str, dict[str, Any]]
) -> None:
    found, exact = results(2)["bfloat16_masters"], references["qwen"]
    for name, dtype in found["dtypes"].items():
        assert dtype == (torch.float32 if name.startswith("time_embedder") else torch.bfloat16), name
    assert found["loss"] == pytest.approx(exact["losses"][0], rel=2e-2)
    ours, theirs = (x["vae2llm.weight"].float() for x in (found["gradients"], exact["gradients"][0]))
    assert 0 < float((ours - theirs).norm()) < 0.05 * float(theirs.norm())
