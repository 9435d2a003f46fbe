"""What only a GPU can show: kernels of attention, half precision, compiled layers, pinned copies, a run on CUDA.

    WORLDSMITH_GPU_TESTS=1 python -m pytest tests/gpu

Each test compares with the CPU, or with the same run without the thing that is tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from metrics_files import read_metrics
from torch.nn.attention import restore_flash_attention_impl

from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig
from worldsmith.distributed.attention_kernels import HOPPER, PACKAGE, activate_flash_attention, find_dense_kernel
from worldsmith.distributed.memory import ALLOCATOR_VARIABLES
from worldsmith.models.converters import FrozenBase
from worldsmith.tasks.device_copy import move_tensors
from worldsmith.training.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
HALF = 2e-2
"""Relative difference of a loss that rounding to bfloat16 explains."""


def cosmos3(folder: Path) -> Any:
    import tiny_runs

    return tiny_runs.tiny_config(tiny_runs.make_world(folder, clips=3), steps=4)


def reasoner(folder: Path) -> Any:
    import reasoner_runs

    return reasoner_runs.reasoner_config(reasoner_runs.make_world(folder, samples=4), steps=4)


def cogvideox(folder: Path) -> Any:
    import tiny_cogvideox

    return tiny_cogvideox.tiny_config(tiny_cogvideox.make_world(folder), "cogvideox_5b_tiny")


def wan(folder: Path) -> Any:
    import tiny_wan

    return tiny_wan.tiny_config(tiny_wan.make_world(folder))


def flux(folder: Path) -> Any:
    import tiny_flux

    return tiny_flux.tiny_config(tiny_flux.make_world(folder))


def ltx_video(folder: Path) -> Any:
    import tiny_ltx

    return tiny_ltx.tiny_config(tiny_ltx.make_world(folder))


FAMILIES: dict[str, Callable[[Path], Any]] = {
    "cosmos3": cosmos3, "reasoner": reasoner, "cogvideox": cogvideox, "wan": wan, "flux": flux, "ltx_video": ltx_video,
}  # fmt: skip


@pytest.fixture(params=list(FAMILIES))
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A run of four steps of each family."""
    made = FAMILIES[request.param](tmp_path / "world")
    made.model.config.precision = "float32"
    return made


def losses(config: Any, folder: Path) -> list[float]:
    Trainer(config, run_folder=folder).train()
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl")]


def on_cpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("worldsmith.distributed.world.take_device", lambda local_rank: "cpu")


