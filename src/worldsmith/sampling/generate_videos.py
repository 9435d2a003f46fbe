"""Generates videos: several requests share each forward pass, with classifier-free guidance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from worldsmith.models.video_model import InitialState, VideoModel, VideoSampler
from worldsmith.sampling.requests import GenerationRequest, ReadRequest, begin, read_request

T = TypeVar("T")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BranchShare:
    """Division of classifier-free guidance between two processes, each of which computes one of the two branches."""

    branch: int
    """Branch that this process computes: 0 conditional, 1 unconditional."""
    gather: Callable[[Tensor], list[Tensor]]
    """Called with this process's tensor; returns the tensors of both processes, the conditional one first."""


class GeneratedActions(NamedTuple):
    """Result of a request with robot actions."""

    latents: Tensor
    """Latents of the video [C, t, h, w]; given frames are unchanged."""
    rows: Tensor
    """Robot actions [rows, channels] in the units of training; given rows are unchanged."""


def generate(
    model: VideoModel,
    requests: Sequence[GenerationRequest],
    *,
    max_tokens: int | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> list[Tensor]:
    """Generates videos and images and decodes them to pixels.

    Args:
        model: The model with its VAE.
        requests: Prompts, sizes and seeds of the videos.
        max_tokens: Max number of tokens of one forward pass; None: the model's own limit.
        progress: Called with (completed solver steps, all solver steps), counted over all requests.
        settings: Fields of `Sampling`, such as steps and guidance; None or missing: those of `model.defaults`.

    Returns:
        Videos, uint8 [3, T, H, W] on the CPU, in the order of the requests.
    """
    latents = generate_latents(model, requests, max_tokens=max_tokens, progress=progress, **settings)
    return [model.decode(latent).cpu() for latent in latents]


def generate_latents(
    model: VideoModel,
    requests: Sequence[GenerationRequest],
    *,
    max_tokens: int | None = None,
    progress: Progress | None = None,
    share: BranchShare | None = None,
    **settings: Any,
) -> list[Tensor]:
    """Generates normalized latents of videos; the result of a request does not depend on the other requests.

    Args:
        model: The model.
        requests: Prompts, sizes and seeds of the videos.
        max_tokens: Max number of tokens of one forward pass; None: the model's own limit.
        progress: Called with (completed solver steps, all solver steps), counted over all requests.
        share: Division of the guidance branches between two processes, which must both call this function; None: this
            process computes both.
        settings: Fields of `Sampling`, such as steps and guidance; None or missing: those of `model.defaults`.

    Returns:
        Latents [C, t, h, w], in the order of the requests.

    Raises:
        ValueError: If a request is invalid, or the model does not support the settings.
    """
    sampler = model.sampler(model.defaults.sampling(**settings))
    return generate_packs(sampler, requests, sampler.finish, max_tokens=max_tokens, progress=progress, share=share)


def generate_actions(
    model: VideoModel,
    requests: Sequence[GenerationRequest],
    *,
    max_tokens: int | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> list[GeneratedActions]:
    """Generates videos with robot actions: what a request gives is kept, everything else is generated.

    A request gives one frame and all rows (forward dynamics), all frames (inverse dynamics), or one frame (joint
    prediction); the first rows can be given in each case, such as the state of the robot.

    Args:
        model: The model.
        requests: Prompts, sizes, conditioning frames, robot actions and seeds of the videos.
        max_tokens: Max number of tokens of one forward pass; None: the model's own limit.
        progress: Called with (completed solver steps, all solver steps), counted over all requests.
        settings: Fields of `Sampling`, such as steps and guidance; None or missing: those of `model.defaults`.

    Returns:
        Latents and robot actions, in the order of the requests.

    Raises:
        ValueError: If a request is invalid or has no robot actions, or the model does not support the settings.
    """
    if any(request.actions is None for request in requests):
        raise ValueError("a request without robot actions: use generate")
    sampler = model.sampler(model.defaults.sampling(**settings))

    def finish(sample: InitialState, state: Tensor) -> GeneratedActions:
        return GeneratedActions(sampler.finish(sample, state), sampler.finish_actions(sample, state))

    return generate_packs(sampler, requests, finish, max_tokens=max_tokens, progress=progress)


def generate_packs(
    sampler: VideoSampler,
    requests: Sequence[GenerationRequest],
    finish: Callable[[InitialState, Tensor], T],
    *,
    max_tokens: int | None = None,
    progress: Progress | None = None,
    share: BranchShare | None = None,
) -> list[T]:
    """Generates samples in packs; the arguments are those of `generate_latents`, with a function `finish`.

    Args:
        sampler: Sampler of the model.
        requests: The requests.
        finish: Returns the result of a request from its initial state and the last state of its solver.
        max_tokens: Max number of tokens of one forward pass.
        progress: Called with (completed solver steps, all solver steps).
        share: Division of the guidance branches between two processes.

    Returns:
        The results of `finish`, in the order of the requests.
    """
    known = [read_request(sampler, request) for request in requests]
    done = 0

    def count(requests_in_pack: int) -> None:
        nonlocal done
        done += requests_in_pack
        if progress is not None:
            progress(done, len(known) * len(sampler.scales))

    results: list[T] = []
    for pack in make_packs(sampler, known, max_tokens=max_tokens, shared=share is not None):
        results += [finish(*own) for own in run_pack(sampler, [known[i] for i in pack], progress=count, share=share)]
    return results


@torch.no_grad()
def run_pack(
    sampler: VideoSampler,
    requests: Sequence[ReadRequest],
    *,
    progress: Callable[[int], None] | None = None,
    share: BranchShare | None = None,
) -> list[tuple[InitialState, Tensor]]:
    """Runs all solver steps of requests that share their forward passes.

    Args:
        sampler: Sampler of the model.
        requests: The requests, whose tokens must fit into one forward pass.
        progress: Called after each solver step with the number of requests.
        share: Division of the guidance branches between two processes; None: this process computes both.

    Returns:
        The initial state and the last state of the solver for each request, in their order.

    Raises:
        ValueError: If the guidance scale is not finite, or is 1 at all steps although `share` is given.
    """
    if not math.isfinite(sampler.sampling.guidance):
        raise ValueError(f"the guidance scale must be finite, found {sampler.sampling.guidance}")
    if share is not None and not is_guided(sampler):
        raise ValueError("at guidance 1, no unconditional branch exists that another process could compute")
    samples = [begin(sampler, request) for request in requests]
    states: list[Tensor] = []
    for states in sampling_steps(sampler, samples, share):  # noqa: B007
        if progress is not None:
            progress(len(requests))
    return list(zip(samples, states))


def sampling_steps(
    sampler: VideoSampler, samples: Sequence[InitialState], share: BranchShare | None = None
) -> Iterator[list[Tensor]]:
    """Runs the solver steps of samples that share their forward passes.

    Args:
        sampler: Sampler of the model.
        samples: Initial states of the samples.
        share: Division of the guidance branches between two processes; None: this process computes both.

    Yields:
        After each solver step the current latents of all samples; the last ones are clean.
    """
    guided = is_guided(sampler)
    branches = [0] if not guided else [0, 1] if share is None else [share.branch]
    predict = sampler.predictor(samples, branches)
    states = [sample.state for sample in samples]
    for step, scale in enumerate(sampler.scales):
        answers = predict(states * len(branches), step)
        if guided and share is not None:
            answers = gather_branches(answers, share)
        if guided:
            answers = [u + scale * (c - u) for c, u in zip(answers, answers[len(samples) :])]
        states = [sample.solver.step(answer, state) for sample, answer, state in zip(samples, answers, states)]
        yield states


def is_guided(sampler: VideoSampler) -> bool:
    """Returns whether sampling computes an unconditional branch, that is, whether a guidance scale differs from 1."""
    return any(scale != 1 for scale in sampler.scales)


def gather_branches(answers: list[Tensor], share: BranchShare) -> list[Tensor]:
    """Exchanges the network outputs `answers` with the process that computes the other guidance branch.

    Both processes must call it at each solver step.

    Returns:
        Outputs of the conditional branch for all samples, followed by those of the unconditional branch.
    """
    flat = torch.cat([answer.flatten() for answer in answers])
    sizes = [answer.numel() for answer in answers]
    return [part.view_as(answer) for branch in share.gather(flat) for part, answer in zip(branch.split(sizes), answers)]


def make_packs(
    sampler: VideoSampler,
    requests: Iterable[ReadRequest],
    *,
    max_tokens: int | None = None,
    most: int | None = None,
    shared: bool = False,
) -> Iterator[list[int]]:
    """Divides requests into packs; the requests of a pack share their forward passes.

    Args:
        sampler: Sampler of the model.
        requests: The requests.
        max_tokens: Max number of tokens of a pack with several requests. None: the model's own limit.
        most: Max number of requests of a pack; None: no limit.
        shared: Whether the guidance branches are computed by different processes, so that a request counts with the
            tokens of its longer branch; False: with those of both branches.

    Yields:
        Indices of the requests of each pack, in order.
    """
    limit = sampler.model.max_tokens if max_tokens is None else max_tokens
    guided = is_guided(sampler)
    pack: list[int] = []
    used = 0
    for index, request in enumerate(requests):
        branches = [sampler.num_tokens(request.conditional), sampler.num_tokens(request.unconditional)]
        size = branches[0] if not guided else max(branches) if shared else sum(branches)
        if pack and (used + size > limit or len(pack) == most):
            yield pack
            pack, used = [], 0
        pack.append(index)
        used += size
    if pack:
        yield pack
