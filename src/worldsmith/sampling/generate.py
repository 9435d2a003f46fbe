"""Generating videos: many requests packed into each forward pass, with classifier-free guidance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from worldsmith.sampling.requests import GenerationRequest, PreparedRequest, prepare
from worldsmith.sampling.unipc import Schedule, UniPC, flow_schedule

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.models.video_model import VideoModel

__all__ = ["GenerationRequest", "generate", "generate_latents"]

Progress = Callable[[int, int], None]


def generate(
    model: VideoModel,
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
        model, requests, steps=steps, guidance=guidance, shift=shift, max_tokens=max_tokens, progress=progress
    )
    return [model.decode(latent).cpu() for latent in latents]


@torch.no_grad()
def generate_latents(
    model: VideoModel,
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
            branch. None: what `model.defaults` say.
        max_tokens: most tokens of one forward pass. None: the model's own limit.
        progress: called with (steps done, steps in all), counted over all requests.

    Raises ValueError for an impossible request and for a shift that neither the call nor the model gives.
    """
    steps = model.defaults.steps if steps is None else steps
    guidance = model.defaults.guidance if guidance is None else guidance
    shift = model.defaults.shift if shift is None else shift
    if shift is None:
        raise ValueError(
            "the model's noise-schedule shift is not known; give one (released models: 3 at 256, 10 at 720)"
        )
    if not math.isfinite(guidance):
        raise ValueError(f"the scale of guidance must be finite, found {guidance}")
    schedule = flow_schedule(steps, shift)
    prepared = [prepare(model, request) for request in requests]
    limit = model.max_tokens if max_tokens is None else max_tokens
    results: list[Tensor] = []
    done = 0
    for chunk in chunked(model, prepared, limit, branches=1 if guidance == 1 else 2):
        states: list[Tensor] = []
        for states in sampling_steps(model, chunk, schedule, guidance):  # noqa: B007 (the last ones are kept)
            done += len(chunk)
            if progress is not None:
                progress(done, len(prepared) * steps)
        results += states
    return results


def sampling_steps(
    model: VideoModel, prepared: Sequence[PreparedRequest], schedule: Schedule, guidance: float
) -> Iterator[list[Tensor]]:
    """The states of all requests of one pack after each step, the last of which are clean latents."""
    guided = guidance != 1
    layouts = [p.conditional for p in prepared] + ([p.unconditional for p in prepared] if guided else [])
    velocities_of = model.velocities(layouts)
    states = [p.start for p in prepared]
    solvers = [UniPC(schedule) for _ in prepared]
    for timestep in schedule.timesteps:
        velocities = velocities_of(states * (2 if guided else 1), float(timestep))
        if guided:
            velocities = [u + guidance * (c - u) for c, u in zip(velocities, velocities[len(prepared) :])]
        states = [solver.step(v, x) for solver, v, x in zip(solvers, velocities, states)]
        for state, request in zip(states, prepared):
            # The velocity is 0 there, so this only removes the solver's rounding.
            clean = request.conditional.condition_frames
            state[:, :clean] = request.start[:, :clean]
        yield states


def chunked(
    model: VideoModel, prepared: Sequence[PreparedRequest], limit: int, *, branches: int
) -> Iterator[list[PreparedRequest]]:
    """Splits requests, in order, so that no chunk of more than one request has more than `limit` tokens."""
    chunk: list[PreparedRequest] = []
    used = 0
    for request in prepared:
        layouts = (request.conditional, request.unconditional)[:branches]
        size = sum(model.num_tokens(layout) for layout in layouts)
        if chunk and used + size > limit:
            yield chunk
            chunk, used = [], 0
        chunk.append(request)
        used += size
    if chunk:
        yield chunk
