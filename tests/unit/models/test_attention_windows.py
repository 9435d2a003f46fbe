"""three_way attention against masks filled in pair by pair from NATTEN's written definition, and its way of running."""

from __future__ import annotations

import functools
import sys
import types
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.attention import packed as attention
from worldsmith.families.cosmos3.attention import plans
from worldsmith.families.cosmos3.attention.kernels import run_natten
from worldsmith.families.cosmos3.attention.modes import (
    AttentionPattern,
    AxisWindow,
    NeighborhoodConfig,
    attention_modes,
)
from worldsmith.families.cosmos3.attention.packed import latent_attention
from worldsmith.families.cosmos3.attention.plans import axis_mask, plan_latents, plan_masked, plan_natten
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.network import Cosmos3Network, init_weights
from worldsmith.families.cosmos3.network.sequence import pack_samples
from worldsmith.models.video_model import SampleLayout

CPU = torch.device("cpu")


# The definition, in words of its own: lists of positions, one pair of tokens at a time.


@functools.cache
def axis_sees(query: int, key: int, length: int, window: int, stride: int, dilation: int, causal: bool) -> bool:
    """Whether a position sees another one along an axis."""
    group = [position for position in range(length) if (position - query) % dilation == 0]
    place = group.index(query)
    block = range(place - place % stride, place - place % stride + stride)
    if causal:
        leader = min(block[-1], len(group) - 1)
        return key <= query and key in group[max(0, leader - window + 1) : leader + 1]
    start = min(block[len(block) // 2], len(group) - 1) - window // 2
    while start < 0:
        start += 1
    while start + window > len(group):
        start -= 1
    return key in group[start : start + window]


def fitted(profile: NeighborhoodConfig, axis: int, length: int) -> tuple[int, int, int, bool]:
    """Window, stride, dilation and causality of an axis, by the formulas that the shares are documented with."""
    causal = bool(profile.is_causal and profile.is_causal[axis])
    if profile.window_size:
        window = profile.window_size[axis] if profile.window_size[axis] > 0 else length
        stride = profile.stride[axis] if profile.stride else 1
        return window, stride, profile.dilation[axis] if profile.dilation else 1, causal
    window = min(length, max(2, int(profile.window_size_float[axis] * length)))
    stride = min(window, max(1, int((profile.stride_float or [0.0] * 3)[axis] * window)))
    most = length // window
    return window, stride, min(most, max(1, int((profile.dilation_float or [0.0] * 3)[axis] * most))), causal


def allowed_pairs(grids, text_lengths, profiles) -> torch.Tensor:
    """What each latent sees of [text; latents], bool [N_gen, N_und + N_gen]."""
    ends, total_text = torch.tensor([0, *text_lengths]).cumsum(0).tolist(), sum(text_lengths)
    sizes = [t * h * w for t, h, w in grids]
    allowed = torch.zeros(sum(sizes), total_text + sum(sizes), dtype=torch.bool)
    start = 0
    for sample, grid in enumerate(grids):
        long = [axis for axis in range(3) if grid[axis] > 1]
        profile = profiles.get(len(long))
        tokens = list(product(*map(range, grid)))
        rules = [] if profile is None else [(x, grid[x], *fitted(profile, i, grid[x])) for i, x in enumerate(long)]
        seen = [[all(axis_sees(query[x], key[x], *own) for x, *own in rules) for key in tokens] for query in tokens]
        rows = slice(start, start + sizes[sample])
        allowed[rows, ends[sample] : ends[sample + 1]] = True
        allowed[rows, total_text + start : total_text + start + sizes[sample]] = torch.tensor(seen)
        start += sizes[sample]
    return allowed


def softmax_attention(q, k, v, text_k, text_v, allowed):
    """One softmax over everything that is allowed, written out."""
    keys, values = (
        torch.cat(pair).repeat_interleave(q.shape[1] // k.shape[1], 1) for pair in ((text_k, k), (text_v, v))
    )
    scores = torch.einsum("qhd,khd->hqk", q, keys) / q.shape[-1] ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), values)


def draw_tensors(grids, text_lengths, heads=2, kv_heads=1, dim=4):
    generator = torch.Generator().manual_seed(0)
    latents, text = sum(t * h * w for t, h, w in grids), sum(text_lengths)
    shapes = ((latents, heads), (latents, kv_heads), (latents, kv_heads), (text, kv_heads), (text, kv_heads))
    return [torch.randn(*shape, dim, generator=generator, requires_grad=True) for shape in shapes]


def assert_equal_with_gradients(ours, theirs, tensors, tolerance=1e-5):
    """To `tolerance` of the largest value, or of 1 where that is smaller."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * max(1.0, float(theirs.detach().abs().max())))
    weight = torch.linspace(-1, 1, ours.numel()).view_as(ours)
    for a, b in zip(
        *(torch.autograd.grad((out * weight).sum(), tensors, retain_graph=True) for out in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * max(1.0, float(b.abs().max())))


@st.composite
def packs_with_profiles(draw):
    """Grids (images, videos, single tokens), text lengths, and a neighbourhood that fits them for some ranks."""
    grids = draw(st.lists(st.tuples(*[st.integers(1, 5)] * 3), min_size=1, max_size=2))
    text_lengths = draw(st.lists(st.integers(1, 3), min_size=len(grids), max_size=len(grids)))
    profiles = {}
    for rank in draw(st.sets(st.integers(1, 3))):
        long = [[x for x in grid if x > 1] for grid in grids]
        axes = [min(lengths) for lengths in zip(*[x for x in long if len(x) == rank], strict=True)] or [5] * rank
        causal = draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
        if draw(st.booleans()):
            window = [draw(st.integers(2, length)) for length in axes]
            stride = [draw(st.integers(1, size)) for size in window]
            dilation = [draw(st.integers(1, length // size)) for length, size in zip(axes, window, strict=True)]
            if draw(st.booleans()):
                window[0], stride[0], dilation[0] = -1, draw(st.integers(1, axes[0])), 1
            profile = NeighborhoodConfig(window_size=window, stride=stride, dilation=dilation, is_causal=causal)
        else:
            share = st.floats(0, 1)
            shares = [draw(st.lists(share, min_size=rank, max_size=rank)) for _ in range(3)]
            profile = NeighborhoodConfig(
                window_size_float=[max(x, 0.01) for x in shares[0]],
                stride_float=shares[1],
                dilation_float=shares[2],
                is_causal=causal,
            )
        profile.check()
        profiles[rank] = profile
    return grids, text_lengths, profiles


@settings(max_examples=50)
@given(case=packs_with_profiles(), entries=st.sampled_from([1, 40, 2**24]), gathered=st.sampled_from([1, 30, 2**17]))
def test_any_windows_equal_a_mask_filled_in_pair_by_pair(case, entries, gathered):
    """Outputs and all gradients, for any grids, windows, strides, dilations and causal axes, however it is cut up."""
    grids, text_lengths, profiles = case
    saved = plans.MASK_ENTRIES, attention.GATHERED_KEYS
    plans.MASK_ENTRIES, attention.GATHERED_KEYS = entries, gathered
    try:
        windows = [AttentionPattern(profiles).windows(grid) for grid in grids]
        plan = plan_masked(windows, grids, text_lengths)
    finally:
        plans.MASK_ENTRIES, attention.GATHERED_KEYS = saved
    tensors = draw_tensors(grids, text_lengths)
    expected = softmax_attention(*tensors, allowed_pairs(grids, text_lengths, profiles))
    assert_equal_with_gradients(latent_attention(*tensors, plan), expected, tensors)
    assert_equal_with_gradients(latent_attention(*tensors, plan.to(torch.float32)), expected, tensors)


@pytest.mark.parametrize(
    ("own", "rows"),
    [
        (AxisWindow(3), ["11100", "11100", "01110", "00111", "00111"]),
        (AxisWindow(2), ["11000", "11000", "01100", "00110", "00011"]),
        (AxisWindow(3, causal=True), ["10000", "11000", "11100", "01110", "00111"]),
        (AxisWindow(2, dilation=2), ["10100", "01010", "10100", "01010", "00101"]),
        (AxisWindow(2, stride=2), ["11000", "11000", "00110", "00110", "00011"]),
        (AxisWindow(3, stride=2, causal=True), ["10000", "11000", "01100", "01110", "00111"]),
    ],
)
def test_masks_of_one_axis(own, rows):
    """Borders move a window inwards, dilation splits the axis, stride shares a window: worked out by hand."""
    assert ["".join(str(int(x)) for x in row) for row in axis_mask(5, own)] == rows


GRIDS, TEXT = [(3, 2, 4), (1, 3, 3), (2, 4, 1), (1, 1, 1), (3, 2, 4)], [2, 3, 1, 2, 4]
WINDOWS = {2: NeighborhoodConfig(window_size=[2, -1]), 3: NeighborhoodConfig(window_size=[2, 2, 3], stride=[1, 1, 2])}


def test_dense_three_way_is_two_way():
    """Without windows the plans are the same; a window over the whole grid, computed as one, gives the same too."""
    tensors = draw_tensors(GRIDS, TEXT)
    two_way, three = (
        latent_attention(*tensors, plan_latents(attention_modes(mode, 1), GRIDS, TEXT)[0])
        for mode in ("two_way", "three_way")
    )
    assert torch.equal(two_way, three)
    whole = [tuple(AxisWindow(length) for length in grid) for grid in GRIDS]
    assert_equal_with_gradients(latent_attention(*tensors, plan_masked(whole, GRIDS, TEXT)), two_way, tensors, 1e-6)


def test_it_is_two_attentions_merged_by_their_log_sum_exps():
    """Latents over their neighbourhood and latents over text, each with its own softmax, merged; with gradients."""
    tensors = draw_tensors(GRIDS, TEXT)
    q, k, v, text_k, text_v = tensors
    allowed = allowed_pairs(GRIDS, TEXT, WINDOWS)
    outputs, sums = [], []
    for keys, values, seen in ((text_k, text_v, allowed[:, : sum(TEXT)]), (k, v, allowed[:, sum(TEXT) :])):
        keys, values = (x.repeat_interleave(2, 1) for x in (keys, values))
        scores = (torch.einsum("qhd,khd->hqk", q, keys) / 2).masked_fill(~seen, -torch.inf)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        sums.append(scores.logsumexp(-1).T)
    shares = torch.stack(sums).softmax(0)[..., None]
    plan = plan_masked([AttentionPattern(WINDOWS).windows(grid) for grid in GRIDS], GRIDS, TEXT)
    merged = shares[0] * outputs[0] + shares[1] * outputs[1]
    assert_equal_with_gradients(latent_attention(*tensors, plan), merged, tensors, 1e-6)


def test_no_later_frame_is_seen():
    """video_temporal_causal: the own frame and earlier ones, whole; images are dense."""
    modes = attention_modes("three_way", 3, video_temporal_causal=True)
    (plan,) = plan_latents(modes, GRIDS, TEXT)
    assert not plan.masked, "frames need no mask, so the fast kernels can run them"
    assert modes.layers == (0, 0, 0)
    causal = allowed_pairs(GRIDS, TEXT, {})
    frames = torch.cat([torch.arange(t).repeat_interleave(h * w) for t, h, w in GRIDS])
    causal[:, sum(TEXT) :] &= frames[:, None] >= frames
    tensors = draw_tensors(GRIDS, TEXT)
    assert_equal_with_gradients(latent_attention(*tensors, plan), softmax_attention(*tensors, causal), tensors)


def test_a_share_of_the_heads_gives_that_share_of_the_output():
    """As context parallelism calls it."""
    tensors = draw_tensors(GRIDS, TEXT, heads=4, kv_heads=2)
    plan = plan_masked([AttentionPattern(WINDOWS).windows(grid) for grid in GRIDS], GRIDS, TEXT)
    q, *others = tensors
    part = latent_attention(q[:, 2:], *(x[:, 1:] for x in others), plan)
    torch.testing.assert_close(part, latent_attention(*tensors, plan)[:, 2:], rtol=0, atol=1e-6)


def test_a_window_in_time_needs_no_mask_and_fewer_keys():
    """Frames that see the same frames are one segment with only those frames as keys."""
    plan = plan_masked([(AxisWindow(2, stride=2), AxisWindow(3), AxisWindow(3))], [(4, 3, 3)], [5])
    assert not plan.masked
    assert plan.cu_kv.tolist() == [0, 5 + 18, 2 * (5 + 18)]


def test_segments_of_one_shape_share_a_mask_and_a_dtype_makes_it_once():
    """16 frames under a window in height: one mask, as large as a frame over a frame's keys."""
    windows = (AxisWindow(2, stride=2), AxisWindow(2), AxisWindow(4))
    plan = plan_masked([windows] * 2, [(16, 4, 4)] * 2, [3, 3])
    masks = {id(group.mask): group.mask for group in plan.groups}
    assert [mask.shape for mask in masks.values()] == [(1, 1, 2 * 16, 3 + 2 * 16)]
    (mask,) = {id(group.mask): group.mask for group in plan.to(torch.bfloat16).groups}.values()
    assert mask.dtype == torch.bfloat16
    assert set(mask.unique().tolist()) == {0.0, -torch.inf}


def test_the_variable_length_kernel_gets_the_segments(monkeypatch):
    """The tensors that a CUDA device hands to `varlen_attn`, computed here segment by segment as that is documented."""
    from torch.nn.attention import varlen

    def varlen_attn(q, k, v, cu_q, cu_kv, max_q, max_kv, *, window_size, enable_gqa):
        assert window_size == (-1, -1)
        pieces = []
        for a, b, c, d in zip(cu_q[:-1], cu_q[1:], cu_kv[:-1], cu_kv[1:], strict=True):
            assert b - a <= max_q
            assert d - c <= max_kv
            heads_first = (x.transpose(0, 1) for x in (q[a:b], k[c:d], v[c:d]))
            out = torch.nn.functional.scaled_dot_product_attention(*heads_first, enable_gqa=enable_gqa)
            pieces.append(out.transpose(0, 1))
        return torch.cat(pieces)

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    (plan,) = plan_latents(attention_modes("three_way", 1, video_temporal_causal=True), GRIDS, TEXT)
    tensors = draw_tensors(GRIDS, TEXT)
    q, k, v, text_k, text_v = tensors
    out = attention.varlen_attention(q, torch.cat((text_k, k)), torch.cat((text_v, v)), plan)
    assert_equal_with_gradients(out, latent_attention(*tensors, plan), tensors)


def test_natten_gets_each_sample_on_its_grid(monkeypatch):
    """The calls that NATTEN's operations get, answered here pair by pair as its documentation defines them."""
    asked = []

    def operation(query, key, value, kernel_size, stride, dilation, is_causal, additional_keys, additional_values):
        grid = query.shape[1:-2]
        asked.append((grid, kernel_size))
        tokens = list(product(*map(range, grid)))
        settings_of = list(zip(grid, kernel_size, stride, dilation, is_causal, strict=True))
        seen = [
            [all(axis_sees(a, b, *own) for a, b, own in zip(x, y, settings_of, strict=True)) for y in tokens]
            for x in tokens
        ]
        allowed = torch.tensor(seen)
        text = torch.ones(len(tokens), additional_keys.shape[1], dtype=torch.bool)
        q, k, v = (x[0].flatten(0, len(grid) - 1) for x in (query, key, value))
        out = softmax_attention(q, k, v, additional_keys[0], additional_values[0], torch.cat((text, allowed), 1))
        return out.unflatten(0, grid)[None]

    monkeypatch.setitem(sys.modules, "natten", types.SimpleNamespace(na1d=operation, na2d=operation, na3d=operation))
    windows = [AttentionPattern(WINDOWS).windows(grid) for grid in GRIDS]
    tensors = draw_tensors(GRIDS, TEXT)
    out = run_natten(*tensors, plan_natten(windows, GRIDS, TEXT))
    assert_equal_with_gradients(out, latent_attention(*tensors, plan_masked(windows, GRIDS, TEXT)), tensors)
    # The third grid is 2 x 4 and its window all of it; the fourth is one token.
    assert asked == [((3, 2, 4), (2, 2, 3)), ((3, 3), (2, 3)), ((3, 2, 4), (2, 2, 3))]


def test_a_window_that_fits_no_grid_is_named():
    modes = attention_modes("three_way", 1, [{"3d": NeighborhoodConfig(window_size=[-1, 4, 2], dilation=[1, 2, 1])}])
    plan_latents(modes, [(2, 8, 2)], [1])
    with pytest.raises(
        UserError, match=r"list\[0\].*window of 4 with dilation 2 needs 8 tokens of height.*has 7 .*2 x 7"
    ):
        plan_latents(modes, [(2, 7, 2)], [1])
    modes = attention_modes("three_way", 1, [{"1d": NeighborhoodConfig(window_size=[-1], stride=[4])}])
    with pytest.raises(
        UserError, match=r"stride 4 is larger than the window, which has 3 tokens of width in .* 1 x 1 x 3"
    ):
        plan_latents(modes, [(1, 1, 3)], [1])


CONFIG = NetworkConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, mrope_section=[2, 1, 1], latent_channel=4,
)  # fmt: skip


