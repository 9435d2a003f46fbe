"""Seconds of a step against published ones, for networks whose work is counted by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from worldsmith.distributed.gpus import GPUS, Gpu, find_gpu
from worldsmith.planning.estimate_time import EFFICIENCIES, StepSeconds, latency, rate, step_seconds
from worldsmith.planning.work import StepWork, Traffic

H100, A100 = GPUS["h100-80"], GPUS["a100-80"]
CAPPED = replace(H100, bandwidth=2.4e12, reached=0.8 * math.sqrt(500 / 700))
"""torchtitan's card: HBM2e, 500 W of 700; power grows with at least the square of the clock."""
RECOMPUTED = {"none": (0.0, 0), "selective": (0.5, 0), "full": (1.0, 1)}
"""Share of the forward matrix products, and times the attention, that are computed again."""


@dataclass(frozen=True)
class Decoder:
    """A gated decoder without biases; `keys` is the width of the keys of all heads."""

    layers: int
    width: int
    keys: int
    hidden: int
    vocabulary: int

    @property
    def weights(self) -> int:
        layer = 2 * self.width**2 + 2 * self.width * self.keys + 3 * self.width * self.hidden
        return self.layers * layer + 2 * self.vocabulary * self.width

    def step(
        self, tokens: int, length: int, ranks: int, *, recompute: str = "none", adapters: bool = False
    ) -> StepWork:
        """One pack of `tokens` in sequences of `length`, its weights cut among all ranks.

        A token and weight cost two operations forwards and twice that backwards, half of it where the weight is frozen;
        causal attention 2·layers·width·length forwards and 2.5 times that backwards. Norms read and write about 30
        bytes a number, rotations 40, sums 6, the gate 10; backwards is twice that.
        """
        forward = 2 * (self.weights - self.vocabulary * self.width)
        attention = 2 * self.layers * self.width * length
        products, kernels = RECOMPUTED[recompute]
        backward = forward if adapters else 2 * forward
        model = tokens * (forward + backward + 3.5 * attention)
        again = tokens * (products * forward + kernels * attention)
        layer = 72 * self.width + 40 * (self.width + self.keys) + 10 * self.hidden
        moved = tokens * (self.layers * layer * (3 if recompute == "none" else 4) + 40 * self.vocabulary)
        traffic: list[Traffic] = []
        if ranks > 1:
            traffic = [
                Traffic("all_gather", "dp_shard", ranks, ranks, 2, 2 * 2 * self.weights),
                Traffic("reduce_scatter", "dp_shard", ranks, ranks, 1, 4 * self.weights),
            ]
            moved += 28 * self.weights // ranks + 12 * self.weights  # AdamW; copies of what is gathered
        return StepWork(
            rank=0,
            ranks=ranks,
            phases=(),
            traffic=traffic,
            model_flops=int(model),
            hardware_flops=int(model + again),
            attention_flops=int(tokens * (3.5 + kernels) * attention),
            moved_bytes=int(moved),
            tokens=tokens,
            samples=1,
            seconds=0.0,
        )


LLAMA_8B = Decoder(32, 4096, 1024, 14336, 128256)
LLAMA_70B = Decoder(80, 8192, 1024, 28672, 128256)
QWEN2_7B = Decoder(28, 3584, 512, 18944, 152064)
QWEN3_8B = Decoder(36, 4096, 1024, 12288, 151936)
GPT_22B = Decoder(48, 6144, 6144, 16384, 50304)

