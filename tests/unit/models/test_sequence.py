"""Packing: streams, attention plans against a masked dense reference, and errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from worldsmith.families.cosmos3.attention import packed as attention
from worldsmith.families.cosmos3.attention.modes import attention_modes
from worldsmith.families.cosmos3.attention.packed import (
    join_samples,
    latent_attention,
    packed_attention,
    plan_segments,
)
from worldsmith.families.cosmos3.attention.plans import plan_latents
from worldsmith.families.cosmos3.network.architecture import tiny
from worldsmith.families.cosmos3.network.network import patchify, unpatchify
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.models.video_model import SampleLayout


def pack(*layouts: SampleLayout):
    return pack_samples(layouts, tiny(vocab_size=50), eos_id=48, vision_start_id=49)


def test_streams_hold_each_samples_tokens_in_order():
    packed = pack(SampleLayout([1, 2], (2, 4, 3), 24.0, condition_frames=1), SampleLayout([], (1, 2, 2), None))
    assert packed.text_ids.tolist() == [1, 2, 48, 49, 48, 49]
    assert packed.text_lengths == (4, 2)
    assert packed.grids == ((2, 2, 2), (1, 1, 1))
    assert packed.timestep_rows.tolist() == [2, 2, 2, 2, 0, 0, 0, 0, 1]  # 2 = no timestep
    assert packed.clean[:, 0].tolist() == [True] * 4 + [False] * 5
    assert packed.num_tokens == 15


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (SampleLayout([50], (1, 2, 2), 24.0), "sample 1: token ids range from 48 to 50"),
        (SampleLayout([1], (0, 2, 2), 24.0), "sample 1: latent_shape"),
        (SampleLayout([1], (1, 2, 2), 0.0), "sample 1: fps must be above 0 or None, found 0.0"),
        (SampleLayout([1], (1, 2, 2), 24.0, 2), "sample 1: condition_frames must be between 0 and its 1 latent"),
    ],
)
def test_a_bad_layout_is_named(layout, words):
    with pytest.raises(ValueError, match=words):
        pack(SampleLayout([1], (1, 2, 2), 24.0), layout)


def test_an_empty_pack_is_refused():
    with pytest.raises(ValueError, match="empty"):
        pack()


def dense_reference(q, k, v, allowed):
    """Attention over everything with a full boolean mask, heads repeated for grouped queries."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    out = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=allowed)
    return out[0].transpose(0, 1)


lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6)


@settings(max_examples=40)
@given(lengths=lengths, share=st.sampled_from([0.0, 0.25]), entries=st.sampled_from([0, 40, 10**6]))
def test_any_plan_equals_block_masked_dense_attention_with_gradients(lengths, share, entries):
    generator = torch.Generator().manual_seed(0)
    gen_lengths, text_lengths = [a for a, _ in lengths], [b for _, b in lengths]
    gen_sample = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(gen_lengths))
    stream = torch.cat((torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(text_lengths)), gen_sample))
    saved = attention.PADDING_SHARE, attention.PADDING_ENTRIES
    attention.PADDING_SHARE, attention.PADDING_ENTRIES = share, entries
    try:
        causal = plan_segments(gen_lengths, gen_lengths, causal=True)
        visible = [a + b for a, b in lengths]
        full = plan_segments(gen_lengths, visible, stream.argsort(stable=True), causal=False)
    finally:
        attention.PADDING_SHARE, attention.PADDING_ENTRIES = saved
    same = gen_sample[:, None] == gen_sample
    for plan, keys, allowed in ((causal, gen_sample, same.tril()), (full, stream, gen_sample[:, None] == stream)):
        tensors = [
            torch.randn(len(rows), heads, 4, generator=generator, requires_grad=True)
            for rows, heads in ((gen_sample, 4), (keys, 2), (keys, 2))
        ]
        weight = torch.randn(len(gen_sample), 4, 4, generator=generator)
        ours, theirs = packed_attention(*tensors, plan), dense_reference(*tensors, allowed)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        for a, b in zip(*(torch.autograd.grad((out * weight).sum(), tensors) for out in (ours, theirs))):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_variable_length_tensors_name_the_same_segments():
    plan = pack(SampleLayout([1, 2], (1, 2, 2), 24.0), SampleLayout([], (2, 2, 4), 24.0)).gen_plans[0]
    assert plan.cu_q.tolist() == [0, 1, 5]
    assert plan.cu_kv.tolist() == [0, 5, 11]
    assert (plan.max_q, plan.max_kv, plan.cu_q.dtype) == (4, 6, torch.int32)
    assert (plan.joined, plan.key_rows) == (((4, 2), (1, 4)), None)


