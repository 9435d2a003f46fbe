"""Is one batched attention call per group of similar segments faster than one call per segment?

    python benchmarks/packed_attention.py [--threads 1]

Forward and backward over 32 samples of 20 latent tokens and 8 to 24 text tokens (4 heads of 64), the grouped backend
against a plain loop over the segments, interleaved in one run. Prints the ratio of the medians and the largest
relative difference between the two results.

Then the same for the keys or values of a layer of Nano (8 heads of 128) alone, which are put into the order of the
samples: by one concatenation, or by an index. The two must be equal to the last bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from side_by_side import medians
from torch import Tensor
from torch.nn import functional as F

from worldsmith.families.cosmos3.attention.packed import grouped_attention, join_samples, latent_attention
from worldsmith.families.cosmos3.network.architecture import tiny
from worldsmith.families.cosmos3.network.sequence import PackedSequence, pack_samples
from worldsmith.models.video_model import SampleLayout

SAMPLES, HEADS, KV_HEADS, HEAD_DIM, ROUNDS = 32, 4, 2, 64, 30
NANO_HEADS, NANO_HEAD_DIM = 8, 128


def per_segment(q: Tensor, k: Tensor, v: Tensor, spans: list[tuple[slice, Tensor]], causal: bool) -> Tensor:
    """The plain loop: one attention call per sample."""
    outputs = []
    for queries, keys in spans:
        out = F.scaled_dot_product_attention(
            q[queries].transpose(0, 1)[None],
            k[keys].transpose(0, 1)[None],
            v[keys].transpose(0, 1)[None],
            is_causal=causal,
            enable_gqa=True,
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def spans_of(pack: PackedSequence) -> tuple[list[tuple[slice, Tensor]], list[tuple[slice, Tensor]]]:
    """Query rows and key rows of every sample, for text and for latents."""
    text, latents, text_row, latent_row = [], [], 0, 0
    for text_length, length in zip(pack.text_lengths, pack.gen_lengths, strict=True):
        own = torch.arange(text_row, text_row + text_length)
        text.append((slice(text_row, text_row + text_length), own))
        after = len(pack.text_ids) + latent_row
        latents.append((slice(latent_row, latent_row + length), torch.cat((own, torch.arange(after, after + length)))))
        text_row, latent_row = text_row + text_length, latent_row + length
    return text, latents


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    torch.set_num_threads(parser.parse_args().threads)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 25, (SAMPLES,), generator=generator).tolist()
    layouts = [SampleLayout([0] * (length - 2), (5, 4, 4), fps=8.0) for length in lengths]
    pack = pack_samples(layouts, tiny(), eos_id=0, vision_start_id=1)
    text_spans, latent_spans = spans_of(pack)
    plans = pack.und_segments, pack.gen_plans[0]
    counts = len(pack.text_ids), pack.num_tokens - len(pack.text_ids)

    def leaf(rows: int, heads: int) -> Tensor:
        return torch.randn(rows, heads, HEAD_DIM, generator=generator, requires_grad=True)

    text = leaf(counts[0], HEADS), leaf(counts[0], KV_HEADS), leaf(counts[0], KV_HEADS)
    latents = leaf(counts[1], HEADS), *(leaf(rows, KV_HEADS) for rows in (counts[1], counts[1], counts[0], counts[0]))

    def step(grouped: bool) -> list[Tensor]:
        if grouped:
            out = grouped_attention(*text, plans[0]), latent_attention(*latents, plans[1])
        else:
            q, k, v, text_k, text_v = latents
            keys, values = torch.cat((text_k, k)), torch.cat((text_v, v))
            out = per_segment(*text, text_spans, True), per_segment(q, keys, values, latent_spans, False)
        grads = torch.autograd.grad((out[0].square().sum() + out[1].square().sum()), (*text, *latents))
        return [*out, *grads]

    pairs = zip(step(True), step(False), strict=True)
    difference = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for grouped in (True, False):
            start = time.perf_counter()
            step(grouped)
            times[grouped].append(time.perf_counter() - start)
    grouped_ms, loop_ms = (1e3 * statistics.median(times[kind]) for kind in (True, False))
    groups = [len(plan.groups) for plan in plans]
    print(f"groups: {groups[0]} of text, {groups[1]} of latents, for {SAMPLES} samples")
    print(f"grouped {grouped_ms:.2f} ms, one call per segment {loop_ms:.2f} ms, ratio {loop_ms / grouped_ms:.2f}")
    print(f"largest difference of outputs and gradients, relative to their largest value: {difference:.1e}")
    return 0 if compare_orders(pack, generator) else 1


def compare_orders(pack: PackedSequence, generator: torch.Generator) -> bool:
    """Times one concatenation against `cat` and `index_select` in both passes; returns whether they are equal."""
    lengths = pack.text_lengths, tuple(pack.gen_lengths)
    samples = torch.arange(len(pack.layouts))
    rows = torch.cat([samples.repeat_interleave(torch.tensor(own)) for own in lengths]).argsort(stable=True)
    tensors = [
        torch.randn(sum(own), NANO_HEADS, NANO_HEAD_DIM, generator=generator, requires_grad=True) for own in lengths
    ]
    upstream = torch.randn(len(rows), NANO_HEADS, NANO_HEAD_DIM, generator=generator)

    def finish(joined: Tensor) -> list[Tensor]:
        return [joined, *torch.autograd.grad(joined, tensors, upstream)]

    def joined() -> list[Tensor]:
        return finish(join_samples(*tensors, lengths))

    def by_index() -> list[Tensor]:
        return finish(torch.cat(tensors).index_select(0, rows))

    equal = all(map(torch.equal, joined(), by_index()))
    seconds = medians({"joined": joined, "by index": by_index}, rounds=ROUNDS)
    both = ", ".join(f"{name} {1e3 * taken:.3f} ms" for name, taken in seconds.items())
    print(f"order of the samples: {both}, ratio {seconds['by index'] / seconds['joined']:.2f}, equal: {equal}")
    return equal


if __name__ == "__main__":
    sys.exit(main())
