"""`simulate`: the phases of a run of one rank, by its own code, on tensors without memory.

A steady step, and what a run does beside its steps: encoding clips and captions, validating, drawing samples, saving.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from worldsmith.checkpoint.run.staging_buffer import lay_out
from worldsmith.config.tree.plain import to_dict
from worldsmith.models import weight_sum
from worldsmith.models.real_values import real_values, with_real_values
from worldsmith.planning.simulation.fake_world import replaced
from worldsmith.planning.simulation.phase_peaks import Timeline, sum_of
from worldsmith.planning.simulation.tracked_run import TrackedRun, simulated_run
from worldsmith.planning.simulation.traffic import nbytes
from worldsmith.planning.work import BEFORE, PhaseMemory, StepWork
from worldsmith.training.callbacks.samples.draw_answers import BATCH, DrawAnswers
from worldsmith.training.callbacks.samples.draw_samples import DrawSamples
from worldsmith.training.callbacks.samples.draw_videos import FROM_TEXT, DrawVideos
from worldsmith.training.validation import evaluating

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.training.trainer import Trainer

DIFFERENT = 3
"""Batches of a step that may differ though they are equal: the first, one that finds gradients, and the last."""
STEPS, NEW_TOKENS = 1, 2
"""Steps of a solver, and tokens of an answer: with further ones hardly more is held."""


Encodings = dict[tuple[Any, ...], tuple[PhaseMemory, int]]
"""What encoding takes beside everything else, and `encode_bytes` of a `StepWork`, by the sizes of the clips."""


def simulate(
    config: Trainer.Config,
    batches: Sequence[Any],
    *,
    ranks: int,
    rank: int = 0,
    phases: Collection[str] = (),
    encodings: Encodings | None = None,
    prepare: Callable[[Model], None] = lambda model: None,
    timelines: list[Timeline] | None = None,
) -> StepWork:
    """What a step over `batches` needs of one rank. The optimizer has its states by then.

    `phases`: what else is carried out: "loading" before it, and after it those of `other_phases`, to which `encodings`
    are given. `prepare`: see `TrackedRun`. `timelines` gets that of the step.
    """
    start = time.perf_counter()
    simulated, repeats = different(batches)
    with simulated_run(config, simulated, ranks=ranks, rank=rank, prepare=prepare, loads="loading" in phases) as run:
        work = measure_step(run, start=start, repeats=repeats)
        if timelines is not None:
            timelines.append(Timeline(run.tracker.stretches()))
        others = other_phases(run, [name for name in phases if name != "loading"], encodings)
        found = [*work.phases, *others]
        return replace(work, phases=found, encode_bytes=run.encode_bytes, seconds=time.perf_counter() - start)


def different(batches: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """Those that are simulated, and how many are as the second of them beside it."""
    alike = all(batch is batches[0] for batch in batches)
    simulated = batches[:DIFFERENT] if alike else batches
    return simulated, len(batches) - len(simulated)


def measure_step(run: TrackedRun, *, start: float, repeats: int = 0) -> StepWork:
    """A steady step, in which the second of three equal batches comes so many times more."""
    tracker = run.tracker
    building = [phase for phase in tracker.phases() if phase.name in BEFORE]
    run.prime()
    tracker.restart()
    step = run.step()
    operations, trace, batches = tracker.operations, tracker.traffic.trace, len(run.batches)
    if repeats:
        (start_sent, before), (end_sent, after) = run.begun[1:3]
        operations = operations.extrapolate(before, after, repeats)
        trace = [*trace, *trace[start_sent:end_sent] * repeats]
    return StepWork(
        rank=run.world.rank,
        ranks=run.world.size,
        phases=[*building, *tracker.phases()],
        traffic=tracker.traffic.sums(trace),
        model_flops=operations.flops - operations.recomputed_flops,
        hardware_flops=operations.flops,
        attention_flops=operations.attention_flops,
        skipped_flops=operations.skipped_flops,
        moved_bytes=operations.moved_bytes,
        samples=step.samples // run.world.data_size * (batches + repeats) // batches,
        tokens=step.tokens // run.world.data_size * (batches + repeats) // batches,
        seconds=time.perf_counter() - start,
    )


def other_phases(run: TrackedRun, names: Collection[str], encodings: Encodings | None = None) -> list[PhaseMemory]:
    """The worst moments of these phases, after a step; what the run does not do is left out.

    `encodings` keeps what encoding takes: runs with the same encoders that share it carry each encoding out once.
    """
    found, works, dummies = [], find_phases(run), run.task.dummy_data
    for name in filter(works.__contains__, names):
        run.tracker.restart()
        before, sizes = run.tracker.held_now(), tuple(sorted(map(dummies.encoder_size, run.batches[0])))
        shared = encodings if name == "encoding" and run.finds_all_encoded else None
        if shared is not None and sizes in shared:
            alone, run.encode_bytes = shared[sizes]
            found.append(sum_of([alone, before], [1, 1]))
            dummies.assume_cached()
            continue
        with run.tracker.phase(name):
            works[name]()
        run.tracker.tag("encoders", dummies.encoder_tensors())
        phases = [phase for phase in run.tracker.phases() if phase.name == name]
        if name == "encoding":
            alone, texts = sum_of([phases[0], before], [1, -1]), sum(map(nbytes, dummies.caption_tensors()))
            run.encode_bytes = max(alone.peak - texts, texts)
            if shared is not None:
                shared[sizes] = alone, run.encode_bytes
        found += phases
        if run.finds_all_encoded:
            dummies.assume_cached()
    return found


def find_phases(run: TrackedRun) -> dict[str, Callable[[], None]]:
    """What the run does beside its steps, by the name of the phase."""
    config, found = run.config, dict[str, Callable[[], None]]()
    if run.task.encoder_class is not None:
        found["encoding"] = partial(encode, run)
    if config.dataloader_val is not None and config.trainer.run_validation:
        found["validation"] = partial(validate, run)
    # Without an interval, samples that do not fit are left out by the run itself, which is never limited by them.
    callbacks = [callback for callback in config.trainer.callbacks.values() if isinstance(callback, DrawSamples.Config)]
    drawn = next((callback for callback in callbacks if callback.enabled and callback.every is not None), None)
    if isinstance(drawn, DrawVideos.Config):
        found["sampling"] = partial(draw_videos, run, drawn)
    elif isinstance(drawn, DrawAnswers.Config):
        found["sampling"] = partial(draw_answers, run, drawn)
    return {**found, "saving": partial(save, run)}


def encode(run: TrackedRun) -> None:
    """A clip of each size of the batch with its caption, one after the other, beside the states of the network."""
    encoder, dummies = run.task.encoder, run.task.dummy_data
    dummies.forget_cached()
    for sample in {dummies.encoder_size(sample): sample for sample in run.batches[0]}.values():
        encoder.encode(dummies.fill_sample(sample, encoded=False))


def validate(run: TrackedRun) -> None:
    """A batch of the size of a step's."""
    with evaluated(run):
        type(run.task).loss(run.task, run.batches[0], seed=0)


