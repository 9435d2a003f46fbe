"""Operations of attention, forwards and backwards."""

import pytest
import torch
import torch.nn.functional as F

from worldsmith.planning.simulation.memory_tracker import MemoryTracker


@pytest.mark.parametrize(("causal", "skipped"), [(False, 0.0), (True, 0.5)])
def test_causal_attention_is_counted_whole_and_half_of_it_is_left_out(causal: bool, skipped: float) -> None:
    """Two products forwards and five backwards, as PyTorch counts them."""
    tracker = MemoryTracker()
    query, key, value = (torch.zeros(1, 2, 64, 16, requires_grad=True) for _ in range(3))
    with tracker:
        F.scaled_dot_product_attention(query, key, value, is_causal=causal).sum().backward()
    operations = tracker.operations
    assert operations.attention_flops == 7 * 2 * 2 * 64 * 64 * 16
    assert operations.skipped_flops == skipped * operations.attention_flops