def make_network(attention_of=None):
    network = Cosmos3Network(CONFIG, attention_of)
    init_weights(network, 0)
    return network


def make_pack(modes):
    layouts = [SampleLayout([5, 6, 7], (3, 8, 6), 16.0, 1), SampleLayout([8], (1, 6, 6), None)]
    pack = pack_samples(layouts, CONFIG, eos_id=62, vision_start_id=63, attention=modes)
    generator = torch.Generator().manual_seed(1)
    return pack, [torch.randn(4, *layout.latent_shape, generator=generator) for layout in layouts]


def test_a_network_trains_a_step_with_windows():
    """A dense layer and two windowed ones, images and videos, the text tower frozen: every gradient is finite."""
    window = {"3d": NeighborhoodConfig(window_size=[2, 2, -1]), "2d": NeighborhoodConfig(window_size_float=[0.5, 0.5])}
    modes = attention_modes("three_way", 3, [{}, window, window])
    assert modes.layers == (0, 1, 1)
    network = make_network(modes)
    trained = {}
    for name, parameter in network.named_parameters():
        own = "moe_gen" in name or name.startswith(("vae2llm", "llm2vae", "time_embedder"))
        parameter.requires_grad_(own)
        if own:
            trained[name] = parameter
    pack, latents = make_pack(modes)
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    losses = []
    for _ in range(2):
        velocities = network(pack, latents, torch.tensor([300.0, 800.0]))
        loss = sum((velocity - latent).square().mean() for velocity, latent in zip(velocities, latents, strict=True))
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained.values())
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    dense, _ = make_pack(None)
    with pytest.raises(
        ValueError, match=r"plans of the pack are for 1 patterns.*2 of 3 layers with windows \(for 2d, 3d grids"
    ):
        network(dense, latents, torch.tensor([300.0, 800.0]))


def test_windows_work_with_the_memory_of_the_text():
    """Sampling reads the text once: the same velocities; and windows do change them."""
    modes = attention_modes("three_way", 3, [{"3d": NeighborhoodConfig(window_size=[2, 2, 2])}] * 3)
    network = make_network(modes).eval()
    (pack, latents), timesteps = make_pack(modes), torch.tensor([300.0, 800.0])
    with torch.no_grad():
        whole = network(pack, latents, timesteps)
        with_memory = network(pack, latents, timesteps, network.read_text(pack))
        dense = make_network().eval()(make_pack(None)[0], latents, timesteps)
    for one, other in zip(whole, with_memory, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert not torch.allclose(whole[0], dense[0], atol=1e-4)
    torch.testing.assert_close(whole[1], dense[1], rtol=0, atol=1e-6)  # an image has no 3d grid
