"""`simulate`: runs the phases of one rank on fake tensors, with the trainer's own code.

The phases are a steady training step, encoding of clips and captions, validation, sample generation and saving.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from worldsmith.checkpoint.run.staging_buffer import lay_out
from worldsmith.config.tree.plain import to_dict
from worldsmith.models import weight_sum
from worldsmith.models.model import Model
from worldsmith.models.real_values import real_values
from worldsmith.planning.simulation.fake_world import replaced
from worldsmith.planning.simulation.phase_peaks import Timeline, weighted_sum
from worldsmith.planning.simulation.tracked_run import TrackedRun, simulated_run
from worldsmith.planning.work import BEFORE, ENCODING_FIRST, PhaseMemory, StepWork
from worldsmith.training.callbacks.samples.draw_answers import BATCH, DrawAnswers
from worldsmith.training.callbacks.samples.draw_samples import DrawSamples
from worldsmith.training.callbacks.samples.draw_videos import FROM_TEXT, DrawVideos
from worldsmith.training.trainer import Trainer
from worldsmith.training.validation import evaluating

DIFFERENT = 3
"""Number of batches to simulate if all are equal: the first, one that accumulates gradients, and the last."""
STEPS, NEW_TOKENS = 1, 2
"""Number of solver steps and of answer tokens to simulate; more of them hardly change the peak memory."""


Encodings = dict[tuple[Any, ...], tuple[PhaseMemory, PhaseMemory]]
"""Cache: sizes of the clips -> (phase `encoding` without the network, phase `ENCODING_FIRST`)."""


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
    """Simulates one optimizer step on one rank and returns its memory, communication and FLOPs.

    The optimizer state exists before the step, as in every step except the first.

    Args:
        config: Config with resolved references.
        batches: Batches of the step.
        ranks: Number of ranks of the run.
        rank: The simulated rank.
        phases: Other phases to simulate: "loading" before the step; "encoding", "validation", "sampling" and "saving"
            after it.
        encodings: Cache of the results of encoding phases, by clip sizes, for several calls with the same encoders;
            extended in place. None: no cache.
        prepare: Called with the model before its network is sharded, to change it.
        timelines: The memory events of the step are appended to this list.
    """
    start = time.perf_counter()
    simulated, repeats = select_different(batches)
    with simulated_run(config, simulated, ranks=ranks, rank=rank, prepare=prepare, loads="loading" in phases) as run:
        work = measure_step(run, start=start, repeats=repeats)
        if timelines is not None:
            timelines.append(Timeline(run.tracker.stretches()))
        others = other_phases(run, [name for name in phases if name != "loading"], encodings)
        found = [*work.phases, *others]
        return replace(work, phases=found, encoding=run.encoding, seconds=time.perf_counter() - start)


def select_different(batches: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """Returns (batches to simulate, number of omitted batches).

    If all batches are the same object, only three are simulated, and the second one is counted again for each omitted
    batch. Otherwise all are simulated.
    """
    alike = all(batch is batches[0] for batch in batches)
    simulated = batches[:DIFFERENT] if alike else batches
    return simulated, len(batches) - len(simulated)


def measure_step(run: TrackedRun, *, start: float, repeats: int = 0) -> StepWork:
    """Runs one optimizer step with existing optimizer state and returns its measurements.

    Args:
        run: The built run.
        start: `time.perf_counter()` at the start of the simulation.
        repeats: Number of additional batches equal to the second one, whose work is extrapolated.
    """
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
    counts = asdict(operations)
    flops, recomputed = counts.pop("flops"), counts.pop("recomputed_flops")
    return StepWork(
        rank=run.world.rank,
        ranks=run.world.size,
        phases=[*building, *tracker.phases()],
        traffic=tracker.traffic.sums(trace),
        model_flops=flops - recomputed,
        hardware_flops=flops,
        **counts,
        samples=step.samples // run.world.data_size * (batches + repeats) // batches,
        tokens=step.tokens // run.world.data_size * (batches + repeats) // batches,
        seconds=time.perf_counter() - start,
    )


def other_phases(run: TrackedRun, names: Collection[str], encodings: Encodings | None = None) -> list[PhaseMemory]:
    """Simulates phases between steps and returns their peaks; phases that the run does not have are skipped.

    Args:
        run: The run after its step.
        names: Phases to simulate: "encoding", "validation", "sampling", "saving".
        encodings: Cache of the results of encoding phases, by clip sizes, for several runs with the same encoders;
            extended in place. None: no cache.
    """
    found, runners, dummies = [], find_phases(run), run.task.dummy_data
    for name in filter(runners.__contains__, names):
        run.tracker.restart()
        before, sizes = run.tracker.held_now(), tuple(sorted(map(dummies.encoder_size, run.batches[0])))
        shared = encodings if name == "encoding" and run.finds_all_encoded else None
        if shared is not None and sizes in shared:
            alone, run.encoding = shared[sizes]
            found.append(weighted_sum([alone, before], [1, 1]))
            dummies.assume_cached()
            continue
        with run.tracker.phase(name):
            runners[name]()
        run.tracker.tag("encoders", dummies.encoder_tensors())
        phases = [phase for phase in run.tracker.phases() if phase.name == name]
        if name == "encoding":
            alone = weighted_sum([phases[0], before], [1, -1])
            run.encoding = first_phase(alone, sum(tensor.nbytes for tensor in dummies.caption_tensors()))
            if shared is not None:
                shared[sizes] = alone, run.encoding
        found += phases
        if run.finds_all_encoded:
            dummies.assume_cached()
    return found


def first_phase(encoding: PhaseMemory, texts: int) -> PhaseMemory:
    """Returns the phase `ENCODING_FIRST`, in which the encoders are loaded one after the other: its larger peak.

    Args:
        encoding: Phase `encoding` without the network, in which the text encoder is loaded all the time.
        texts: Bytes of the text encoder.
    """
    peak, kinds = encoding.peak - texts, {**encoding.kinds, "encoders": encoding.kinds.get("encoders", 0) - texts}
    if peak < texts:
        peak, kinds = texts, {"encoders": texts}
    return replace(encoding, name=ENCODING_FIRST, peak=peak, kinds=kinds)


def find_phases(run: TrackedRun) -> dict[str, Callable[[], None]]:
    """Returns the functions that run the phases between steps of `run`, by phase name, such as "validation"."""
    config, found = run.config, dict[str, Callable[[], None]]()
    if run.task.encoder_class is not None:
        found["encoding"] = partial(encode, run)
    if config.dataloader_val is not None and config.trainer.run_validation:
        found["validation"] = partial(validate, run)
    # Without an interval, the run itself skips samples that do not fit in memory, so they never limit it.
    callbacks = [callback for callback in config.trainer.callbacks.values() if isinstance(callback, DrawSamples.Config)]
    sampling = next((callback for callback in callbacks if callback.enabled and callback.every is not None), None)
    if isinstance(sampling, DrawVideos.Config):
        found["sampling"] = partial(draw_videos, run, sampling)
    elif isinstance(sampling, DrawAnswers.Config):
        found["sampling"] = partial(draw_answers, run, sampling)
    return {**found, "saving": partial(save, run)}


def encode(run: TrackedRun) -> None:
    """Runs the run's encoders on the first batch, so that the tracker records the memory of encoding.

    Of all clips with the same size only one is encoded, with its caption. The network stays on the device meanwhile.
    """
    encoder, dummies = run.task.encoder, run.task.dummy_data
    dummies.forget_cached()
    for sample in {dummies.encoder_size(sample): sample for sample in run.batches[0]}.values():
        encoder.encode(dummies.fill_sample(sample, encoded=False))


def validate(run: TrackedRun) -> None:
    """Computes the validation loss of the first batch of the run, in evaluation mode."""
    with evaluated(run):
        type(run.task).loss(run.task, run.batches[0], seed=0)


def draw_videos(run: TrackedRun, callback: DrawVideos.Config) -> None:
    """Runs one solver step for all samples of `callback`, in the size of the first clip, and decodes one."""
    from worldsmith.checkpoint.formats.family_formats import formats_of
    from worldsmith.sampling.generate_videos import generate_latents
    from worldsmith.sampling.requests import GenerationRequest

    model: Any = run.model
    clip = run.batches[0][0]
    size: dict[str, Any] = {**dict(zip(("height", "width"), clip.size)), "num_frames": clip.num_frames, "fps": clip.fps}
    defaults = formats_of(run.config.model.name).defaults_of_run(to_dict(run.config))
    shift = callback.shift or defaults.shift or (None if "shift" in defaults.refused else 1.0)
    model.defaults = replace(defaults, **size, shift=shift)
    given: dict[str, Any] = {}
    if not FROM_TEXT & set(model.config.modes):
        with real_values():
            given = {"condition": torch.zeros((3, 1, *clip.size), dtype=torch.uint8), "condition_frames": 1}
    count = len(callback.prompts) or callback.samples
    requests = [GenerationRequest(prompt="a clip", seed=number, **size, **given) for number in range(count)]
    guidance = max(callback.guidance, key=lambda scale: scale != 1)
    with evaluated(run, use_ema=not callback.weights or "ema" in callback.weights):
        latents = generate_latents(model, requests, steps=min(STEPS, callback.steps), guidance=guidance)
        model.decode(latents[0])


def draw_answers(run: TrackedRun, callback: DrawAnswers.Config) -> None:
    """Generates the first tokens of the answers of `callback` to copies of the first conversation."""
    model: Any = run.model
    task: Any = run.task
    sample = run.batches[0][0]
    with evaluated(run, use_ema=not callback.weights or "ema" in callback.weights):
        model.generate(
            [sample] * min(BATCH, callback.samples),
            normalize=lambda patches, kind: task.media.normalize(patches, kind),
            pad_token=0,
            max_new_tokens=NEW_TOKENS,
        )


@contextmanager
def evaluated(run: TrackedRun, *, use_ema: bool = True) -> Iterator[None]:
    """Context manager: evaluation mode without gradients, with the EMA weights if `use_ema` and they exist."""
    network, average = run.model.network, run.state.ema
    swapped = average.apply_to(network) if use_ema and average is not None else nullcontext()
    with evaluating(network), torch.no_grad(), swapped:
        run.tracker.tag_survivors("average", run.tracker.now)
        yield


def save(run: TrackedRun) -> None:
    """Runs a save of a checkpoint without writing files; a background save allocates its staging copy in host RAM."""
    state: Any = run.state

    def keep(iteration: int, parts: Mapping[str, Mapping[str, Any]], *, background: bool, **others: Any) -> None:
        with real_values():
            size = lay_out(parts).size
        with run.tracker.in_host_ram():
            torch.empty(size * background, dtype=torch.uint8)

    state.checkpointer, state.loader = SimpleNamespace(world=run.world, save=keep), SimpleNamespace(state_dict=dict)
    state._rng_state = real_values()(state._rng_state)
    with equal_sums_once():
        state.save(background=run.config.checkpoint.async_save)


@contextmanager
def equal_sums_once() -> Iterator[None]:
    """Context manager: checksums (`bit_sum`) of weights with equal shape, dtype and sharding are computed only once.

    A simulation needs their memory and not their values.
    """
    compute, known = weight_sum.bit_sum, dict[Any, int]()

    def bit_sum(tensor: Tensor) -> int:
        key = tensor.shape, tensor.dtype, str(getattr(tensor, "placements", ""))
        if key not in known:
            known[key] = compute(tensor)
        return known[key]

    with replaced(weight_sum, "bit_sum", bit_sum):
        yield