@settings(max_examples=25)
@given(lengths=lengths)
def test_joined_samples_are_rows_selected_by_index(lengths):
    """Forward and backward bit for bit, as `cat` and `index_select`; and the attention over them."""
    generator = torch.Generator().manual_seed(0)
    gen_lengths, text_lengths = (tuple(own) for own in zip(*lengths, strict=True))
    samples = [
        torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(n)) for n in (text_lengths, gen_lengths)
    ]
    rows = torch.cat(samples).argsort(stable=True)
    tensors = [
        torch.randn(len(own), heads, 4, generator=generator, requires_grad=True)
        for own, heads in zip((samples[1], samples[1], samples[1], *samples[:1] * 2), (4, 2, 2, 2, 2))
    ]
    _, k, _, text_k, _ = tensors
    joined, selected = (
        join_samples(text_k, k, (text_lengths, gen_lengths)),
        torch.cat((text_k, k)).index_select(0, rows),
    )
    assert_same_with_gradients(joined, selected, (text_k, k))
    (plan,) = plan_latents(attention_modes("two_way", 1), [(1, 1, n) for n in gen_lengths], text_lengths)
    key_lengths = [a + b for a, b in lengths]
    before = plan_segments(gen_lengths, key_lengths, rows, causal=False)
    assert_same_with_gradients(latent_attention(*tensors, plan), latent_attention(*tensors, before), tensors)


def assert_same_with_gradients(found, expected, tensors):
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(found, expected)
    for a, b in zip(*(torch.autograd.grad((out * weight).sum(), tensors) for out in (found, expected))):
        assert torch.equal(a, b)


def test_joined_samples_are_copied_once_in_each_pass():
    """A gather by index would copy twice, and its gradient would be added row by row (atomics on CUDA)."""
    text, latents = (torch.randn(5, 2, 4, requires_grad=True) for _ in range(2))
    with Operations() as forward:
        joined = join_samples(text, latents, ((2, 3), (4, 1)))
    with Operations() as backward:
        joined.backward(torch.ones_like(joined))
    assert forward.names == {"split_with_sizes", "cat"}
    assert backward.names - {"detach", "ones_like"} == {"split_with_sizes", "cat"}


class Operations(TorchDispatchMode):
    """Collects the names of the operations."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_similar_segments_share_a_group_and_very_different_ones_do_not():
    plan = plan_segments([400] * 4 + [4], [420, 425, 430, 435, 8], causal=False)
    assert sorted(group.batch for group in plan.groups) == [1, 4]


def test_patch_order_is_row_column_channel_and_odd_sides_are_padded_then_cropped():
    latent = torch.arange(2 * 1 * 3 * 4, dtype=torch.float32).view(2, 1, 3, 4)
    tokens = patchify(latent, 2)
    assert tokens.shape == (4, 8)
    assert tokens[1].tolist() == [2, 14, 3, 15, 6, 18, 7, 19]
    assert tokens[2].tolist() == [8, 20, 9, 21, 0, 0, 0, 0]
    assert torch.equal(unpatchify(tokens, (1, 3, 4), 2), latent)
