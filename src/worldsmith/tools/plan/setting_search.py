"""Finds the best of many settings while simulating as few of them as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from worldsmith.planning.estimate_memory import MemoryVerdict
from worldsmith.planning.estimate_time import EstimateRange
from worldsmith.planning.work import StepWork
from worldsmith.tools.plan.settings import Setting

CLEARLY_TOO_LARGE = 0.02
"""If a setting exceeds the memory by this fraction of its tensors' peak, all settings with the same memory-saving
options are ruled out: gradient checkpointing, smaller packs and context parallelism save far more than the others."""

FIRST_TRIES = 2
"""Settings with the most memory-saving options that are evaluated first, until one fits: if none does, they often rule
out all others, and if one does, the search has a result however little time is left."""

FAR_TOO_LARGE = 0.05
"""If the setting with the smallest weights and optimizer state exceeds the memory by this fraction of its tensors'
peak, no other setting fits: options that change what is trained hardly change the activations."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Evaluated setting: memory, step time, or the reason why it was rejected."""

    setting: Setting
    memory: MemoryVerdict | None = None
    """Needed memory, compared with the GPU memory; None: the setting was rejected."""
    work: StepWork | None = None
    """Simulated operations; None: not simulated, because weights and optimizer state already exceed the memory."""
    seconds: EstimateRange | None = None
    """Estimated seconds per step."""
    refused: str = ""
    encodes_first: bool = False
    """Whether the run encodes its samples before the network gets memory."""
    whole: bool = False
    """Whether all layers and phases were simulated."""

    @property
    def fits(self) -> bool:
        """Whether the setting was simulated and fits into the GPU memory."""
        return self.memory is not None and self.work is not None and self.memory.spare >= 0

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key, best first: smallest change of the training result, fastest, fewest overrides, least memory."""
        assert self.memory is not None
        assert self.seconds is not None
        setting = self.setting
        return setting.learned.level, self.seconds.middle, len(setting.words), self.memory.peak


Evaluate = Callable[[Setting, bool], Tried]
"""Function that simulates a setting; the second argument is True for all layers and phases, False for few layers."""


class OutOfTime(Exception):  # noqa: N818 (no error: it ends a search)
    """Exception that ends a search because the time budget does not suffice to evaluate another setting."""


class SettingSearch:
    """Search for the fastest settings that fit into the GPU memory and change the training result the least.

    Two rules avoid most evaluations. A setting with more memory-saving options than one that fits is slower, and a
    setting with fewer memory-saving options than one that clearly does not fit does not fit either. Selected settings
    are simulated with all layers.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        evaluate: Evaluate,
        has_time: Callable[[bool], bool] = lambda whole: True,
        *,
        least: Setting | None = None,
    ) -> None:
        """Prepares the search; evaluates no setting yet.

        Args:
            settings: Settings to search.
            evaluate: Called with (setting, simulate all layers); returns the evaluated setting.
            has_time: Returns whether there is time to evaluate another setting, with all layers (True) or few (False).
            least: Setting that probably needs the least memory; None: unknown.
        """
        self.settings, self.evaluate, self.has_time, self.least = settings, evaluate, has_time, least
        self.known: dict[Setting, Tried] = {}
        self.found: list[Tried] = []
        """Selected settings that were simulated with all layers."""
        self.stopped: Literal["", "time"] = ""
        """"time" if the time budget ended the search before all settings that may be better were evaluated; else ""."""

    @property
    def best_so_far(self) -> list[Tried]:
        """Selected settings, which fit with all layers, best first.

        Before one is selected: the best setting that fits, which may have been simulated with few layers, or an empty
        list.
        """
        chosen = self.found or sorted(self.fitting(self.settings), key=lambda tried: (not tried.whole, tried.order))[:1]
        return sorted(chosen, key=lambda tried: tried.order)

    def confirm(self) -> None:
        """Simulates the best setting so far with all layers; if it does not fit, the next one, until one fits."""
        while (chosen := self.best_so_far) and not chosen[0].whole:
            self.evaluate_now(chosen[0].setting, whole=True)

    def best_if_least_fits(self) -> list[Tried]:
        """Returns the result of `best` if the setting `least` fits; otherwise returns an empty list without a search.

        Raises OutOfTime.
        """
        return self.best() if self.least is not None and self.try_in_time(self.least).fits else []

    def best(self, wanted: int = 3) -> list[Tried]:
        """Searches and returns at most `wanted` settings that fit, best first.

        Settings with the smallest change of the training result are searched first. As soon as one fits, settings with
        larger changes are not evaluated. Settings that only add memory-saving options to a fitting one are considered
        last. Settings with offload are evaluated if no other fits; else only those that differ from the best one in
        offload and gradient checkpointing. The search also ends if the setting `least` is far from fitting.

        Raises:
            OutOfTime: If the time budget is exceeded before a setting was found. Later, the search ends without error.
        """
        found = self.found
        for level in sorted({setting.learned.level for setting in self.settings}):
            if self.is_hopeless():
                break
            here = [setting for setting in self.settings if setting.learned.level == level]
            others = [setting for setting in here if not setting.offloads]
            offloading = [setting for setting in here if setting.offloads]
            try:
                self.find(others, wanted)
                if not found:
                    self.find(offloading, wanted)
                elif offloading:
                    self.replace_recomputation(offloading)
            except OutOfTime:
                if not found:
                    raise
                return self.best_so_far
            if found:
                break
        return self.best_so_far[:wanted]

    def find(self, here: Sequence[Setting], wanted: int) -> None:
        """Appends the best settings in `here` that fit to `found`, until it has `wanted` items. Raises OutOfTime."""
        for _ in range(FIRST_TRIES):
            undecided = self.undecided(here, set())
            if not undecided or self.fitting(here):
                break
            self.try_in_time(undecided[-1])
        for slower_forms in (False, True):
            while len(self.found) < wanted:
                chosen = {tried.setting for tried in self.found}
                following = self.next_best(here, chosen, without_slower_forms=not slower_forms)
                if following is None:
                    break
                self.found.append(following)

    def replace_recomputation(self, offloading: Sequence[Setting]) -> None:
        """Appends a faster setting than the best one to `found` if one with offload recomputes less and fits.

        `offloading`: settings with offload that change the training result as the best one. Raises OutOfTime.
        """
        best = self.best_so_far[0]
        options = {**best.setting.options, "recomputation": "", "offload": ""}
        here = [s for s in offloading if {**s.options, "recomputation": "", "offload": ""} == options]
        here = [setting for setting in here if not is_slower(setting, best.setting)]
        following = self.next_best(here, {best.setting}, without_slower_forms=True, faster_than=best)
        if following is not None:
            self.found.append(following)

    def is_hopeless(self) -> bool:
        """Returns whether even the setting `least` is far from fitting, so that the search can end.

        To save time, `least` is evaluated only after a simulated setting was far from fitting; before that, the result
        is False. Raises OutOfTime.
        """
        if self.least is None:
            return False
        if self.least not in self.known:
            simulated = [tried for tried in self.known.values() if tried.work is not None]
            if not any(exceeds_memory(tried, FAR_TOO_LARGE) for tried in simulated):
                return False
            self.try_in_time(self.least)
        return exceeds_memory(self.known[self.least], FAR_TOO_LARGE)

    def next_best(
        self,
        here: Sequence[Setting],
        chosen: set[Setting],
        *,
        without_slower_forms: bool,
        faster_than: Tried | None = None,
    ) -> Tried | None:
        """Returns the best setting in `here` that fits and is not in `chosen`.

        Evaluates as few settings as possible. None if no such setting fits. `without_slower_forms`: ignore settings
        that only add memory-saving options to a setting that fits; `faster_than`: ignore slower ones. Raises OutOfTime.
        """
        while True:
            ignored = set() if without_slower_forms else chosen
            open_ = self.undecided(here, ignored)
            while open_:
                if not self.has_time(False) and any(t.setting not in chosen for t in self.fitting(here)):
                    self.stopped = "time"  # one setting can still be simulated with all layers
                    break
                self.try_in_time(open_[len(open_) // 2])
                open_ = self.undecided(open_, ignored)
            fitting = [tried for tried in self.fitting(here) if tried.setting not in chosen]
            if without_slower_forms:
                before = [tried.setting for tried in self.fitting(here)]
                fitting = [t for t in fitting if not any(is_slower(t.setting, other) for other in before)]
            if faster_than is not None:
                fitting = [tried for tried in fitting if tried.order < faster_than.order]
            if not fitting:
                return None
            best = min(fitting, key=lambda tried: tried.order)
            if best.whole or self.try_in_time(best.setting, whole=bool(chosen) or None).fits:
                return self.known[best.setting]

    def undecided(self, here: Iterable[Setting], ignored: set[Setting]) -> list[Setting]:
        """Returns the settings in `here` that are not evaluated yet and not ruled out by evaluated settings.

        A setting is ruled out if it only adds memory-saving options to a setting that fits and is not in `ignored`. A
        setting that needs at least as much memory as one that clearly does not fit is ruled out too. Settings with the
        fewest memory-saving options are first.
        """
        fitting = [tried.setting for tried in self.known.values() if tried.fits and tried.setting not in ignored]
        lacking = [tried.setting for tried in self.known.values() if exceeds_memory(tried, CLEARLY_TOO_LARGE)]
        left = [
            setting
            for setting in here
            if setting not in self.known
            and not any(is_slower(setting, other) for other in fitting)
            and not any(setting.as_large_as(other) for other in lacking)
        ]
        return sorted(left, key=lambda setting: sum(setting.slower))

    def untried(self) -> list[Setting]:
        """Returns the settings that were not evaluated and may be better than the selected ones."""
        most = min((tried.setting.learned.level for tried in self.best_so_far), default=math.inf)
        return self.undecided([setting for setting in self.settings if setting.learned.level <= most], set())

    def fitting(self, here: Iterable[Setting]) -> list[Tried]:
        """Returns the settings in `here` that were evaluated and fit."""
        return [self.known[setting] for setting in here if setting in self.known and self.known[setting].fits]

    def try_in_time(self, setting: Setting, *, whole: bool | None = False) -> Tried:
        """Evaluates a setting and returns the result; raises OutOfTime if the time budget does not suffice.

        `whole`: simulate all layers (True) or few layers (False); None: all layers, even if there is no time.
        """
        if whole is not None and not self.has_time(whole):
            self.stopped = "time"
            raise OutOfTime
        return self.evaluate_now(setting, whole=whole is not False)

    def evaluate_now(self, setting: Setting, *, whole: bool = False) -> Tried:
        """Evaluates a setting, stores the result in `known` and returns it; `whole`: simulate all layers."""
        self.known[setting] = self.evaluate(setting, whole)
        return self.known[setting]

    def nearest(self) -> Tried | None:
        """Returns the setting that needs the least memory, for a search in which no setting fits.

        If several settings need equal memory, it is the one with the most memory-saving options. None if all settings
        were rejected. May evaluate more settings and raise OutOfTime.
        """
        if self.least in self.known and exceeds_memory(self.known[self.least], FAR_TOO_LARGE):
            return min(self.needs(), key=memory_key, default=None)
        smallest: dict[tuple[object, ...], Setting] = {}
        for setting in self.settings:
            key = (setting.learned.says, *setting.learned.words, setting.replicas)
            if key not in smallest or sum(setting.slower) > sum(smallest[key].slower):
                smallest[key] = setting
        for setting in smallest.values():
            if setting not in self.known:
                self.try_in_time(setting)
        return min(self.needs(), key=memory_key, default=None)

    def needs(self) -> list[Tried]:
        """Returns the settings that were simulated, whether they fit or not.

        If no setting was simulated, returns those whose weights and optimizer state alone exceed the GPU memory.
        """
        sized = [tried for tried in self.known.values() if tried.memory is not None]
        return [tried for tried in sized if tried.work is not None] or sized


def needed(tried: Tried) -> int:
    """Returns the GPU memory in bytes that an evaluated setting needs; its memory must be known."""
    assert tried.memory is not None
    return tried.memory.needed


def is_slower(setting: Setting, other: Setting) -> bool:
    """Returns whether `setting` differs from `other` only by additional memory-saving options, which cost time."""
    return setting != other and other.as_fast_as(setting)


def memory_key(tried: Tried) -> tuple[int, int]:
    """Returns a sort key of evaluated settings: least memory first; ties: most memory-saving options first."""
    return needed(tried), -sum(tried.setting.slower)


def exceeds_memory(tried: Tried, fraction: float) -> bool:
    """Returns whether a setting exceeds the GPU memory by more than `fraction` of its tensors' peak memory.

    False if the setting was rejected.
    """
    memory = tried.memory
    return memory is not None and -memory.spare > fraction * memory.peak
