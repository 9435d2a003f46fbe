"""Which attention kernels are chosen, and that the line at the start of a run names those that the run then uses."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, current_flash_attention_impl, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from worldsmith.config.errors import UserError
from worldsmith.distributed.attention_kernels import (
    PACKAGE,
    VARIABLE,
    activate_flash_attention,
    choose_flash_attention,
    describe_kernels,
    find_dense_kernel,
)
from worldsmith.training.trainer import Trainer

H100, A100 = (9, 0), (8, 0)


@pytest.mark.parametrize(
    ("requested", "capability", "installed", "version", "reason"),
    [
        ("", H100, True, 3, "^$"),
        ("3", H100, True, 3, "^$"),
        ("", H100, False, 2, f"package {PACKAGE}"),
        ("2", H100, True, 2, f"{VARIABLE} is 2"),
        ("2", A100, False, 2, f"{VARIABLE} is 2"),
        ("", A100, True, 2, "compute capability 9.0, found 8.0"),
        ("", (10, 0), True, 2, "compute capability 9.0, found 10.0"),
        ("", None, True, None, "a GPU"),
        ("3", None, True, None, "a GPU"),
    ],
)
def test_version_three_needs_its_gpu_and_its_package(
    requested: str, capability: Any, installed: bool, version: int | None, reason: str
) -> None:
    found = choose_flash_attention(requested, capability, installed)
    assert found[0] == version
    assert re.search(reason, found[1])


@pytest.mark.parametrize(
    ("requested", "capability", "installed", "words"),
    [
        ("3", H100, False, f"{VARIABLE} is 3: version 3 needs the package {PACKAGE}"),
        ("3", A100, True, f"{VARIABLE} is 3: version 3 needs compute capability 9.0, found 8.0"),
        ("FA3", None, True, f"{VARIABLE}: expected 2 or 3, found 'FA3'"),
    ],
)
def test_a_version_that_cannot_be_used_is_refused(requested: str, capability: Any, installed: bool, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_flash_attention(requested, capability, installed)


def test_on_a_cpu_nothing_is_activated_and_the_line_says_so() -> None:
    line = describe_kernels("cpu", torch.bfloat16, (4, 2, 64), 100)
    assert line == (
        "attention on cpu, 4 heads of 64 in bfloat16: packed exact attention within each sample; "
        "dense PyTorch's fused CPU kernel"
    )
    assert current_flash_attention_impl() is None


def test_a_wrong_version_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    activate_flash_attention.cache_clear()
    monkeypatch.setenv(VARIABLE, "4")
    with pytest.raises(UserError, match=f"{VARIABLE}: expected 2 or 3, found '4'"):
        activate_flash_attention("cpu")


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("heads", [(4, 4, 64), (4, 2, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("allowed", [[SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], [SDPBackend.MATH]])
def test_the_dense_kernel_is_the_one_that_runs(heads: Any, dtype: torch.dtype, allowed: list[SDPBackend]) -> None:
    q, k = (torch.randn(1, count, 20, heads[2], dtype=dtype) for count in heads[:2])
    with sdpa_kernel(allowed):
        found = find_dense_kernel("cpu", dtype, heads, 20)
        with Operators() as operators:
            scaled_dot_product_attention(q, k, k, enable_gqa=heads[0] != heads[1])
    fused = "_scaled_dot_product_flash_attention_for_cpu" in operators.names
    assert found == ("PyTorch's fused CPU kernel" if fused else "unfused")
    assert fused == (len(allowed) == 2)


class Calls(TorchFunctionMode):
    """Collects the numbers of heads and channels, and the dtypes, of all calls of dense attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[Any] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is scaled_dot_product_attention:
            q = args[0] if args else kwargs["query"]
            self.found.add((q.shape[1], q.shape[3], str(q.dtype).removeprefix("torch.")))
        return function(*args, **(kwargs or {}))


def make_config(family: str, folder: Path) -> Any:
    if family == "cosmos3":
        import tiny_runs

        return tiny_runs.tiny_config(tiny_runs.make_world(folder, clips=3), steps=1)
    if family == "reasoner":
        import reasoner_runs

        return reasoner_runs.reasoner_config(reasoner_runs.make_world(folder, samples=4), steps=1)
    from pipeline_runs import make_world, pipeline_config

    return pipeline_config(family, make_world(family, folder), steps=1)


@pytest.mark.parametrize("family", ["cosmos3", "reasoner", "cogvideox", "flux", "ltx_video", "wan22"])
def test_the_line_at_the_start_names_the_heads_of_the_run(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(make_config(family, tmp_path / "world"), run_folder=tmp_path / "run")
    with caplog.at_level(logging.INFO, logger="worldsmith"), Calls() as calls:
        trainer.train()
    (line,) = (line for line in caplog.messages if line.startswith("kernels "))
    found = re.search(r"attention on cpu, (\d+) heads of (\d+) in (\w+): packed exact attention", line)
    assert found is not None
    assert (int(found[1]), int(found[2]), found[3]) in calls.found
