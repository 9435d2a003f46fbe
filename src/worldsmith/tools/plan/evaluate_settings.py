"""`Fitting`: finds what a run with other settings needs, by simulating its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.paths import format_path
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.gpus import GPUS, Gpu, holding
from worldsmith.planning.estimate_memory import MemoryVerdict, memory_verdict, plan_encoding
from worldsmith.planning.estimate_time import step_seconds
from worldsmith.planning.plan import quick_plan
from worldsmith.planning.simulation.short_run import (
    interpolate,
    min_simulated_layers,
    repeated_layer_lists,
    short_work,
    with_layers,
)
from worldsmith.planning.simulation.simulate import Encodings, simulate
from worldsmith.planning.simulation_inputs import (
    PlannedBatches,
    plan_batches,
    quietly,
    substitute_missing_components,
    task_for,
)
from worldsmith.planning.work import BESIDE, StepWork
from worldsmith.tools.plan.packs import PackLimits
from worldsmith.tools.plan.setting_search import SettingSearch, Tried
from worldsmith.tools.plan.settings import (
    ENCODE_FIRST,
    RECOMPUTE,
    Learned,
    Setting,
    degree_overrides,
    degrees_now,
    format_overrides,
    settings,
    with_clips,
)

REFUSED = (UserError, ValueError, NotImplementedError)
"""Exceptions which show that the run does not support a setting, so that the setting is rejected."""
MAX_RESERVED = 22.0
"""Max CPU seconds reserved for simulating the best setting with all layers."""


class Clock:
    """Clock that measures the CPU time of a search and compares it with a budget."""

    def __init__(self, budget: float = math.inf, budget_to_find_one: float = 0.0) -> None:
        """Starts the clock.

        Args:
            budget: Max CPU time in seconds after the first setting that fits.
            budget_to_find_one: Max CPU time in seconds, if larger, until a setting fits.
        """
        self.budget, self.budget_to_find_one, self.start = budget, budget_to_find_one, time.process_time()
        self.found_at = math.inf
        """CPU seconds from the start to the first setting that fits; infinite: none so far."""

    @property
    def spent(self) -> float:
        """CPU seconds since the clock was started."""
        return time.process_time() - self.start

    @property
    def left(self) -> float:
        """CPU seconds that are left of the budget."""
        return self.limit - self.spent

    @property
    def limit(self) -> float:
        """Max CPU time of the search in seconds, as known now."""
        return min(self.found_at + self.budget, max(self.budget, self.budget_to_find_one))


class Fitting:
    """Estimates memory and step time of a run with changed settings, such as gradient checkpointing, by simulation.

    With every setting, a step has the same samples as in the unchanged run: only packed batches (packs) are split or
    merged.
    """

    def __init__(
        self,
        read: Callable[[Sequence[str]], Loaded],
        *,
        ranks: int,
        gpu: Gpu,
        batches: Sequence[Any] | None = None,
        show_progress: Callable[[str], None] = lambda text: None,
        clock: Clock | None = None,
        clips: Learned | None = None,
    ) -> None:
        """Loads the run; simulates no step yet.

        Args:
            read: Called with a list of overrides; returns the run loaded with them.
            ranks: Number of GPUs.
            gpu: Type of the GPUs.
            batches: Packed batches (lists of samples) of a rank in a step; None: planned from the data of the run.
            show_progress: Called with a description of each setting before it is evaluated, to show the progress.
            clock: Clock with the CPU time budget of the search; None: unlimited.
            clips: Smaller clips, which are applied to all settings; None: the clips of the run.
        """
        self.read, self.ranks, self.gpu, self.given, self.show_progress = read, ranks, gpu, batches, show_progress
        self.clock, self.clips = clock or Clock(), clips
        self.loaded = read(() if clips is None else format_overrides(clips.words))
        self.config: Any = self.loaded.tree
        self.works: dict[tuple[tuple[str, ...], bool], StepWork] = {}
        self.uniform: dict[tuple[str, ...], StepWork] = {}
        """Simulations with few layers, all of which have the same mode of gradient checkpointing, by overrides."""
        self.encodings: dict[str, Encodings] = {}
        self.seconds = 0.0
        """CPU seconds of the last simulation with few layers."""
        self.longest_of_all = 0.0
        """Max CPU seconds of a simulation with all layers so far."""

    def with_clips(self, clips: Learned) -> Fitting:
        """Returns an evaluator of the same run whose clips have the sizes in `clips`.

        It shares the clock of this evaluator and starts with its measured simulation times.
        """
        other = Fitting(
            self.read, ranks=self.ranks, gpu=self.gpu, show_progress=self.show_progress, clock=self.clock, clips=clips
        )
        other.seconds, other.longest_of_all = self.seconds, self.longest_of_all
        return other

    def search(self, settings: Sequence[Setting]) -> SettingSearch:
        """Returns a search, not yet started, for the best of `settings`; it uses this evaluator and its time budget."""
        return SettingSearch(settings, self.evaluate, self.has_time, least=self.least)

    def has_time(self, whole: bool) -> bool:
        """Returns whether the rest of the CPU time budget suffices to evaluate one more setting.

        `whole`: the setting is simulated with all layers (True) or few (False). With False, the time to simulate the
        best setting with all layers afterwards is reserved.
        """
        if not self.lists:
            return self.clock.left > self.seconds
        return self.clock.left > min(self.seconds_of_all, MAX_RESERVED) + (0 if whole else self.seconds)

    @property
    def seconds_of_all(self) -> float:
        """Estimated CPU seconds to simulate a setting with all layers."""
        if self.longest_of_all:
            return self.longest_of_all
        layers = sum(self.lists.values())
        few = (2 * min_simulated_layers(self.lists) + 1) * len(self.lists)
        return self.seconds * max(1.0, 0.8 * layers / few) if few else self.seconds

    @cached_property
    def lists(self) -> dict[str, int]:
        """Number of layers in each list of repeated layers of the network, by the name of the list."""
        with substitute_missing_components(self.config) as stated:
            return repeated_layer_lists(stated.config)

    @cached_property
    def data(self) -> PlannedBatches:
        """Packed batches that a rank processes in one step of the unchanged run."""
        if self.given is not None:
            return PlannedBatches(self.given, "those that were given", 0, 0)
        with substitute_missing_components(self.config_of_degrees) as stated:
            return plan_batches(stated, ranks=self.ranks)

    @cached_property
    def config_of_degrees(self) -> Any:
        """Config of the run if its parallelism degrees fit `ranks`.

        Otherwise, a config of the run that shards the weights over all ranks.
        """
        try:
            plan_degrees(self.config.model.config.parallelism, self.ranks)
        except WrongValueError:
            words = degree_overrides(self.config, self.ranks, 1, degrees_now(self.config, self.ranks).context)
            return self.read(format_overrides({**(self.clips.words if self.clips else {}), **words})).tree
        return self.config

    @cached_property
    def settings(self) -> list[Setting]:
        """All combinations of options that can be evaluated for the run."""
        found = settings(
            self.config,
            ranks=self.ranks,
            batches=self.data.batches,
            limits=limits_of(self.loaded),
            additive=self.weighs_samples,
            per_machine=self.gpu.per_machine,
            depth=sum(self.lists.values()),
        )
        return found if self.clips is None else [with_clips(setting, self.clips) for setting in found]

    @cached_property
    def weighs_samples(self) -> bool:
        """Whether the loss weight of a sample does not depend on its packed batch.

        If True, the samples of a step can be packed differently without changing the training result.
        """
        with substitute_missing_components(self.config_of_degrees) as stated:
            task = task_for(stated.config, self.ranks)
            pack = [sample for batch in self.data.batches for sample in batch]
            return bool(abs(task.weigh(pack * 2) - 2 * task.weigh(pack)) < 1e-6 * task.weigh(pack))

    @cached_property
    def pace(self) -> Gpu:
        """GPU type whose speed is used: `gpu` or, if its speed is unknown, the smallest type with enough memory."""
        if self.gpu.peak_flops:
            return self.gpu
        return (holding(self.gpu.memory) or list(GPUS.values()))[0]

    def evaluate(self, setting: Setting, whole: bool) -> Tried:
        """Simulates a step with a setting and returns its memory and time, or the reason why the setting was rejected.

        If weights, gradients and optimizer state already exceed the GPU memory, returns only their memory.

        Args:
            setting: The setting.
            whole: Simulate all layers, as `worldsmith plan` does; False: few layers, extrapolated to all. A network
                without repeated layers is always simulated completely.
        """
        words = ", ".join(setting.words) or "baseline"
        self.show_progress(f"{words}, with all layers" if whole else words)
        try:
            config = self.read(setting.words).tree
            config.check()
            memory = self.states_of(config)
            if memory.spare < 0:
                return Tried(setting, memory)
            whole = whole or not self.lists
            key = tuple(word for word in setting.words if not word.startswith(ENCODE_FIRST)), whole
            work = self.works.get(key) or self.simulate_setting(config, setting, whole)
        except REFUSED as error:
            return Tried(setting, refused=first_line(error))
        self.works[key] = work
        seconds = step_seconds(work, self.pace, compiled=config.model.config.compile.enabled)
        assert seconds is not None
        work, first = plan_encoding(config, work, self.gpu, states=memory.peak)
        tried = Tried(setting, memory_verdict(work, self.gpu), work, seconds.total, encodes_first=first, whole=whole)
        if tried.fits and setting != self.least:  # `least` may be evaluated only to see whether the search is hopeless
            self.clock.found_at = min(self.clock.found_at, self.clock.spent)
        return tried

    def simulate_setting(self, config: Any, setting: Setting, whole: bool) -> StepWork:
        """Simulates a step with a setting and returns its operations and memory.

        Args:
            config: Config with the setting applied.
            setting: The setting.
            whole: Simulate all layers; False: few layers, extrapolated to all.
        """
        start, model = time.process_time(), config.model.config
        encoders = repr([getattr(model, name, None) for name in ("tokenizer", "text_encoder", "image_encoder")])
        shared: dict[str, Any] = {"phases": BESIDE, "encodings": self.encodings.setdefault(encoders, {})}
        with substitute_missing_components(config) as stated, quietly():
            batches = setting.packs.batches
            if self.given is None and (whole or self.data.num_samples is None):
                few = with_layers(stated.config, dict.fromkeys(self.lists, 1)) or stated.config  # faster to build
                batches = plan_batches(replace(stated, config=few), ranks=self.ranks).batches
            if whole:
                work = simulate(stated.config, batches, ranks=self.ranks, **shared)
                self.longest_of_all = max(self.longest_of_all, time.process_time() - start)
                if not self.lists:
                    self.seconds = time.process_time() - start
                return work
            recompute, works = model.activation_checkpointing, []
            others = [word for word in setting.words if not word.startswith((RECOMPUTE, ENCODE_FIRST))]
            fraction = recompute.layer_fraction
            modes = (recompute.other_layers, recompute.mode) if fraction < 1 else (recompute.mode,)
            for mode in modes:
                matmuls = recompute.save_every_second_matmul and mode == "selective"
                offload = recompute.offload and mode != "none"
                key = (*others, mode, str(matmuls), str(offload))
                if key not in self.uniform:
                    values: Any = {"mode": mode, "save_every_second_matmul": matmuls, "offload": offload}
                    checkpointing = replace(recompute, **values, layer_fraction=1.0, other_layers="none")
                    spec = replace(stated.config.model.config, activation_checkpointing=checkpointing)
                    uniform = replace(stated.config, model=replace(stated.config.model, config=spec))
                    self.uniform[key] = short_work(uniform, batches, ranks=self.ranks, lists=self.lists, **shared)
                works.append(self.uniform[key])
            work = works[0] if fraction == 1 else interpolate(works[0], works[1], fraction)
        self.seconds = time.process_time() - start
        return work

    def with_ranks(self, ranks: int) -> Fitting:
        """Returns an evaluator of the run on `ranks` GPUs, with the same packed batches per GPU and no time limit."""
        other = Fitting(
            self.read, ranks=ranks, gpu=self.gpu, batches=self.data.batches, show_progress=self.show_progress
        )
        other.encodings, other.lists, other.weighs_samples = self.encodings, self.lists, self.weighs_samples
        return other

    @property
    def smallest(self) -> dict[str, Setting]:
        """Setting that probably needs the least memory for each change of the training result, by its description.

        The smallest change is first. The tokens of a packed batch are sharded over as few GPUs as possible.
        """
        return least_of(self.settings, lambda setting: -int(setting.options["context"]))

    @property
    def with_most_context(self) -> dict[str, Setting]:
        """Setting with probably the least memory, by its effect on what the model learns (description -> setting).

        The key describes the effect as text, such as "nothing", "no EMA weights" or "clips of 61 frames instead of
        121"; the smallest effect is first. Among settings with equally few replicas of the weights, the one with the
        largest context-parallel degree is chosen: the tokens of a packed batch are sharded over as many GPUs as
        possible.
        """
        return least_of(self.settings, lambda setting: int(setting.options["context"]))

    @cached_property
    def least(self) -> Setting | None:
        """Setting with the smallest weights, gradients and optimizer state; None if no setting is valid."""
        found = [(self.states(setting), setting) for setting in reversed(self.with_most_context.values())]
        known = [(states.peak, setting) for states, setting in found if states is not None]
        return min(known, key=lambda item: item[0], default=(0, None))[1]

    def states(self, setting: Setting) -> MemoryVerdict | None:
        """Returns the memory of weights, gradients and optimizer state with a setting, compared with the GPU memory.

        The memory is computed without a simulation. None if the run does not support the setting.
        """
        try:
            return self.states_of(self.read(setting.words).tree)
        except REFUSED:
            return None

    def states_of(self, config: Any) -> MemoryVerdict:
        """Returns the memory of weights, gradients and optimizer state of a config, compared with the GPU memory."""
        return MemoryVerdict(self.gpu, sum(quick_plan(config, self.ranks).states.values()), self.ranks)


def least_of(settings: Sequence[Setting], priority: Callable[[Setting], int]) -> dict[str, Setting]:
    """Returns the setting that needs the least memory for each change of the training result, by its description.

    The smallest change is first. No memory is computed: the setting with the fewest replicas needs the least memory,
    among equals the one with the largest result of the function `priority`, then the one with the most memory-saving
    options.
    """
    found: dict[str, Setting] = {}
    for setting in sorted(settings, key=lambda setting: (-setting.replicas, priority(setting), sum(setting.slower))):
        found[setting.learned.says] = setting
    return dict(sorted(found.items(), key=lambda item: item[1].learned.level))


def limits_of(loaded: Loaded) -> PackLimits:
    """Returns the max tokens and samples of a packed batch in a run's config, and the config paths that set them."""
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
    """Returns the message of an exception as one line; of a list of mistakes in a config, only the first mistake."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(line.strip() for line in lines[1:3] if line.strip()) if "mistake" in lines[0] else lines[0]
