"""One optimizer step: the forward and backward passes of its packs, weighted as one mean."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from worldsmith.distributed.context_parallel import divide_work, require_same_packs
from worldsmith.distributed.fsdp import reduce_gradients
from worldsmith.models.cosmos3.sequence import SampleLayout
from worldsmith.objectives.loss_weighting import StepCounts, loss_sums

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from worldsmith.data.clips.latent_cache import LatentCache
    from worldsmith.data.clips.sample import VideoSample
    from worldsmith.distributed.world import World
    from worldsmith.models.cosmos3.generator import Cosmos3Generator
    from worldsmith.objectives.rectified_flow import RectifiedFlow
    from worldsmith.training.grad_clip import GradNorm


@dataclass(slots=True)
class Step:
    """What is known of a step; it is filled in as the step goes on. Sums are over all ranks."""

    index: int
    """0-based: how many steps were done before this one."""
    packs: list[list[VideoSample]]
    """This rank's samples, one list for each forward pass."""
    samples: int = 0
    tokens: int = 0
    """Text and latent tokens of all samples."""
    loss: float = math.nan
    """Mean over all samples of the step."""
    gradient: GradNorm | None = None
    """Norm of the gradient before clipping."""
    learning_rate: float = 0.0
    """Of the first parameter group, in this step."""
    skipped: bool = False
    """Whether nothing was updated, because the step was not finite."""
    data_seconds: float = 0.0
    """Waiting for the loader."""
    seconds: float = 0.0
    """The whole step, waiting included."""


def read_packs(batches: Iterator[list[VideoSample]], index: int, grad_accum_iter: int) -> Step:
    """Fetches all packs of a step first, so that the number of its samples is known before the first backward."""
    start = time.perf_counter()
    packs = [next(batches) for _ in range(grad_accum_iter)]
    return Step(index=index, packs=packs, data_seconds=time.perf_counter() - start)


def forward_backward(
    step: Step,
    *,
    generator: Cosmos3Generator,
    objective: RectifiedFlow,
    latent_cache: LatentCache | None,
    seed: int,
    world: World,
) -> None:
    """Adds the gradient of the step's mean loss to the parameters and fills in loss, samples and tokens."""
    (samples_of_step,) = world.data_sum(sum(len(samples) for samples in step.packs))
    counts = StepCounts(int(samples_of_step), micro_batches=len(step.packs), world_size=world.data_size)
    require_same_packs(world, ([sample.position, layout_of(sample)] for sample in chain(*step.packs)))
    every_pack = generator.config.parallelism.reduce_every_pack
    total = tokens = number = 0.0
    for index, samples in enumerate(step.packs):
        reduce_gradients(generator.network, last=index == len(step.packs) - 1, every_pack=every_pack)
        latents = pack_latents(samples, generator, latent_cache, world)
        pack = generator.pack([layout_of(sample) for sample in samples])
        draws = objective.draw(samples, latents, seed=seed)
        losses = objective.losses(generator.network, pack, latents, draws, samples)
        objective.backward_loss(losses, samples, counts).backward()  # type: ignore[no-untyped-call]
        loss_sum, count = loss_sums(losses).tolist()
        total, number, tokens = total + loss_sum, number + count, tokens + pack.num_tokens
    total, number, tokens = world.data_sum(total, number, tokens)
    step.loss, step.samples, step.tokens = total / number, int(number), int(tokens)


def pack_latents(
    samples: list[VideoSample], generator: Cosmos3Generator, latent_cache: LatentCache | None, world: World
) -> list[Tensor]:
    """Every sample's latents. The ranks of a context-parallel group divide the encoding and then have equal ones."""
    channels = generator.config.network.latent_channel
    return divide_work(
        world,
        [(channels, *sample.latent_shape) for sample in samples],
        lambda index: sample_latents(samples[index], generator, latent_cache),
    )


def sample_latents(sample: VideoSample, generator: Cosmos3Generator, latent_cache: LatentCache | None) -> Tensor:
    """The sample's latents [C, t, h, w] on the generator's device, encoded now unless they were cached."""
    if sample.latents is not None:
        return sample.latents.to(generator.device)
    if sample.video is None:
        raise ValueError(f"sample {sample.key} has neither latents nor a video")
    latents = generator.encode(sample.video)
    if latent_cache is not None and sample.cache_key is not None:
        latent_cache.put(sample.cache_key, latents.cpu())
    return latents.to(generator.device)


def layout_of(sample: VideoSample) -> SampleLayout:
    return SampleLayout(
        text_ids=sample.text_ids,
        latent_shape=sample.latent_shape,
        fps=sample.fps,
        condition_frames=sample.condition_frames,
    )
