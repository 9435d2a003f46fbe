"""What a training step of the Nano network costs on this GPU: model FLOPs, utilisation, memory.

    python benchmarks/gpu/nano_step.py [--steps 8] [--layers N] [-o table.md]
    python benchmarks/gpu/nano_step.py --tiny        # the same path on a CPU, with a tiny network: figures mean nothing

Measured, in one run, each as the median over the steps after two that warm up:

- the ceiling: a bfloat16 matrix product of 8192 × 8192 × 8192;
- fine-tuning as in the Nano recipe (generation tower and heads trained, fused AdamW, bfloat16 with float32 masters,
  compiled layers, selective activation checkpointing), with as many of Nano's 36 layers as fit, on packs of at most
  45,056 tokens: once of short clips (tier 256), once of long ones (tier 480). Latents and captions are random;
- LoRA of rank 16 on the full Nano, weights in bfloat16.

A figure in percent is model FLOPs per second over the ceiling. Model FLOPs are those of `StepCounter`: what the
gradients need, without recomputation, padding, and masked scores. Goal: at least 50 %. The table is Markdown.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from worldsmith.assets import asset_path
from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, ParallelismConfig
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.distributed.world import World, start_world, stop_world
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig, nano, tiny
from worldsmith.families.cosmos3.task import Cosmos3Task, StepCounter
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.ema import PowerEMA
from worldsmith.models.local_part import local_part
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.callbacks.grad_clip import clip_gradients
from worldsmith.training.optimizer import AdamW
from worldsmith.training.parallel import build_model
from worldsmith.training.step import StepInputs, forward_backward

TRAINED = ["moe_gen", "time_embedder", "vae2llm", "llm2vae"]
GOAL = 0.5
WARM_UP = 2
NO_GPU = """There is no CUDA device here, so nothing is measured. On one, this program measures:
- the rate of a bfloat16 matrix product (the ceiling);
- the training step of a Nano-shaped network (hidden size 4096, as many of 36 layers as fit; bfloat16, compiled,
  selective activation checkpointing) on packs of 45,056 tokens: seconds, model FLOPs per second, share of the ceiling
  (goal: at least 50 %), peak memory;
- a LoRA step of the full Nano, 36 layers.
`--tiny` runs the same path here with a tiny network."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    title: str
    model: Cosmos3Generator.Config
    trained: list[str]
    samples: list[VideoSample]


@dataclass(frozen=True)
class Result:
    """Medians over the steps."""

    seconds: float
    tokens: int
    flops: int
    peak_bytes: int


def measure(case: Case, world: World, steps: int) -> Result:
    """Builds the model as a run does and times its steps. Raises torch.OutOfMemoryError when it does not fit."""
    generator = build_model(case.model, world)
    fill(generator.network)
    adamw = AdamW.Config(lr=1e-4, keys_to_select=case.trained).build(network=generator.network)
    task = Cosmos3Task(model=generator, objective=RectifiedFlow.Config(), data=VideoLoader.Config(), world=world)
    texts = [len(sample.text_ids) + 2 for sample in case.samples]
    flops = StepCounter(generator.network, texts, [s.num_tokens for s in case.samples]).count().total
    reset_peak(world)
    taken = []
    for index in range(WARM_UP + steps):
        start = synchronised(world)
        step = forward_backward(StepInputs(index, [case.samples]), task, seed=0)
        clip_gradients(adamw.parameters, 1.0, force_finite=True)
        adamw.optimizer.step()
        adamw.optimizer.zero_grad(set_to_none=True)
        taken.append(synchronised(world) - start)
    return Result(statistics.median(taken[WARM_UP:]), step.tokens, flops, peak_bytes(world))


@torch.no_grad()
def fill(network: torch.nn.Module) -> None:
    """Random weights, drawn on the device: a run draws them by name, which takes minutes for so many."""
    for parameter in network.parameters():
        local = local_part(parameter.detach())
        local.fill_(1.0) if parameter.ndim == 1 else local.normal_(0, 0.02)


def ceiling(world: World, size: int) -> float:
    """Operations per second of a bfloat16 matrix product of three sides of `size`."""
    a, b = (torch.randn(size, size, device=world.device, dtype=torch.bfloat16) for _ in range(2))
    taken = []
    for _ in range(30):
        start = synchronised(world)
        torch.mm(a, b)
        taken.append(synchronised(world) - start)
    return 2 * size**3 / statistics.median(taken[5:])


