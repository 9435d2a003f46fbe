"""The fingerprint of frozen weights: any change of a bit, a name or a shape shows; the way they are stored does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.checkpoint.run.frozen_weights import (
    FILE,
    LOAD_REPORT,
    describe_frozen_weights,
    fingerprint,
    is_partial,
    require_same,
)
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World, ensure_process_group, stop_world


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(6, 5, generator=generator) for name in ("a", "b")}


@given(entry=st.integers(0, 29), bit=st.integers(0, 31), name=st.sampled_from(["a", "b"]))
def test_any_flipped_bit_shows(entry: int, bit: int, name: str) -> None:
    changed = weights()
    bits = changed[name].view(-1).view(torch.int32)
    bits[entry] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
    assert fingerprint(changed) != fingerprint(weights())


def test_changes_that_cancel_in_a_sum_show() -> None:
    """One weight a bit larger and another a bit smaller."""
    changed = weights()
    bits = changed["a"].view(-1).view(torch.int32)
    bits[3] += 1
    bits[8] -= 1
    assert fingerprint(changed) != fingerprint(weights())


def test_names_and_shapes_count_and_order_and_memory_do_not() -> None:
    a, b = weights().values()
    expected = fingerprint({"a": a, "b": b})
    assert fingerprint({"b": b, "a": a.t().contiguous().t()}) == expected
    assert fingerprint({"a": b, "b": a}) != expected
    assert fingerprint({"a": a.reshape(5, 6), "b": b}) != expected
    assert fingerprint({"a": a}) != expected


@pytest.fixture
def process_group() -> Iterator[None]:
    ensure_process_group(World())
    yield
    stop_world()


def test_sharded_weights_have_the_fingerprint_of_whole_ones(process_group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1, 1))
    sharded = {name: distribute_tensor(value, mesh, [Replicate(), Shard(0)]) for name, value in weights().items()}
    assert fingerprint(sharded) == fingerprint(weights())


def test_changed_weights_are_refused_naming_both_sources(tmp_path: Path) -> None:
    assert not is_partial(tmp_path)
    (tmp_path / FILE).write_text(describe_frozen_weights(weights(), source="the old base"))
    assert is_partial(tmp_path)
    require_same(tmp_path, weights(), source="the new base")
    other = weights()
    other["a"][0, 0] += 1e-7
    with pytest.raises(UserError, match="the frozen weights of the old base, but those of the new base differ"):
        require_same(tmp_path, other, source="the new base")
    run, first = tmp_path / "run", tmp_path / "iter_000000004" / "model"
    (run / "checkpoints/iter_000000009").mkdir(parents=True)
    (run / "checkpoints/iter_000000009" / FILE).write_text(describe_frozen_weights(weights(), source="the old base"))
    (run / LOAD_REPORT).write_text(json.dumps({"folder": str(first)}))
    for made, words in ((False, "no longer exists: use a copy"), (True, "use that folder as checkpoint.load_path")):
        first.mkdir(parents=True) if made else None
        with pytest.raises(UserError, match=f"The run started from .*iter_000000004/model.*{words}"):
            require_same(run / "checkpoints/iter_000000009", other, source="the new base")
    with pytest.raises(UserError, match="2 frozen tensors, but this run freezes 1"):
        require_same(tmp_path, {"a": other["a"]}, source="the new base")
