"""Generating videos: many requests packed into each forward pass, with classifier-free guidance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from worldsmith.sampling.requests import GenerationRequest, PreparedRequest, ReadRequest, prepare, read
from worldsmith.sampling.unipc import Schedule, UniPC, flow_schedule

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.models.video_model import VideoModel

__all__ = ["BranchShare", "GenerationRequest", "generate", "generate_latents", "generate_pack", "make_packs"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BranchShare:
    """This process computes one branch of guidance for all requests, and another process the other one."""

    branch: int
    """0 conditional, 1 unconditional."""
    gather: Callable[[Tensor], list[Tensor]]
    """From this process's tensor to those of both, the conditional one first."""


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


def generate_latents(
    model: VideoModel,
    requests: Sequence[GenerationRequest],
    *,
    steps: int | None = None,
    guidance: float | None = None,
    shift: float | None = None,
    max_tokens: int | None = None,
    progress: Progress | None = None,
    share: BranchShare | None = None,
) -> list[Tensor]:
    """Normalised latents [C, t, h, w] of each request; a request's result does not depend on its neighbours.

    Args:
        steps, guidance, shift: of UniPC and classifier-free guidance, v = u + g·(c - u); g = 1 skips the unconditional
            branch. None: what `model.defaults` say.
        max_tokens: most tokens of one forward pass. None: the model's own limit.
        progress: called with (steps done, steps in all), counted over all requests.
        share: how two processes divide the branches of guidance.

    Raises ValueError for an impossible request and for a shift that neither the call nor the model gives.
    """
    steps = model.defaults.steps if steps is None else steps
    guidance = model.defaults.guidance if guidance is None else guidance
    shift = model.defaults.shift if shift is None else shift
    if shift is None:
        raise ValueError(
            "the model's noise-schedule shift is not known; give one (released models: 3 at 256, 10 at 720)"
        )
    schedule = flow_schedule(steps, shift)
    known = [read(model, request) for request in requests]
    done = 0

    def count(requests_in_pack: int) -> None:
        nonlocal done
        done += requests_in_pack
        if progress is not None:
            progress(done, len(known) * steps)

    results: list[Tensor] = []
    for pack in make_packs(model, known, guidance=guidance, max_tokens=max_tokens, shared=share is not None):
        results += generate_pack(model, [known[i] for i in pack], schedule, guidance, progress=count, share=share)
    return results


@torch.no_grad()
def generate_pack(
    model: VideoModel,
    requests: Sequence[ReadRequest],
    schedule: Schedule,
    guidance: float,
    *,
    progress: Callable[[int], None] | None = None,
    share: BranchShare | None = None,
) -> list[Tensor]:
    """Normalised latents of requests that share their forward passes; `progress` is told their number at each step.

    Raises ValueError for a scale of guidance that is not finite, and for a shared one that has no second branch.
    """
    if not math.isfinite(guidance):
        raise ValueError(f"the scale of guidance must be finite, found {guidance}")
    if share is not None and guidance == 1:
        raise ValueError("guidance 1 has no unconditional branch that another process could compute")
    states: list[Tensor] = []
    for states in sampling_steps(model, [prepare(model, r) for r in requests], schedule, guidance, share):  # noqa: B007
        if progress is not None:
            progress(len(requests))
    return states


def sampling_steps(
    model: VideoModel,
    prepared: Sequence[PreparedRequest],
    schedule: Schedule,
    guidance: float,
    share: BranchShare | None = None,
) -> Iterator[list[Tensor]]:
    """The states of all requests of one pack after each step, the last of which are clean latents."""
    guided = guidance != 1
    branches = [[p.conditional for p in prepared], [p.unconditional for p in prepared]]
    if not guided:
        branches = branches[:1]
    elif share is not None:
        branches = [branches[share.branch]]
    velocities_of = model.velocities([layout for branch in branches for layout in branch])
    states = [p.start for p in prepared]
    solvers = [UniPC(schedule) for _ in prepared]
    for timestep in schedule.timesteps:
        velocities = velocities_of(states * len(branches), float(timestep))
        if guided and share is not None:
            velocities = of_both(velocities, share)
        if guided:
            velocities = [u + guidance * (c - u) for c, u in zip(velocities, velocities[len(prepared) :])]
        states = [solver.step(v, x) for solver, v, x in zip(solvers, velocities, states)]
        for state, request in zip(states, prepared):
            # The velocity is 0 there, so this only removes the solver's rounding.
            clean = request.conditional.condition_frames
            state[:, :clean] = request.start[:, :clean]
        yield states


def of_both(velocities: list[Tensor], share: BranchShare) -> list[Tensor]:
    """The velocities of the conditional branch, then those of the unconditional one, of which this process has one."""
    flat = torch.cat([velocity.flatten() for velocity in velocities])
    sizes = [velocity.numel() for velocity in velocities]
    return [
        part.view_as(velocity)
        for branch in share.gather(flat)
        for part, velocity in zip(branch.split(sizes), velocities)
    ]


def make_packs(
    model: VideoModel,
    requests: Iterable[ReadRequest],
    *,
    guidance: float,
    max_tokens: int | None = None,
    most: int | None = None,
    shared: bool = False,
) -> Iterator[list[int]]:
    """Places of the requests, in order, cut so that no pack of several has more than `max_tokens` tokens in a pass.

    `most`: most requests of a pack. `shared`: its branches of guidance are in different processes.
    """
    limit = model.max_tokens if max_tokens is None else max_tokens
    pack: list[int] = []
    used = 0
    for place, request in enumerate(requests):
        branches = [model.num_tokens(request.conditional), model.num_tokens(request.unconditional)]
        size = branches[0] if guidance == 1 else max(branches) if shared else sum(branches)
        if pack and (used + size > limit or len(pack) == most):
            yield pack
            pack, used = [], 0
        pack.append(place)
        used += size
    if pack:
        yield pack
