"""FlexAttention's plan against PyTorch's own block mask, and its forward pass against two_way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask

from worldsmith.families.cosmos3.attention.kernels import block_diagonal_mask, plan_flex
from worldsmith.families.cosmos3.attention.modes import attention_modes
from worldsmith.families.cosmos3.attention.packed import SegmentPlan, latent_attention
from worldsmith.families.cosmos3.attention.plans import plan_latents


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=6))
def test_blocks_are_those_that_pytorch_finds_by_filling_in_every_entry(lengths: list[tuple[int, int]]) -> None:
    """Which blocks are computed, and which of them without a mask."""
    q, kv = (torch.arange(len(lengths)).repeat_interleave(torch.tensor(own)) for own in zip(*lengths, strict=True))
    ours = block_diagonal_mask(q, kv, "cpu")
    theirs = create_block_mask(lambda b, h, i, j: q[i] == kv[j], None, None, len(q), len(kv), device="cpu")
    assert ours.shape == theirs.shape
    for counts, indices in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
        assert torch.equal(getattr(ours, counts), getattr(theirs, counts))
        for row, count in enumerate(getattr(ours, counts)[0, 0].tolist()):
            assert torch.equal(getattr(ours, indices)[0, 0, row, :count], getattr(theirs, indices)[0, 0, row, :count])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_forward_pass_equals_two_way() -> None:
    """Samples larger and smaller than a block, grouped heads; on a CPU, where there is no backward pass."""
    grids, text = [(3, 8, 9), (1, 2, 2), (2, 10, 10)], [40, 3, 120]
    generator = torch.Generator().manual_seed(0)
    latents = sum(t * h * w for t, h, w in grids)
    q, k, v, text_k, text_v = (
        torch.randn(rows, heads, 16, generator=generator)
        for rows, heads in ((latents, 4), (latents, 2), (latents, 2), (sum(text), 2), (sum(text), 2))
    )
    (two_way,) = plan_latents(attention_modes("flex", 1), grids, text)
    assert isinstance(two_way, SegmentPlan)  # what a CPU samples with
    flex = plan_flex((tuple(text), tuple(t * h * w for t, h, w in grids)))
    torch.testing.assert_close(
        latent_attention(q, k, v, text_k, text_v, flex),
        latent_attention(q, k, v, text_k, text_v, two_way),
        rtol=0,
        atol=1e-5,
    )
