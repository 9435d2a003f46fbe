"""Benchmarks run to their end at their smallest size and print their figures; what the figures are is not tested."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
RATIO = r"ratio \d+\.\d\d"


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        ("packed_training_step.py", ["--quick", "--samples", "4"], [RATIO, r"largest value: \d\.\de-0[6-9]"]),
        ("packed_attention.py", [], [RATIO, r"order of the samples: .*equal: True"]),
        ("vae_windows.py", ["--quick"], [RATIO, r"largest latent: \d\.\de[-+]\d\d"]),
        ("latent_cache.py", ["--quick"], [RATIO, "losses of 2 steps: equal to the last bit"]),
        ("loader.py", ["--quick"], [r"loader +\d+\.\d\d samples/s per core, ratio \d", "plain PyAV: equal"]),
        ("store_loader.py", ["--quick"], [r"empty cache .* 2 requests", r"warm cache .* 0 requests", "pixels: equal"]),
        (
            "sample_handover.py",
            ["--quick"],
            [r"0\.7 MiB: pipe +\d+\.\d\d ms, shared memory +\d", r"pack: prepared in this thread +\d+\.\d\d ms"],
        ),
        ("encode.py", ["--quick"], [RATIO, "2 files: equal, byte for byte"]),
        ("async_save.py", ["--quick"], [r"in background: +\d+\.\d\d s", r"standing still is \d+% of it"]),
        ("monitor_cost.py", ["--quick"], [r"a step with +\d+\.\d ms: [+-]\d+\.\d\d%", r"CPU time +[+-]"]),
        pytest.param(
            "checkpoint_bytes.py", ["--quick"], [r"adapters +\d+\.\d\d", r"trained +\d+\.\d\d", "CogVideoX all"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "cogvideox_step.py", ["--quick"], [r"recipe: +\d+\.\d\d samples/s", r"takes \d+\.\d\d times as long"],
            marks=pytest.mark.slow,
        ),
        ("chat_data.py", ["--quick"], [RATIO, "equal to the last bit", r"16000 tokens: \d\d\.\d\d % full in order"]),
        ("reasoner_step.py", ["--quick", "--samples", "4"], [RATIO, r"grows by \d+ MiB", r"value: \d\.\de-0[5-9]"]),
        pytest.param(
            "reasoner_peers.py", ["--quick", "--samples", "6"], [RATIO, r"images: .* \d+ supervised"],
            marks=pytest.mark.slow,
        ),
        ("plan_memory.py", ["--quick"], [r"\| full \| no \| \d+ \| \d+ \| (1\.0|0\.9[5-9])"]),
        pytest.param(
            "large_dataset.py", ["--quick"], [r"in memory +500 records", r"second start +2,000 records"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "elastic_restart.py", ["--quick"], [r"a process is killed: \d+ s", r"a launcher is killed: \d+ s"],
            marks=[pytest.mark.slow, pytest.mark.timeout(900)],
        ),
        ("gpu/nano_step.py", ["--tiny", "--steps", "1"], [r"\| LoRA, 2 layers, \d+ short clips \|", "long clips"]),
    ],
)  # fmt: skip
def test_benchmark_runs(script, words, expected, monkeypatch, capsys):
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", [script, *words])
    monkeypatch.syspath_prepend(str((FOLDER / script).parent))
    try:
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(FOLDER / script), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert end.value.code == 0, printed
    assert not [text for text in expected if not re.search(text, printed)], printed


@pytest.mark.slow
def test_the_gpu_measurements_run_on_tiny_networks(tmp_path: Path) -> None:
    """Every case has its row, with the plan of the same step."""
    words = [sys.executable, str(FOLDER / "gpu/day.py"), "--tiny", "-o", str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True, timeout=240)
    found = json.loads((tmp_path / "day.json").read_text())
    offloaded = "24 GiB: CogVideoX, all offloaded, AdamW8bit, no prefetch"
    assert found["cases"].keys() == {"Wan LoRA, eager", offloaded}
    for case in found["cases"].values():
        assert case["step_s"] > 0, case
        assert found["plans"][case["key"]]["tokens"] == case["tokens"]
    assert f"| {offloaded} | " in (tmp_path / "day.md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the program would measure")
@pytest.mark.parametrize(
    ("name", "said"),
    [("gpu/nano_step.py", "model FLOPs per second"), ("plan_memory_gpu.py", "with torch.cuda.max_memory_allocated")],
)
def test_without_a_gpu_a_gpu_benchmark_says_what_it_would_measure(name, said, monkeypatch, capsys):
    script = FOLDER / name
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.syspath_prepend(str(script.parent))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0
    assert said in capsys.readouterr().out
