"""Generating videos: many requests packed into each forward pass, with classifier-free guidance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from worldsmith.data.clips.token_count import PATCH
from worldsmith.sampling.conditioning import GenerationRequest, PreparedRequest, prepare
from worldsmith.sampling.unipc import Schedule, UniPC, flow_schedule

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.models.cosmos3.generator import Cosmos3Generator
    from worldsmith.models.cosmos3.sequence import SampleLayout

__all__ = ["GenerationRequest", "generate", "generate_latents"]

Progress = Callable[[int, int], None]


def generate(
    generator: Cosmos3Generator,
    requests: Sequence[GenerationRequest],
    *,
    steps: int | None = None,
    guidance: float | None = None,
    shift: float | None = None,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[Tensor]:
    """Videos, uint8 [3, T, H, W] on the CPU, in the order of the requests. Arguments as in `generate_latents`."""
    latents = generate_latents(
        generator, requests, steps=steps, guidance=guidance, shift=shift, max_tokens=max_tokens, progress=progress
    )
    return [generator.decode(latent).cpu() for latent in latents]


@torch.no_grad()
def generate_latents(
    generator: Cosmos3Generator,
    requests: Sequence[GenerationRequest],
    *,
    steps: int | None = None,
    guidance: float | None = None,
    shift: float | None = None,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[Tensor]:
    """Normalised latents [C, t, h, w] of each request; a request's result does not depend on its neighbours.

    Args:
        steps, guidance, shift: of UniPC and classifier-free guidance, v = u + g·(c - u); g = 1 skips the unconditional
            branch. None: what `generator.defaults` say.
        max_tokens: most tokens of one forward pass. None: the model's max_num_tokens_after_packing.
        progress: called with (steps done, steps in all), counted over all requests.

    Raises ValueError for an impossible request and for a shift that neither the call nor the model gives.
    """
    steps = generator.defaults.steps if steps is None else steps
    guidance = generator.defaults.guidance if guidance is None else guidance
    shift = generator.defaults.shift if shift is None else shift
    if shift is None:
        raise ValueError(
            "the model's noise-schedule shift is not known; give one (released models: 3 at 256, 10 at 720)"
        )
    if not math.isfinite(guidance):
        raise ValueError(f"the scale of guidance must be finite, found {guidance}")
    schedule = flow_schedule(steps, shift)
    prepared = [prepare(generator, request) for request in requests]
    limit = generator.config.max_num_tokens_after_packing if max_tokens is None else max_tokens
    results: list[Tensor] = []
    done = 0
    for chunk in chunked(prepared, limit, branches=1 if guidance == 1 else 2):
        states: list[Tensor] = []
        for states in sampling_steps(generator, chunk, schedule, guidance):  # noqa: B007 (the last ones are kept)
            done += len(chunk)
            if progress is not None:
                progress(done, len(prepared) * steps)
        results += states
    return results


def sampling_steps(
    generator: Cosmos3Generator, prepared: Sequence[PreparedRequest], schedule: Schedule, guidance: float
) -> Iterator[list[Tensor]]:
    """The states of all requests of one pack after each step, the last of which are clean latents."""
    guided = guidance != 1
    layouts = [p.conditional for p in prepared] + ([p.unconditional for p in prepared] if guided else [])
    pack = generator.pack(layouts)
    memory = generator.network.read_text(pack)
    states = [p.start for p in prepared]
    solvers = [UniPC(schedule) for _ in prepared]
    for timestep in schedule.timesteps:
        timesteps = torch.full((len(layouts),), float(timestep), device=generator.device)
        velocities = generator.network(pack, states * (2 if guided else 1), timesteps, memory)
        if guided:
            velocities = [u + guidance * (c - u) for c, u in zip(velocities, velocities[len(prepared) :])]
        states = [solver.step(v, x) for solver, v, x in zip(solvers, velocities, states)]
        for state, request in zip(states, prepared):
            # The velocity is 0 there, so this only removes the solver's rounding.
            clean = request.conditional.condition_frames
            state[:, :clean] = request.start[:, :clean]
        yield states


def chunked(prepared: Sequence[PreparedRequest], limit: int, *, branches: int) -> Iterator[list[PreparedRequest]]:
    """Splits requests, in order, so that no chunk of more than one request has more than `limit` tokens."""
    chunk: list[PreparedRequest] = []
    used = 0
    for request in prepared:
        layouts = (request.conditional, request.unconditional)[:branches]
        size = sum(packed_tokens(layout) for layout in layouts)
        if chunk and used + size > limit:
            yield chunk
            chunk, used = [], 0
        chunk.append(request)
        used += size
    if chunk:
        yield chunk


def packed_tokens(layout: SampleLayout) -> int:
    frames, height, width = layout.latent_shape
    return len(layout.text_ids) + 2 + frames * -(-height // PATCH) * -(-width // PATCH)