PER_GPU: dict[str, tuple[StepWork, Gpu, bool, float]] = {
    "torchtitan 8B": (LLAMA_8B.step(16384, 8192, 8, recompute="selective"), CAPPED, False, 5762),
    "torchtitan 8B compiled": (LLAMA_8B.step(16384, 8192, 8, recompute="selective"), CAPPED, True, 6667),
    "torchtitan 32k": (LLAMA_8B.step(32768, 2**15, 8, recompute="full"), CAPPED, True, 3890),
    "torchtitan 64k": (LLAMA_8B.step(32768, 2**16, 8, recompute="full"), CAPPED, True, 2540),
    "torchtitan 128k": (LLAMA_8B.step(32768, 2**17, 8, recompute="full"), CAPPED, True, 1071),
    "torchtitan 256k": (LLAMA_8B.step(32768, 2**18, 8, recompute="full"), CAPPED, True, 548),
    "torchtitan 8B Blackwell": (LLAMA_8B.step(32768, 8192, 4), GPUS["b200"], True, 21919),
    "AutoModel 8B adapters": (LLAMA_8B.step(8192, 4096, 1, adapters=True), H100, True, 12473),
    "AutoModel 7B adapters": (QWEN2_7B.step(8192, 4096, 1, adapters=True), H100, True, 14110),
    "AutoModel 70B": (LLAMA_70B.step(8192, 8192, 64, recompute="full"), H100, True, 867),
}
"""Tokens a second of each GPU, in the makers' tables. The long ones compute their products in 8 bits, of a step that is
mostly attention; their weights are cut among 8 ranks in all, whatever shares the sequence."""
SHARES: dict[str, tuple[StepWork, Gpu, bool, tuple[float, float]]] = {
    "Megatron": (GPT_22B.step(8192, 4096, 8), H100, True, (0.41, 0.48)),
    "lmms text": (QWEN2_7B.step(81920, 2048, 32, recompute="full"), A100, True, (0.50, 0.55)),
    "lmms images": (QWEN3_8B.step(61440, 4096, 32, recompute="full"), A100, False, (0.30, 0.40)),
}
"""Model FLOPs over peak; what is computed again is not counted. Packs of lmms fit into 80 GB by full recomputation."""


def seconds(work: StepWork, gpu: Gpu, compiled: bool) -> StepSeconds:
    found = step_seconds(work, gpu, compiled=compiled)
    assert found is not None
    return found


def assert_useful(found: StepSeconds) -> None:
    assert 1.3 < found.total.slow / found.total.fast <= 2.2


@pytest.mark.parametrize("name", PER_GPU)
def test_published_tokens_a_second(name: str) -> None:
    work, gpu, compiled, speed = PER_GPU[name]
    found = seconds(work, gpu, compiled)
    assert found.total.fast <= work.tokens / speed <= found.total.slow
    assert_useful(found)


@pytest.mark.parametrize("name", SHARES)
def test_published_shares_of_the_peak(name: str) -> None:
    work, gpu, compiled, (low, high) = SHARES[name]
    found = seconds(work, gpu, compiled)
    least, most = (work.model_flops / (gpu.peak_flops * time) for time in (found.total.slow, found.total.fast))
    assert least <= low
    assert high <= most
    assert_useful(found)


def test_hand_counts_of_weights() -> None:
    """Of config.json: 8.03, 70.55 and 7.62 billion, the last ones without norms and biases."""
    assert [round(net.weights / 1e9, 2) for net in (LLAMA_8B, LLAMA_70B, QWEN2_7B)] == [8.03, 70.55, 7.62]


def test_a_size_alone_has_no_seconds() -> None:
    assert step_seconds(LLAMA_8B.step(8192, 8192, 8), find_gpu("80GB"), compiled=True) is None


def test_compiling_moves_fewer_bytes_and_nothing_else() -> None:
    work = LLAMA_8B.step(8192, 8192, 8)
    plain, compiled = (seconds(work, H100, compiled).terms for compiled in (False, True))
    assert compiled["memory"].fast == pytest.approx(EFFICIENCIES["unfused"][0].fast * plain["memory"].fast)
    assert {name: term for name, term in compiled.items() if name != "memory"} == {
        name: term for name, term in plain.items() if name != "memory"
    }


def test_copies_of_weights_overlap_at_best_and_those_of_activations_never() -> None:
    """By hand: 50 and 20 GB over PCIe 5.0 x16, 64 GB/s per direction, at 85 to 60 %; both directions at once."""
    work = replace(LLAMA_8B.step(8192, 8192, 1), traffic=[])
    plain = seconds(work, H100, True)
    assert plain.total == plain.overlapped == plain.separate
    assert "copies" not in plain.terms
    both = seconds(replace(work, to_device_bytes=50 * 10**9, to_host_bytes=20 * 10**9), H100, True)
    assert both.overlapped.fast == pytest.approx(max(plain.total.fast, 50 / 64 / 0.85))
    assert both.overlapped.slow == pytest.approx(max(plain.total.slow, 50 / 64 / 0.6))
    assert both.separate.fast == pytest.approx(plain.total.fast + 70 / 64 / 0.85)
    assert both.separate.slow == pytest.approx(plain.total.slow + 70 / 64 / 0.6)
    assert (both.total.fast, both.total.slow) == (both.overlapped.fast, both.separate.slow)
    waits = seconds(replace(work, activation_copy_bytes=32 * 10**9), H100, True)
    assert waits.overlapped == waits.separate
    assert waits.total.fast == pytest.approx(plain.total.fast + 0.5 / 0.85)
    assert waits.terms["copies"].slow == pytest.approx(0.5 / 0.6)