def draw_videos(run: TrackedRun, drawn: DrawVideos.Config) -> None:
    """The first step of as many latents as the callback draws, sized as the batch's first clip; one is decoded."""
    from worldsmith.checkpoint.formats.family_formats import formats_of
    from worldsmith.sampling.generate import generate_latents
    from worldsmith.sampling.requests import GenerationRequest

    model: Any = run.model
    clip = run.batches[0][0]
    size: dict[str, Any] = {**dict(zip(("height", "width"), clip.size)), "num_frames": clip.num_frames, "fps": clip.fps}
    defaults = formats_of(run.config.model.name).defaults_of_run(to_dict(run.config))
    shift = drawn.shift or defaults.shift or (None if "shift" in defaults.refused else 1.0)
    model.defaults = replace(defaults, **size, shift=shift)
    given: dict[str, Any] = {}
    if not FROM_TEXT & set(model.config.modes):
        with real_values():
            given = {"condition": torch.zeros((3, 1, *clip.size), dtype=torch.uint8), "condition_frames": 1}
    count = len(drawn.prompts) or drawn.samples
    requests = [GenerationRequest(prompt="a clip", seed=place, **size, **given) for place in range(count)]
    guidance = max(drawn.guidance, key=lambda scale: scale != 1)
    with evaluated(run, averaged=not drawn.weights or "ema" in drawn.weights):
        latents = generate_latents(model, requests, steps=min(STEPS, drawn.steps), guidance=guidance)
        model.decode(latents[0])


def draw_answers(run: TrackedRun, drawn: DrawAnswers.Config) -> None:
    """The beginning of answers to conversations like the batch's."""
    model: Any = run.model
    task: Any = run.task
    sample = run.batches[0][0]
    with evaluated(run, averaged=not drawn.weights or "ema" in drawn.weights):
        model.generate(
            [sample] * min(BATCH, drawn.samples),
            normalize=lambda patches, kind: task.media.normalize(patches, kind),
            pad_token=0,
            max_new_tokens=NEW_TOKENS,
        )


@contextmanager
def evaluated(run: TrackedRun, *, averaged: bool = True) -> Iterator[None]:
    """The network without gradients, with its averaged weights where there are any: beside them its own are kept."""
    network, average = run.model.network, run.state.ema
    swapped = average.apply_to(network) if averaged and average is not None else nullcontext()
    with evaluating(network), torch.no_grad(), swapped:
        run.tracker.tag_survivors("average", run.tracker.now)
        yield


def save(run: TrackedRun) -> None:
    """A save as the run makes it, up to the first file: one in the background is written from a copy in main memory."""
    state: Any = run.state

    def keep(iteration: int, parts: Mapping[str, Mapping[str, Any]], *, background: bool, **others: Any) -> None:
        with real_values():
            size = lay_out(parts).size
        with run.tracker.in_main_memory():
            torch.empty(size * background, dtype=torch.uint8)

    state.checkpointer, state.loader = SimpleNamespace(world=run.world, save=keep), SimpleNamespace(state_dict=dict)
    state._rng_state = with_real_values(state._rng_state)
    with equal_sums_once():
        state.save(background=run.config.checkpoint.async_save)


@contextmanager
def equal_sums_once() -> Iterator[None]:
    """Within the block the sums over frozen weights of one shape are carried out once: they need the same memory."""
    carry_out, known = weight_sum.bit_sum, dict[Any, int]()

    def bit_sum(tensor: Tensor) -> int:
        key = tensor.shape, tensor.dtype, str(getattr(tensor, "placements", ""))
        if key not in known:
            known[key] = carry_out(tensor)
        return known[key]

    with replaced(weight_sum, "bit_sum", bit_sum):
        yield