def test_losses_are_those_of_a_cpu(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = losses(config, tmp_path / "cuda")
    with monkeypatch.context() as patch:
        on_cpu(patch)
        expected = losses(config, tmp_path / "cpu")
    assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_bfloat16_compiled_and_not(config: Any, tmp_path: Path, mode: str) -> None:
    expected = losses(config, tmp_path / "float32")
    config.model.config.precision = "bfloat16"
    config.model.config.activation_checkpointing = ActivationCheckpointingConfig(mode=mode)
    assert losses(config, tmp_path / "eager") == pytest.approx(expected, rel=HALF)
    config.model.config.compile = CompileConfig(enabled=True)
    torch.compiler.reset()
    assert losses(config, tmp_path / "compiled") == pytest.approx(expected, rel=HALF)


def test_lora_over_bfloat16_weights_compiles(config: Any, tmp_path: Path) -> None:
    model = config.model.config
    model.precision, model.parallelism.fsdp_master_dtype, model.lora_enabled = "bfloat16", "bfloat16", True
    config.optimizer.keys_to_select = ["lora_"]
    if config.model.name == "vision_language":
        model.lora_target_modules = "q_proj,v_proj"
        config.optimizer.lr_multipliers = {}
    expected = losses(config, tmp_path / "eager")
    model.compile = CompileConfig(enabled=True)
    torch.compiler.reset()
    assert losses(config, tmp_path / "compiled") == pytest.approx(expected, rel=HALF)


@pytest.mark.parametrize("quantized", [False, True])
def test_offloaded_frozen_weights_change_no_loss(config: Any, tmp_path: Path, quantized: bool) -> None:
    model = config.model.config
    model.precision, model.lora_enabled = "bfloat16", True
    config.optimizer.keys_to_select = ["lora_"]
    if quantized:
        model.converters, config.checkpoint.save_weights = [FrozenBase.Config()], "trained"
        model.ema.trainable_only = True
    if config.model.name == "vision_language":
        model.lora_target_modules = "q_proj,v_proj"
        config.optimizer.lr_multipliers = {}
    expected = losses(config, tmp_path / "resident")
    model.parallelism.offload = "frozen"
    model.activation_checkpointing = ActivationCheckpointingConfig(mode="full")
    assert losses(config, tmp_path / "offloaded") == pytest.approx(expected, rel=HALF)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_offloaded_trained_weights_change_no_loss(config: Any, tmp_path: Path, fraction: float) -> None:
    config.model.config.precision = "bfloat16"
    expected = losses(config, tmp_path / "resident")
    parallelism = config.model.config.parallelism
    parallelism.offload, parallelism.offload_fraction, parallelism.reduce_every_pack = "all", fraction, True
    config.model.config.activation_checkpointing = ActivationCheckpointingConfig(mode="full")
    assert losses(config, tmp_path / "offloaded") == pytest.approx(expected, rel=HALF)


@pytest.mark.parametrize("trained", [False, True])
def test_offloaded_weights_of_at_most_two_layers_are_on_the_gpu(trained: bool) -> None:
    """Gradients of trained ones are complete in page-locked memory when the backward pass returns."""
    from torch import nn

    from worldsmith.distributed.degrees import Degrees
    from worldsmith.distributed.fsdp import make_mesh, shard_network
    from worldsmith.distributed.offload import groups_of, host_params, pin_offloaded
    from worldsmith.distributed.world import World, stop_world
    from worldsmith.models.local_part import local_part

    depth, width, world = 12, 2048, World(device="cuda:0")
    with torch.device("meta"):
        network = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    for layer in network:
        layer.weight.requires_grad_(trained)
    layers = list(network)
    mesh = make_mesh(world, Degrees(1, 1))
    kept: Any = "all" if trained else "frozen"
    sharded = shard_network(network, layers, mesh=mesh, compute_dtype=torch.float32, offload=kept)
    offloaded = {id(parameter) for parameter in sharded}
    network._apply(lambda t: torch.empty_like(t, device="cpu" if id(t) in offloaded else world.device))
    pin_offloaded(network)
    for parameter in network.parameters():
        local_part(parameter.detach()).normal_(std=0.02)
    assert all(param._sharded_param_data.is_pinned() for group in groups_of(network) for param in host_params(group))
    one = 4 * width * width
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.rand(8, width, device=world.device, requires_grad=True)
    network(x).sum().backward()
    # The gradient of a layer, the input and the output of its reduction, and the next ones.
    assert torch.cuda.max_memory_allocated() - before < (3.5 + 4 * trained) * one < depth * one
    if trained:
        plain = nn.Sequential(*(nn.Linear(width, width, device=world.device) for _ in range(depth)))
        plain.load_state_dict({name: local_part(p.detach()) for name, p in network.named_parameters()})
        found = [local_part(p.grad) for p in network.parameters()]
        assert all(gradient.is_pinned() for gradient in found)
        plain(x.detach()).sum().backward()
        for gradient, parameter in zip(found, plain.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad.cpu(), rtol=1e-4, atol=1e-5)
    stop_world()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_packed_attention_is_that_of_float32(dtype: torch.dtype, causal: bool) -> None:
    from worldsmith.families.cosmos3.attention.packed import grouped_attention, packed_attention, plan_segments

    lengths = [700, 33, 256, 1]
    plan = move_tensors(plan_segments(lengths, lengths, causal=causal), torch.device("cuda"))
    torch.manual_seed(0)
    exact = [torch.randn(sum(lengths), heads, 128, device="cuda") for heads in (8, 2, 2)]
    upstream = torch.randn(sum(lengths), 8, 128, device="cuda")
    results = []
    for attention, kind in ((grouped_attention, torch.float32), (packed_attention, dtype)):
        inputs = [x.to(dtype).to(kind).requires_grad_() for x in exact]
        out = attention(*inputs, plan)
        out.backward(upstream.to(dtype).to(kind))
        results.append([out, *(x.grad for x in inputs)])
    for expected, found in zip(*results):
        assert (found.float() - expected).norm() <= 1e-2 * expected.norm()


@pytest.fixture
def flash_attention_3() -> Iterator[None]:
    """FlashAttention 3, where GPU and package are there; afterwards the process has that of PyTorch again."""
    if torch.cuda.get_device_capability() != HOPPER or find_spec(PACKAGE) is None:
        pytest.skip(f"needs an H100 or H200 and the package {PACKAGE}")
    activate_flash_attention.cache_clear()
    assert activate_flash_attention("cuda") == "FlashAttention 3"
    yield
    activate_flash_attention.cache_clear()
    restore_flash_attention_impl()


@pytest.mark.usefixtures("flash_attention_3")
@pytest.mark.parametrize("causal", [True, False])
def test_packed_attention_of_version_3_is_that_of_float32(causal: bool) -> None:
    with torch.profiler.profile() as profile:
        test_packed_attention_is_that_of_float32(torch.bfloat16, causal)
    names = {event.key for event in profile.key_averages()}
    assert {"flash_attn_3::fwd", "flash_attn_3::bwd"} <= names


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("cudnn", [True, False])
def test_the_dense_kernel_at_the_start_is_the_one_that_runs(dtype: torch.dtype, cudnn: bool) -> None:
    device, before = "cuda", torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    try:
        found = find_dense_kernel(device, dtype, (8, 8, 128), 500)
        q = torch.randn(1, 500, 8, 128, dtype=dtype, device=device, requires_grad=True).transpose(1, 2)
        with torch.profiler.profile() as profile:
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    kinds = {"cuDNN": "cudnn", "FlashAttention": "flash", "memory-efficient": "efficient", "unfused": "math"}
    kind = next(kind for word, kind in kinds.items() if found.startswith(word))
    names = {event.key for event in profile.key_averages()}
    assert any(f"scaled_dot_product_{kind}_attention" in name or f"attention_{kind}" in name for name in names), found
    assert "cuDNN" in found


def test_the_start_of_a_run_names_the_kernels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = cosmos3(tmp_path / "world")
    config.model.config.precision = "bfloat16"
    with caplog.at_level("INFO", logger="worldsmith"):
        losses(config, tmp_path / "run")
    (line,) = (line for line in caplog.messages if line.startswith("kernels "))
    assert "attention on cuda:0" in line
    assert "packed FlashAttention" in line


def test_a_monitor_that_cannot_ask_the_driver_ends_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(device: Any = None) -> int:
        raise Exception("NVMLError: not supported")

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    config = cosmos3(tmp_path / "world")
    from worldsmith.training.callbacks.metrics import DeviceMonitor

    config.trainer.callbacks["device_monitor"] = DeviceMonitor.Config(every=1)
    assert len(losses(config, tmp_path / "run")) == 4


def test_a_save_in_the_background_is_that_of_one_that_is_waited_for(tmp_path: Path) -> None:
    import toy_runs

    weights = []
    for background in (True, False):
        config = cosmos3(tmp_path / "world")
        config.checkpoint.async_save, config.checkpoint.save_iter = background, 2
        losses(config, tmp_path / str(background))
        weights.append(toy_runs.read_checkpoint(tmp_path / str(background) / "checkpoints/iter_000000002"))
    assert weights[0].keys() == weights[1].keys()
    assert not [name for name, value in weights[0].items() if not torch.equal(value, weights[1][name])]


def test_segments_of_the_allocator_are_expandable() -> None:
    program = (
        "import torch; from worldsmith.distributed.world import take_device; "
        "torch.zeros(1 << 20, device=take_device(0)); "
        "print({segment['is_expandable'] for segment in torch.cuda.memory_snapshot()})"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_VARIABLES}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{True}"