def test_collectives_of_weights_are_hidden_at_best_and_those_of_a_context_never() -> None:
    quiet = replace(LLAMA_8B.step(8192, 8192, 8), traffic=[])
    gathered = replace(quiet, traffic=[Traffic("all_gather", "dp_shard", 8, 8, 1, 10**9)])
    shared = replace(quiet, traffic=[Traffic("all_to_all", "context", 8, 8, 1, 10**9)])
    alone, hidden, waited = (seconds(work, H100, True) for work in (quiet, gathered, shared))
    assert hidden.total.fast == alone.total.fast
    sent, wait = 0.875e9 / H100.link, latency(gathered.traffic[0], H100)
    assert waited.total.fast == pytest.approx(alone.total.fast + sent / 0.85 + wait.fast)
    assert hidden.total.slow == waited.total.slow == pytest.approx(alone.total.slow + sent / 0.6 + wait.slow)
    drowned = replace(quiet, traffic=[Traffic("all_reduce", "dp_replicate", 2, 9, 1, 10**13)])
    assert seconds(drowned, H100, True).bound == "between machines"


@pytest.mark.parametrize(
    ("op", "ranks", "span", "expected"),
    [
        ("all_gather", 8, 8, H100.link),
        ("all_gather", 16, 16, 8 * H100.network),  # every GPU's own network carries a share of the ring
        ("all_reduce", 2, 9, H100.network),  # one GPU of each machine
        ("all_reduce", 8, 29, 2 * H100.network),  # every fourth: two in each machine
        ("all_to_all", 16, 16, 15 / 8 * H100.network),  # 8 of 15 parts leave
    ],
)
def test_the_rate_of_a_group(op: str, ranks: int, span: int, expected: float) -> None:
    assert rate(Traffic(op, "dp_shard", ranks, span, 1, 1), H100) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "ranks", "span", "fast", "slow"),
    [
        ("all_gather", 8, 8, 8.4 + 3 * 3.4, 8.4 + 7 * 3.4),
        ("reduce_scatter", 4096, 4096, 8.4 + 3 * 3.4 + 9 * 14, 8.4 + 3584 * 3.4 + 511 * 14),
        ("all_reduce", 512, 4089, 8.4 + 2 * 9 * 14, 8.4 + 2 * 511 * 14),  # one GPU of each machine
        ("all_gather", 6, 48, 8.4 + 3 * 14, 8.4 + 5 * 14),
    ],
)
def test_the_latency_of_a_call_grows_with_the_group(op: str, ranks: int, span: int, fast: float, slow: float) -> None:
    """In microseconds; and a step of many small calls takes as long."""
    traffic = Traffic(op, "dp_shard", ranks, span, 10, 0)  # type: ignore[arg-type]
    found = latency(traffic, H100)
    assert (found.fast, found.slow) == pytest.approx((fast * 1e-6, slow * 1e-6))
    quiet = replace(LLAMA_8B.step(8192, 8192, 8), traffic=[])
    longer = seconds(replace(quiet, traffic=[traffic]), H100, True).total.slow - seconds(quiet, H100, True).total.slow
    assert longer == pytest.approx(10 * found.slow)


def test_what_causal_attention_leaves_out_takes_no_time() -> None:
    work = LLAMA_8B.step(32768, 2**15, 8)
    half = replace(work, skipped_flops=work.attention_flops // 2)
    whole, causal = (seconds(each, H100, True).terms["attention"] for each in (work, half))
    assert causal.slow == pytest.approx(whole.slow / 2)
