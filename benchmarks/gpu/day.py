"""Everything that waits for a GPU, in one command of a few minutes, without downloads, in order of worth.

    python benchmarks/gpu/day.py [--seconds 540] [-o DIR]
    python benchmarks/gpu/day.py --tiny             # tiny networks on any device; the numbers mean nothing

1. the tests marked `gpu`;
2. the ceilings: a bfloat16 matmul, a copy on the device, copies from the host;
3. training steps of the model families' own recipes, eager and compiled (`recipe_step.py`), with what the plan states;
4. steps with the memory of a card of 24 or 48 GiB: weights in host RAM, with and without copies ahead, 8-bit optimizer
   state, activations in host RAM (`--only "GiB"` runs only these). A case that does not fit ends with an error.

Each measurement is a process of its own, and its result is in `DIR/day.json` and `DIR/day.md` as soon as it is there.
What does not fit into `--seconds` is listed as not started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LORA = ("model.config.lora_enabled=true", 'optimizer.keys_to_select=["lora_"]', "optimizer.lr_multipliers={}",
        "model.config.parallelism.fsdp_master_dtype=bfloat16")  # fmt: skip
ONE_GPU = "model.config.parallelism.data_parallel_shard_degree=1"
COMPILED = "model.config.compile.enabled=true"
EAGER = "model.config.compile.enabled=false"
SELECTIVE = "model.config.activation_checkpointing.mode=selective"


@dataclass(frozen=True)
class Case:
    """Steps of one recipe with overrides."""

    name: str
    recipe: str
    overrides: Sequence[str] = ()
    options: Sequence[str] = ()
    seconds: int = 60
    """About how long the process takes on an H100."""

    @property
    def key(self) -> str:
        """The cases with the same key have the same plan."""
        return " ".join([self.recipe, *(word for word in self.overrides if word not in (COMPILED, EAGER))])


def pair(name: str, recipe: str, *overrides: str, seconds: int = 60, options: Sequence[str] = ()) -> list[Case]:
    """The case eager and compiled."""
    return [
        Case(f"{name}, eager", recipe, (*overrides, EAGER), (*options, "--profile"), seconds),
        Case(f"{name}, compiled", recipe, (*overrides, COMPILED), (*options, "--profile"), 2 * seconds),
    ]


NANO = ("vision_sft_nano", *LORA, ONE_GPU, "model.config.ema.enabled=false", "trainer.grad_accum_iter=1")
REASONER = ("pre_exp012_llava_ov", *LORA, ONE_GPU, "model.config.lora_target_modules=q_proj,k_proj,v_proj,o_proj")
PACKED = (
    "dataloader_train.max_samples_per_batch=8",
    "data_setting.max_tokens=2048",
    "dataloader_train.max_sequence_length=16384",
)
WAN = ("wan21_t2v_14b_lora", "model.config.network.num_layers=10")
CASES = [
    *pair("Wan 2.1 14B LoRA, 10 of 40 layers", *WAN, options=["--warm-up", "1", "--steps", "2"]),
    *pair("Cosmos3 Nano LoRA", *NANO, options=["--warm-up", "1", "--steps", "2"]),
    *pair("Qwen3-VL 8B LoRA, 8 conversations", *REASONER, *PACKED),
    *pair("CogVideoX 2B, all weights", "cogvideox_2b", options=["--warm-up", "1", "--steps", "2"]),
    *pair("FLUX.1-dev LoRA", "flux_dev_lora"),
    Case("Wan 2.1 14B LoRA, 10 of 40 layers, compiled, selective", WAN[0], (*WAN[1:], COMPILED, SELECTIVE),
         ("--profile", "--warm-up", "1", "--steps", "2"), 120),
    Case("LTX-Video 2B, all weights, eager", "ltx_video_2b", (EAGER,), ("--profile",)),
    *pair("Wan 2.2 5B LoRA", "wan22_ti2v_5b_lora", options=["--warm-up", "1", "--steps", "2"]),
]  # fmt: skip
FULL = "model.config.activation_checkpointing.mode=full"
FROZEN = "model.config.parallelism.offload=frozen"
ALL = "model.config.parallelism.offload=all"
HALF = "model.config.parallelism.offload_fraction=0.5"
EIGHT_BITS = "optimizer.name=AdamW8bit"
ACTIVATIONS = "model.config.activation_checkpointing.offload=true"
FEW = ("--warm-up", "1", "--steps", "2", "--profile")


def card(memory: int, name: str, recipe: str, *overrides: str, options: Sequence[str] = (), seconds: int = 90) -> Case:
    """The case on a card with this memory in GiB, eager and with full recomputation."""
    words = (*FEW, "--memory", str(memory), *options)
    return Case(f"{memory} GiB: {name}", recipe, (*overrides, FULL, EAGER), words, seconds)


WAN_LORA = (
    "wan21_t2v_14b_lora",
    "model.config.parallelism.fsdp_master_dtype=bfloat16",
    "dataloader_train.dataset.num_video_frames=33",
    "dataloader_train.dataset.min_frames=33",
)
WAN_5B = ("wan22_ti2v_5b", ONE_GPU, "model.config.ema.enabled=false", "trainer.grad_accum_iter=1")
CARDS = [
    card(24, "Wan 2.1 14B LoRA", *WAN_LORA),
    card(24, "Wan 2.1 14B LoRA, frozen offloaded", *WAN_LORA, FROZEN),
    card(24, "Wan 2.1 14B LoRA, frozen offloaded, no prefetch", *WAN_LORA, FROZEN, options=["--no-prefetch"]),
    card(24, "Wan 2.1 14B LoRA, frozen and activations offloaded", *WAN_LORA, FROZEN, ACTIVATIONS),
    card(48, "Wan 2.1 14B LoRA", *WAN_LORA),
    card(48, "Wan 2.1 14B LoRA, half of the frozen offloaded", *WAN_LORA, FROZEN, HALF),
    card(24, "Wan 2.2 5B, all offloaded", *WAN_5B, ALL, seconds=150),
    card(24, "Wan 2.2 5B, all offloaded, no prefetch", *WAN_5B, ALL, options=["--no-prefetch"], seconds=150),
    card(24, "Wan 2.2 5B, all and activations offloaded", *WAN_5B, ALL, ACTIVATIONS, seconds=150),
    card(48, "Wan 2.2 5B, AdamW8bit", *WAN_5B, EIGHT_BITS),
    card(48, "Wan 2.2 5B, half offloaded", *WAN_5B, ALL, HALF, seconds=150),
    card(24, "Wan 2.2 5B, all offloaded, AdamW8bit", *WAN_5B, ALL, EIGHT_BITS, seconds=300),
]
TINY = [
    Case("Wan LoRA, eager", "wan21_t2v_tiny", (*LORA, EAGER)),
    card(24, "CogVideoX, all offloaded, AdamW8bit, no prefetch", "cogvideox_2b_tiny", ALL, EIGHT_BITS, ACTIVATIONS,
         options=["--no-prefetch"]),
]  # fmt: skip


@dataclass
class Results:
    """What is known so far; `save` writes it."""

    folder: Path
    found: dict[str, Any] = field(default_factory=dict)

    def save(self, name: str, value: Any) -> None:
        self.found[name] = value
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "day.json").write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        (self.folder / "day.md").write_text(self.table(), encoding="utf-8")

    def table(self) -> str:
        """Markdown: ceilings, tests, and a row for each case."""
        lines = [f"- {name}: {self.found[name]}" for name in ("ceilings", "tests", "not started") if name in self.found]
        lines += [
            "",
            "| case | tokens | s/step | model TFLOP/s | of the matmul | peak GiB | planned | reserved | idle | syncs |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        return "\n".join([*lines, *(self.row(name, value) for name, value in self.found.get("cases", {}).items()), ""])

    def row(self, name: str, case: dict[str, Any]) -> str:
        if "step_s" not in case:
            return f"| {name} | {case.get('error', 'failed')} |" + " |" * 8
        plan = self.found.get("plans", {}).get(case["key"], {})
        rate = plan.get("model_flops", 0) / case["step_s"] / 1e12
        ceiling = self.found.get("ceilings", {}).get("matmul_tflops", 0)
        peak = max(case["peaks"].values(), default=0)
        fraction = f"{rate / ceiling:.0%}" if ceiling else ""
        return (
            f"| {name} | {case['tokens']} | {case['step_s']:.3f} | {rate:.0f} | {fraction} | {peak / 2**30:.2f} "
            f"| {plan.get('peak', 0) / 2**30:.2f} | {case.get('reserved', 0) / 2**30:.2f} | {case.get('idle', 0):.1%} "
            f"| {sum(case.get('synchronizations', {}).values())} |"
        )


def recipe_step(case: Case, *words: str, seconds: float, threads: int) -> dict[str, Any]:
    """Runs `recipe_step.py` for a case in a process of its own and returns its result, or {"error": …}."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HERE / "recipe_step.py"), case.recipe, *case.overrides, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {seconds:.0f} s"}
    start = done.stdout.find("{\n")
    if done.returncode or start < 0:
        return {"error": " ".join(done.stderr.split())[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout[start:])
    return found


def ceilings(size: int) -> dict[str, float]:
    """Rates of this device: bfloat16 matmul of three sides of `size`, copies on it, and to it from the host."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def median_seconds(work: Any, repeats: int = 20) -> float:
        taken = []
        for _ in range(repeats):
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[repeats // 4 :])

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    found = {"matmul_tflops": 2 * size**3 / median_seconds(lambda: a @ b) / 1e12}
    large = torch.randn(size * size * 4, device=device)
    other = torch.empty_like(large)
    found["copy_gb_s"] = 2 * large.nbytes / median_seconds(lambda: other.copy_(large)) / 1e9
    pageable = large.cpu()
    found["pageable_to_device_gb_s"] = large.nbytes / median_seconds(lambda: large.copy_(pageable), 8) / 1e9
    if device == "cuda":
        pinned = pageable.pin_memory()
        found["pinned_to_device_gb_s"] = large.nbytes / median_seconds(lambda: large.copy_(pinned), 8) / 1e9
    return {name: round(value, 1) for name, value in found.items()}


def run_tests(words: Sequence[str], folder: Path, seconds: float) -> str:
    """Runs pytest on the GPU, with its output in `folder`/tests.log, and returns the last line of that.

    After `seconds` all its processes are killed: workers that go on would slow down every later measurement.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    environment = {**os.environ, "WORLDSMITH_GPU_TESTS": "1"}
    with (folder / "tests.log").open("w") as log:
        tests = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, env=environment, start_new_session=True, text=True
        )
        try:
            tests.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(tests.pid, signal.SIGKILL)
            tests.wait()
            return f"stopped after {seconds:.0f} s, see tests.log"
    return (folder / "tests.log").read_text().strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540, help="when to stop")
    parser.add_argument("--tiny", action="store_true", help="tiny networks, and no tests")
    parser.add_argument("--tests", default="tests/gpu", help="what pytest runs, with its options; empty: nothing")
    parser.add_argument("--test-seconds", type=float, default=120, help="when the tests are stopped")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name contains one of these")
    parser.add_argument("--only-plans", action="store_true", help="print what the plans state, and measure nothing")
    parser.add_argument("--plans", type=Path, help="file with that output, made before or on another machine")
    parser.add_argument("--ceilings", action="store_true", help="print the ceilings alone, as JSON")
    parser.add_argument("-o", "--output", type=Path, default=Path("outputs/gpu_day"), help="folder of the results")
    options = parser.parse_args()
    if options.ceilings:
        print(json.dumps(ceilings(256 if options.tiny else 8192)))
        return 0
    end = time.monotonic() + options.seconds
    results = Results(options.output)
    known = TINY if options.tiny else [*CASES, *CARDS]
    cases = [case for case in known if any(part in case.name for part in options.only)]
    plans: dict[str, Any] = json.loads(options.plans.read_text()) if options.plans else {}
    pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 3))
    keys = {case.key: case for case in cases if case.key not in plans}
    futures = {
        key: pool.submit(recipe_step, case, "--predict", seconds=options.seconds, threads=1)
        for key, case in keys.items()
    }
    if options.only_plans:
        plans |= {key: future.result() for key, future in futures.items()}
        results.save("plans", plans)
        print(json.dumps(plans, indent=1))
        return 0
    if options.tests and not options.tiny:
        results.save("tests", run_tests(options.tests.split(), options.output, options.test_seconds))
    words = [sys.executable, str(Path(__file__)), "--ceilings", *["--tiny"] * options.tiny]
    results.save("ceilings", json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
    measured: dict[str, Any] = {}
    for index, case in enumerate(cases):
        left = end - time.monotonic()
        if left < case.seconds / 2:
            results.save("not started", [other.name for other in cases[index:]])
            break
        start = time.monotonic()
        found = recipe_step(case, *case.options, seconds=left, threads=4)
        measured[case.name] = {**found, "key": case.key, "process_s": time.monotonic() - start}
        plans |= {key: future.result() for key, future in futures.items() if future.done()}
        results.save("plans", plans)
        results.save("cases", measured)
        print(results.row(case.name, measured[case.name]), flush=True)
    plans |= {key: future.result() for key, future in futures.items() if future.running() or future.done()}
    results.save("plans", plans)
    print(results.table())
    pool.shutdown(wait=False, cancel_futures=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
