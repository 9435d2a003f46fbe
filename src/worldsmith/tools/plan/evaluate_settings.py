"""`Fitting`: finds what a run with other settings needs, by simulating its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.config.tree.paths import format_path
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.gpus import GPUS, Gpu, holding
from worldsmith.planning.estimate_memory import MemoryVerdict, memory_verdict
from worldsmith.planning.estimate_time import step_seconds
from worldsmith.planning.plan import quick_plan
from worldsmith.planning.simulation.short_run import least_layers, long_lists, short_work, with_layers
from worldsmith.planning.simulation.simulate import Encodings, simulate
from worldsmith.planning.simulation_inputs import PlannedBatches, plan_batches, quietly, task_for, with_published_parts
from worldsmith.planning.work import BESIDE, StepWork
from worldsmith.tools.plan.packs import PackLimits
from worldsmith.tools.plan.search import SettingSearch, Tried
from worldsmith.tools.plan.settings import (
    ENCODED,
    Learned,
    Setting,
    changed_words,
    degree_words,
    degrees_now,
    settings,
    with_clips,
)

if TYPE_CHECKING:
    from worldsmith.config.tree.draft import Loaded

REFUSED = (UserError, ValueError, NotImplementedError)
"""Exceptions that mean that the run does not support a setting."""
MOST_KEPT = 22.0
"""Max CPU seconds reserved for simulating the best setting with all layers."""


class Clock:
    """CPU time of a search, with a budget."""

    def __init__(self, budget: float = math.inf) -> None:
        """Starts the clock. `budget`: CPU seconds that the search may take."""
        self.budget, self.start = budget, time.process_time()

    @property
    def spent(self) -> float:
        """CPU seconds since the start."""
        return time.process_time() - self.start

    @property
    def left(self) -> float:
        """CPU seconds that are left of the budget."""
        return self.budget - self.spent


class Fitting:
    """Evaluates settings of one run on `ranks` GPUs of one type.

    A step has the samples of the unchanged run with every setting: packs are only split or merged.
    """

    def __init__(
        self,
        read: Callable[[Sequence[str]], Loaded],
        *,
        ranks: int,
        gpu: Gpu,
        batches: Sequence[Any] | None = None,
        told: Callable[[str], None] = lambda text: None,
        clock: Clock | None = None,
        clips: Learned | None = None,
    ) -> None:
        """Loads the run; simulates no step yet.

        Args:
            read: Returns the loaded run for a list of overrides.
            ranks: Number of GPUs.
            gpu: Type of the GPUs.
            batches: Packs of a rank in a step; None: planned from the run's data.
            told: Called with a description of the setting that is evaluated next.
            clock: CPU time budget of the search; None: unlimited.
            clips: Other clip sizes than those of the run, for all settings.
        """
        self.read, self.ranks, self.gpu, self.given, self.told = read, ranks, gpu, batches, told
        self.clock, self.clips = clock or Clock(), clips
        self.loaded = read(() if clips is None else changed_words(clips.words))
        self.config: Any = self.loaded.tree
        self.works: dict[tuple[tuple[str, ...], bool], StepWork] = {}
        self.encodings: dict[str, Encodings] = {}
        self.seconds = 0.0
        """CPU time of the last simulation with few layers."""
        self.longest_of_all = 0.0
        """Max CPU time of a simulation with all layers."""

    def with_clips(self, clips: Learned) -> Fitting:
        """Returns an evaluator for other clip sizes, with the same clock and time statistics."""
        other = Fitting(self.read, ranks=self.ranks, gpu=self.gpu, told=self.told, clock=self.clock, clips=clips)
        other.seconds, other.longest_of_all = self.seconds, self.longest_of_all
        return other

    def search(self, settings: Sequence[Setting]) -> SettingSearch:
        """Returns a search over these settings within the time budget."""
        return SettingSearch(settings, self.evaluate, self.has_time, least=self.least)

    def has_time(self, whole: bool) -> bool:
        """Returns whether there is time to evaluate another setting, with all layers if `whole`.

        Time for evaluating the best setting with all layers is reserved.
        """
        if not self.lists:
            return self.clock.left > self.seconds
        return self.clock.left > min(self.seconds_of_all, MOST_KEPT) + (0 if whole else self.seconds)

    @property
    def seconds_of_all(self) -> float:
        """Estimated CPU seconds to simulate a setting with all layers."""
        if self.longest_of_all:
            return self.longest_of_all
        layers = sum(self.lists.values())
        few = (2 * least_layers(self.lists) + 1) * len(self.lists)
        return self.seconds * max(1.0, 0.8 * layers / few) if few else self.seconds

    @cached_property
    def lists(self) -> dict[str, int]:
        """Number of layers by the name of a list of repeated layers."""
        with with_published_parts(self.config) as stated:
            return long_lists(stated.config)

    @cached_property
    def data(self) -> PlannedBatches:
        """Packs that each rank processes in a step of the unchanged run."""
        if self.given is not None:
            return PlannedBatches(self.given, "those that were given", 0, 0)
        with with_published_parts(self.config_of_degrees) as stated:
            return plan_batches(stated, ranks=self.ranks)

    @cached_property
    def config_of_degrees(self) -> Any:
        """Config of the run; if its degrees do not fit `ranks`, the weights are sharded over all ranks."""
        try:
            plan_degrees(self.config.model.config.parallelism, self.ranks)
        except WrongValueError:
            words = degree_words(self.config, self.ranks, 1, degrees_now(self.config, self.ranks).context)
            return self.read(changed_words({**(self.clips.words if self.clips else {}), **words})).tree
        return self.config

    @cached_property
    def settings(self) -> list[Setting]:
        """All settings that can be evaluated."""
        found = settings(
            self.config,
            ranks=self.ranks,
            batches=self.data.batches,
            limits=limits_of(self.loaded),
            additive=self.weighs_samples,
            per_machine=self.gpu.per_machine,
        )
        return found if self.clips is None else [with_clips(setting, self.clips) for setting in found]

    @cached_property
    def weighs_samples(self) -> bool:
        """Whether a step has the same training result however its samples are packed."""
        with with_published_parts(self.config_of_degrees) as stated:
            task = task_for(stated.config, self.ranks)
            pack = [sample for batch in self.data.batches for sample in batch]
            return bool(abs(task.weigh(pack * 2) - 2 * task.weigh(pack)) < 1e-6 * task.weigh(pack))

    @cached_property
    def pace(self) -> Gpu:
        """GPU whose speed is used: the given one or, if its speed is unknown, the smallest one with enough memory."""
        if self.gpu.peak_flops:
            return self.gpu
        return (holding(self.gpu.memory) or list(GPUS.values()))[0]

    def evaluate(self, setting: Setting, whole: bool) -> Tried:
        """Simulates a setting and returns memory and time.

        Args:
            setting: The setting.
            whole: Simulate all layers, as a plan does; False: few layers, extrapolated to all. A network without
                repeated layers is always simulated completely.
        """
        words = ", ".join([*setting.words, *[ENCODED] * setting.encoded]) or "baseline"
        self.told(f"{words}, with all layers" if whole else words)
        try:
            config = self.read(setting.words).tree
            config.check()
            memory = self.states_of(config)
            if memory.spare < 0:
                return Tried(setting, memory)
            whole = whole or not self.lists
            work = self.works.get((setting.words, whole)) or self.carry_out(config, setting, whole)
        except REFUSED as error:
            return Tried(setting, refused=first_line(error))
        self.works[setting.words, whole] = work
        seconds = step_seconds(work, self.pace, compiled=config.model.config.compile.enabled)
        assert seconds is not None
        memory = memory_verdict(work, self.gpu, encoded=setting.encoded)
        return Tried(setting, memory, work, seconds.total, whole=whole)

    def carry_out(self, config: Any, setting: Setting, whole: bool) -> StepWork:
        """Simulates a setting and returns the work of a step.

        Args:
            config: Config with the setting applied.
            setting: The setting.
            whole: Simulate all layers; False: few layers, on the same samples.
        """
        start, model = time.process_time(), config.model.config
        encoders = repr([getattr(model, name, None) for name in ("tokenizer", "text_encoder", "image_encoder")])
        shared: dict[str, Any] = {"phases": BESIDE, "encodings": self.encodings.setdefault(encoders, {})}
        with with_published_parts(config) as stated, quietly():
            batches = setting.packs.batches
            if self.given is None and (whole or self.data.num_samples is None):
                few = with_layers(stated.config, dict.fromkeys(self.lists, 1)) or stated.config  # built sooner
                batches = plan_batches(replace(stated, config=few), ranks=self.ranks).batches
            if whole:
                work = simulate(stated.config, batches, ranks=self.ranks, **shared)
                self.longest_of_all = max(self.longest_of_all, time.process_time() - start)
                if not self.lists:
                    self.seconds = time.process_time() - start
                return work
            work = short_work(stated.config, batches, ranks=self.ranks, lists=self.lists, **shared)
        self.seconds = time.process_time() - start
        return work

    def with_ranks(self, ranks: int) -> Fitting:
        """Returns an evaluator for another number of GPUs, with the same samples per GPU."""
        other = Fitting(self.read, ranks=ranks, gpu=self.gpu, batches=self.data.batches, told=self.told)
        other.encodings, other.lists, other.weighs_samples = self.encodings, self.lists, self.weighs_samples
        return other

    @property
    def smallest(self) -> dict[str, Setting]:
        """Setting that needs the least memory, for each change of the training result, the smallest change first.

        As few GPUs as possible share a pack.
        """
        return least_of(self.settings, lambda setting: -int(setting.knobs["context"]))

    @property
    def with_most_context(self) -> dict[str, Setting]:
        """Same as `smallest`, but the maximum number of GPUs share a pack."""
        return least_of(self.settings, lambda setting: int(setting.knobs["context"]))

    @property
    def least(self) -> Setting | None:
        """Setting with the smallest memory for weights, gradients and optimizer; None if no setting is valid."""
        found = [(self.states(setting), setting) for setting in reversed(self.with_most_context.values())]
        known = [(states.peak, setting) for states, setting in found if states is not None]
        return min(known, key=lambda item: item[0], default=(0, None))[1]

    def states(self, setting: Setting) -> MemoryVerdict | None:
        """Returns whether the training state fits, computed without simulation; None if the setting is rejected."""
        try:
            return self.states_of(self.read(setting.words).tree)
        except REFUSED:
            return None

    def states_of(self, config: Any) -> MemoryVerdict:
        """Returns the memory verdict for the training state only: weights, gradients and optimizer state."""
        return MemoryVerdict(self.gpu, sum(quick_plan(config, self.ranks).states.values()), self.ranks)


def least_of(settings: Sequence[Setting], first: Callable[[Setting], int]) -> dict[str, Setting]:
    """Returns a setting for each change of the training result, the smallest change first.

    It is the one with the fewest replicas, then with the most of `first`, then the slowest one.
    """
    found: dict[str, Setting] = {}
    for setting in sorted(settings, key=lambda setting: (-setting.replicas, first(setting), sum(setting.slower))):
        found[setting.learned.says] = setting
    return dict(sorted(found.items(), key=lambda item: item[1].learned.level))


def limits_of(loaded: Loaded) -> PackLimits:
    """Returns the limits of a pack and the config paths that set them."""
    data: Any = loaded.tree.dataloader_train

    def written(name: str) -> str:
        path = ("dataloader_train", name)
        steps = [step for step in loaded.sources.get(path, []) if isinstance(step, tuple)]
        return format_path(steps[-1] if steps else path)

    names = ("max_sequence_length", "max_samples_per_batch")
    tokens, samples = (getattr(data, name, None) for name in names)
    tokens_path, samples_path = map(written, names)
    return PackLimits(tokens, samples, tokens_path, samples_path, getattr(data, "max_sample_tokens", None) or 0)


def first_line(error: Exception) -> str:
    """Returns an exception message as one line, without its heading."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(line.strip() for line in lines[1:3] if line.strip()) if "mistake" in lines[0] else lines[0]
