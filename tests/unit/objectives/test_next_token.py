"""Cross-entropy of supervised tokens: chunks, gradients, nothing supervised."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from worldsmith.objectives.next_token import NextToken


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_give_the_loss_and_gradients_of_all_logits_at_once(chunk: int) -> None:
    torch.manual_seed(0)
    head, targets = nn.Linear(8, 20, bias=False), torch.randint(20, (7,))
    states = torch.randn(7, 8, requires_grad=True)
    loss = NextToken(NextToken.Config(chunk_tokens=chunk)).loss_sum(states, targets, head)
    found = torch.autograd.grad(loss, [states, head.weight])
    expected_loss = F.cross_entropy(head(states), targets, reduction="sum")
    expected = torch.autograd.grad(expected_loss, [states, head.weight])
    torch.testing.assert_close(loss, expected_loss)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_logits_exist_for_a_chunk_at_once() -> None:
    seen: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        seen.append(len(states))
        return states

    states = torch.randn(10, 4, requires_grad=True)
    loss = NextToken(NextToken.Config(chunk_tokens=4)).loss_sum(states, torch.zeros(10).long(), head)
    loss.backward()
    assert seen == [4, 4, 2, 2, 4, 4]  # and again, in the backward pass


def test_logits_are_float32_whatever_the_network_computes_in() -> None:
    states, targets = torch.randn(5, 8).bfloat16(), torch.randint(8, (5,))
    loss = NextToken(NextToken.Config()).loss_sum(states, targets, lambda states: states)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(states.float(), targets, reduction="sum"))


def test_without_supervised_tokens_the_loss_is_zero_and_has_a_gradient() -> None:
    states = torch.randn(0, 8, requires_grad=True)
    loss = NextToken(NextToken.Config()).loss_sum(states, torch.zeros(0).long(), nn.Linear(8, 20))
    loss.backward()
    assert float(loss.detach()) == 0
    assert states.grad is not None