def make_samples(cap: int, frames: int, height: int, width: int, text_tokens: int, channels: int) -> list[VideoSample]:
    """As many random clips of this latent size as fit into `cap` tokens; every second one has its first frame given."""
    generator = torch.Generator().manual_seed(0)
    tokens = frames * (-(-height // 2)) * (-(-width // 2))
    count = cap // (tokens + text_tokens + 2)
    return [
        VideoSample(
            key=str(index),
            position=index,
            text_ids=torch.randint(0, 256, (text_tokens,), generator=generator).tolist(),
            caption="",
            video=None,
            latents=torch.randn(channels, frames, height, width, generator=generator),
            latent_shape=(frames, height, width),
            size=(16 * height, 16 * width),
            num_frames=4 * (frames - 1) + 1,
            fps=24.0,
            condition_frames=index % 2,
            num_tokens=tokens,
            cache_key=None,
            resolution="256" if height * width <= 320 else "480",
        )
        for index in range(count)
    ]


def model_config(network: NetworkConfig, *, compiled: bool, lora: bool = False) -> Cosmos3Generator.Config:
    """The Nano recipe's model; the average is left out, since it needs memory and no operations that count."""
    return Cosmos3Generator.Config(
        network=network,
        ema=PowerEMA.Config(enabled=False),
        compile=CompileConfig(enabled=compiled),
        activation_checkpointing=ActivationCheckpointingConfig(mode="selective"),
        parallelism=ParallelismConfig(fsdp_master_dtype="bfloat16" if lora else "float32"),
        tokenizer=WanVAE.Config(vae_path=str(asset_path("tiny_vae"))),
        text_tokenizer=TextTokenizer.Config(path=str(asset_path("tiny_tokenizer"))),
        lora_enabled=lora,
    )


def with_layers(network: NetworkConfig, layers: int) -> NetworkConfig:
    network.num_hidden_layers = layers
    return network


def largest_that_fits(layers: list[int], attempt: Callable[[int], Result]) -> tuple[int, Result]:
    """The result with the first of these numbers of layers that the memory holds."""
    for count in layers:
        try:
            return count, attempt(count)
        except torch.OutOfMemoryError:
            print(f"{count} layers do not fit", file=sys.stderr)
        gc.collect()
        torch.cuda.empty_cache()
    raise SystemExit(f"not even {layers[-1]} layers fit on this device")


def row(title: str, result: Result, rate: float) -> str:
    done = result.flops / result.seconds
    return (
        f"| {title} | {result.tokens} | {result.seconds:.2f} | {result.tokens / result.seconds:.0f} "
        f"| {done / 1e12:.1f} | {done / rate:.1%} | {result.peak_bytes / 2**30:.1f} |"
    )


def run_all(world: World, arguments: argparse.Namespace) -> str:
    """The table."""
    tiny_run = arguments.tiny
    base: Callable[[], NetworkConfig] = (lambda: with_layers(tiny(vocab_size=512), 2)) if tiny_run else nano
    full = base().num_hidden_layers
    cap = 100 if tiny_run else 45056
    packs = {
        "short clips": (2, 4, 4, 12) if tiny_run else (16, 12, 20, 160),
        "long clips": (3, 8, 6, 8) if tiny_run else (27, 30, 52, 400),
    }
    rate = ceiling(world, 128 if tiny_run else 8192)
    counts = [1] if tiny_run else [arguments.layers] if arguments.layers else list(range(28, 3, -2))
    rows = []
    for name, shape in packs.items():
        samples = make_samples(cap, *shape, channels=base().latent_channel)

        def attempt(layers: int, name: str = name, samples: list[VideoSample] = samples) -> Result:
            model = model_config(with_layers(base(), layers), compiled=not tiny_run)
            return measure(Case(name, model, TRAINED, samples), world, arguments.steps)

        layers, result = largest_that_fits(counts, attempt)
        counts = [layers, *(count for count in counts if count < layers)]
        rows.append(row(f"fine-tuning, {layers} of {full} layers, {len(samples)} {name}", result, rate))
        free_memory()
    samples = make_samples(cap, *packs["short clips"], channels=base().latent_channel)
    lora = model_config(base(), compiled=not tiny_run, lora=True)
    result = measure(Case("LoRA", lora, ["lora_"], samples), world, arguments.steps)
    rows.append(row(f"LoRA, {full} layers, {len(samples)} short clips", result, rate))
    device = torch.cuda.get_device_name() if world.device.startswith("cuda") else "CPU (tiny network)"
    return "\n".join(
        [
            f"{device}, torch {torch.__version__}; matrix product {rate / 1e12:.1f} TFLOP/s; median of "
            f"{arguments.steps} steps",
            "",
            "| step | tokens | s | tokens/s | model TFLOP/s | of the ceiling | peak GiB |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *rows,
        ]
    )


def synchronised(world: World) -> float:
    if world.device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def reset_peak(world: World) -> None:
    if world.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(world: World) -> int:
    return torch.cuda.max_memory_allocated() if world.device.startswith("cuda") else 0


def free_memory() -> None:
    """Between two cases: the next one is compiled anew."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps that are timed")
    parser.add_argument("--layers", type=int, default=0, help="layers of the fine-tuning; 0: as many as fit")
    parser.add_argument("--tiny", action="store_true", help="a tiny network on whatever device is there")
    parser.add_argument("-o", "--output", type=Path, help="file for the table")
    arguments = parser.parse_args()
    if not (torch.cuda.is_available() or arguments.tiny):
        print(NO_GPU)
        return 0
    world = start_world()
    try:
        table = run_all(world, arguments)
    finally:
        stop_world()
    print(table)
    if arguments.output:
        arguments.output.write_text(table + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
