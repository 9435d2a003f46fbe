"""Tensors of nested containers are copied to a device in one buffer, with their values, dtypes and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from worldsmith.tasks.device_copy import StagedTensors, map_tensors, move_tensors

META = torch.device("meta")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    value: Any


def tensors() -> st.SearchStrategy[Tensor]:
    shapes = st.lists(st.integers(0, 5), max_size=3)

    def make(shape: list[int], dtype: torch.dtype, turned: bool) -> Tensor:
        made = torch.randn(*shape, 3, 2).mul(9).to(dtype)
        return made.mT if turned else made

    return st.builds(make, shapes, st.sampled_from(DTYPES), st.booleans())


def nested() -> st.SearchStrategy[Any]:
    leaves = tensors() | st.none() | st.integers() | st.text(max_size=3)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=2), inner, max_size=3)
            | st.builds(Pair, inner, inner)
            | st.builds(Part, st.text(max_size=2), inner)
        ),
        max_leaves=12,
    )


@given(nested())
def test_the_buffer_has_every_tensor_and_the_containers_stay(values: Any) -> None:
    staged = StagedTensors(values, META)
    seen: list[Tensor] = []

    def check(tensor: Tensor) -> Tensor:
        assert staged.buffer is not None or not tensor.numel()
        if staged.buffer is not None:
            assert torch.equal(staged.view(staged.buffer, tensor), tensor)
        seen.append(tensor)
        return tensor

    assert repr(map_tensors(values, check)) == repr(values)
    moved = map_tensors(staged.move(), lambda tensor: seen.append(tensor) or tensor)  # type: ignore[func-returns-value]
    assert type(moved) is type(values)
    before, after = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert [(t.shape, t.dtype) for t in before] == [(t.shape, t.dtype) for t in after]
    assert {tensor.device.type for tensor in after if tensor.numel()} <= {"meta"}


def test_a_tensor_and_a_container_that_occur_twice_are_one_afterwards() -> None:
    tensor = torch.arange(3)
    part = Part("plan", tensor)
    moved = move_tensors([part, part, tensor], META)
    assert moved[0] is moved[1]
    assert moved[0].value.device == moved[2].device == META
    assert StagedTensors([part, tensor], META).buffer.nbytes == 64  # type: ignore[union-attr]


def test_nothing_is_copied_for_a_cpu() -> None:
    values = {"a": torch.ones(2)}
    assert move_tensors(values, torch.device("cpu")) is values
