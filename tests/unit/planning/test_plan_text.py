"""What a plan says, to people and to programs, for a plan of fixed numbers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixed_plan import DATA, QUICK, WORK, fixed_plan, phase

from worldsmith.config.load import load
from worldsmith.distributed.gpus import GIB, find_gpu
from worldsmith.monitor.terminal_text import WIDTH
from worldsmith.planning.assumptions import assumptions
from worldsmith.planning.estimate_memory import MemoryVerdict, worst_phase
from worldsmith.planning.estimate_time import EstimateRange
from worldsmith.planning.plan import Plan, why_untimed
from worldsmith.planning.plan_text import (
    activations_by_module,
    format_duration_range,
    format_flops,
    format_range,
    plan_lines,
    quick_lines,
    size,
)

BACKWARD = WORK.phases[3]
"""The one that needs most."""

GOLDEN = Path(__file__).parents[2] / "golden" / "plans" / "vision_sft_nano.txt"


def told(plan: Plan) -> str:
    lines = [*quick_lines(plan.name, plan.quick, plan.gpu, plan.ranks, plan.degrees), *plan_lines(plan)]
    assert max(map(len, lines)) <= WIDTH
    return "\n".join(lines) + "\n"


def test_the_text_of_a_plan() -> None:
    """UPDATE_GOLDEN=1 writes it anew: look at the difference."""
    text = told(fixed_plan())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_one_that_does_not_fit_says_by_how_much_and_what_holds_it() -> None:
    text = told(fixed_plan("24GB"))
    assert "DOES NOT FIT: 72.3 GiB of 22.4 GiB, 49.9 GiB too much" in text
    assert "fits on      h100-80, h100-pcie, a100-80, h100-94, rtx-pro-6000, h200 and 1 more" in text
    assert "weights and optimizer state alone exceed the memory of 24GB\n" in text
    assert "to do        add --fit to the command to search for settings that fit\n" in text
    assert "time         unknown" in text


def test_time_of_a_gpu_that_only_states_its_memory_needs_a_name() -> None:
    config = load("vision_sft_nano", keep_unset=True).tree
    assert why_untimed(config, find_gpu("h100-80")) == ""
    for memory, named in (("24GB", "rtx-4090"), ("30GB", "rtx-5090"), ("999GB", "b200")):
        why = why_untimed(config, find_gpu(memory))
        assert why.startswith(f"{memory} only states a memory size, no speed")
        assert why.endswith(f"--gpu {named}")


def test_copies_are_shown_with_and_without_overlap() -> None:
    copies = {"to_device_bytes": 20 * GIB, "to_host_bytes": GIB, "activation_copy_bytes": 8 * GIB}
    text = " ".join(told(fixed_plan("h100-80", **copies)).split())
    assert (
        "copies 20.0 GiB of weights to the GPU, 1.0 GiB of gradients and weights to host RAM, 8.0 GiB of activations "
        "to host RAM and back per step, at most 64 GB/s per direction: 572 to 811 ms a step takes" in text
    )
    plan = fixed_plan("h100-80", **copies)
    assert plan.step is not None
    assert plan.assumptions["copies"].startswith("85 to 60 % of 64 GB/s per direction to page-locked host RAM")
    overlapped = " ".join(format_duration_range(plan.step.overlapped).split())
    assert f"a step takes {overlapped} if copies of weights overlap with it" in text
    assert "copies" not in told(fixed_plan()).replace("copies for saves", "")


@pytest.mark.parametrize(("ranks", "gpus"), [(1, "1 GPU;"), (4, "4 GPUs;"), (16, "8 GPUs;")])
def test_a_machine_has_the_gpus_of_the_run(ranks: int, gpus: str) -> None:
    config = load("vision_sft_nano", keep_unset=True).tree
    found = assumptions(config, find_gpu("h100-80"), ranks, DATA, timed=False)
    assert found["machine"].startswith(gpus)


def test_one_that_fits_as_long_as_memory_is_whole() -> None:
    tight = fixed_plan(phases=[phase("forward", activations=76)])
    assert "TIGHT: 81.1 GiB of 79.1 GiB" in told(tight)
    assert tight.memory.word == "tight"


def test_a_start_that_needs_more_than_a_step() -> None:
    plan = fixed_plan(phases=[phase("loading", parameters=60, other=16), BACKWARD, phase("encoding", encoders=9)])
    assert worst_phase(plan.work)[0] is BACKWARD  # encoders come after the start
    plan = fixed_plan(phases=[phase("loading", parameters=60, other=20), BACKWARD])
    assert "DOES NOT FIT: 85.3 GiB of 79.1 GiB" in told(plan)
    assert "peak         in the phase loading: parameters 60.0 GiB, other 20.0 GiB" in told(plan)


def test_encoders_are_beside_a_step_while_a_cache_is_filled() -> None:
    encoding = phase("encoding", parameters=60, encoders=9)
    step = replace(WORK, phases=[*WORK.phases, encoding])
    assert worst_phase(step) == (BACKWARD, 9 * GIB)  # 67.6 and 9 are more than 69
    encoded = phase("backward", activations=70, encoders=9)  # in every step: they are in its peak
    assert worst_phase(replace(WORK, phases=[encoding, encoded])) == (encoded, 0)
    assert worst_phase(WORK) == (BACKWARD, 0)
    gpu, without = find_gpu("24GB"), MemoryVerdict(find_gpu("24GB"), 10 * GIB, 1)
    assert MemoryVerdict(gpu, 10 * GIB, 1, GIB).needed - without.needed == int(1.05 * GIB)


def test_what_is_within_layers_counts_as_theirs() -> None:
    modules = ("layers.*.mlp", 3), ("layers.*", 2), ("layers.*.experts.*.up", 1), ("head", 4), ("", 1)
    assert activations_by_module(phase("backward", *modules)) == {"layers.*": 6, "head": 4, "the rest": 1}


SHAPE: dict[str, Any] = {
    "run": str,
    "family": str,
    "gpus": int,
    "degrees": {"replicate": int, "shard": int, "context": int},
    "gpu": dict,
    "data": str,
    "quick": {
        **{
            name: int
            for name in ("parameters", "trained", "checkpoint_bytes", "checkpoint_tensors", "kept_checkpoints")
        },
        "states": dict,
    },
    "memory": {
        "verdict": str,
        "gpu_bytes": int,
        **{
            f"{part}_bytes": int
            for part in ("peak", "encoders", "context", "communication", "fragmentation", "needed", "spare")
        },
        "held_by": list,
    },
    "host_memory": {"total_bytes": int, "parts": dict},
    "disk": {"total_bytes": int, "parts": dict},
    "step": {
        "samples": int,
        "tokens": int,
        "work": {
            **{name: int for name in ("rank", "ranks", "samples", "tokens", "moved_bytes", "encode_bytes")},
            **{f"{name}_bytes": int for name in ("to_device", "to_host", "activation_copy")},
            **{f"{name}_flops": int for name in ("model", "hardware", "attention", "skipped")},
            "phases": list,
            "traffic": list,
            "seconds": float,
        },
    },
    "seconds": {
        **{name: {"fast": float, "slow": float} for name in ("total", "overlapped", "separate")},
        "bound": str,
        "terms": dict,
    },
    "time": {
        "count": int,
        **{name: {"fast": float, "slow": float} for name in ("seconds", "gpu_hours", "steps", "saves", "validation")},
    },
    "efficiencies": dict,
    "untimed": str,
    "assumptions": dict,
}


def assert_shape(found: Any, shape: Any, path: str = "") -> None:
    if not isinstance(shape, dict):
        assert isinstance(found, shape), (path, found)
        return
    assert set(found) == set(shape), path
    for name, inner in shape.items():
        assert_shape(found[name], inner, f"{path}.{name}")


def test_the_keys_and_types_for_programs() -> None:
    assert_shape(json.loads(json.dumps(fixed_plan().to_json())), SHAPE)


def test_a_gpu_without_rates_has_the_same_keys() -> None:
    found = json.loads(json.dumps(fixed_plan("24GB").to_json()))
    assert set(found) == set(SHAPE)
    assert found["seconds"] is found["time"] is None
    assert found["memory"]["verdict"] == "does not fit"


def test_numbers_for_programs() -> None:
    found = fixed_plan().to_json()
    assert found["memory"]["peak_bytes"] == BACKWARD.peak == int(20.5 * GIB) + int(1.1 * GIB) + 46 * GIB
    assert found["step"]["tokens"] == 16 * WORK.tokens
    assert found["quick"]["states"] == QUICK.states
    assert sum(part["sent"] for part in found["step"]["work"]["traffic"]) == (60 + 28) * 7 * GIB // 8 + 4 * GIB + 120
    hours = found["time"]["gpu_hours"]
    assert hours["slow"] == pytest.approx(16 * found["time"]["seconds"]["slow"] / 3600)


def test_numbers_for_people() -> None:
    words = [
        size(3 * GIB),
        size(100 * 2**20),
        format_flops(2.5e15),
        format_flops(3e6),
        format_range(EstimateRange(1.94, 3.8)),
        format_range(EstimateRange(2, 2)),
    ]
    assert [word.replace("\u00a0", " ") for word in words] == [
        "3.0 GiB", "100 MiB", "2.5 PFLOP", "3 MFLOP", "1.9 to 3.8", "2"
    ]  # fmt: skip
    spans = [
        format_duration_range(EstimateRange(fast, 2 * fast)).replace("\u00a0", " ")
        for fast in (0.01, 5, 100, 7000, 4e5)
    ]
    assert spans == ["10 to 20 ms", "5 to 10 s", "1.7 to 3.3 min", "1.9 to 3.9 h", "111 to 222 h"]
