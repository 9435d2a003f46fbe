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

CLEARLY_TOO_LARGE = 0.05
"""If a setting exceeds the memory by this fraction of its tensors' peak, all settings with the same memory-saving
options are ruled out: gradient checkpointing, smaller packs and context parallelism save far more than the others."""

FAR_TOO_LARGE = 0.25
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
        return setting.learned.level, self.seconds.middle, len(setting.words) + setting.encoded, self.memory.peak


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
        """Selected settings, best first.

        If there are none, only the best setting that fits, which may have been simulated with few layers.
        """
        chosen = self.found or sorted(self.fitting(self.settings), key=lambda tried: (not tried.whole, tried.order))[:1]
        return sorted(chosen, key=lambda tried: tried.order)

    def confirm(self) -> None:
        """Simulates the best setting so far with all layers; if it does not fit, the next one, until one fits."""
        while (chosen := self.best_so_far) and not chosen[0].whole:
            self.evaluate_now(chosen[0].setting, whole=True)

    def best_if_least_fits(self) -> list[Tried]:
        """Returns the best settings that fit, as `best`, but searches only if the setting with the least memory fits.

        Otherwise the list is empty. Raises OutOfTime.
        """
        return self.best() if self.least is not None and self.try_in_time(self.least).fits else []

    def best(self, wanted: int = 3) -> list[Tried]:
        """Searches and returns at most `wanted` settings that fit, best first.

        After the best setting, settings that only add memory-saving options to a selected one are considered last. If a
        setting fits, settings that change the training result more are not evaluated. If the setting with the least
        memory is far from fitting, the search ends.

        Raises:
            OutOfTime: If the time budget is exceeded before a setting was found. Later, the search ends without error.
        """
        found = self.found
        for level in sorted({setting.learned.level for setting in self.settings}):
            if self.is_hopeless():
                break
            here = [setting for setting in self.settings if setting.learned.level == level]
            for slower_forms in (False, True):
                while len(found) < wanted:
                    chosen = {tried.setting for tried in found}
                    try:
                        following = self.next_best(here, chosen, without_slower_forms=not slower_forms)
                    except OutOfTime:
                        if not found:
                            raise
                        return self.best_so_far
                    if following is None:
                        break
                    found.append(following)
            if found:
                break
        return self.best_so_far

    def is_hopeless(self) -> bool:
        """Returns whether even the setting with the least memory is far from fitting, so that the search can end.

        That setting is only evaluated after another one that changes the training result was far from fitting.
        """
        if self.least is None:
            return False
        if self.least not in self.known:
            changed = [tried for tried in self.known.values() if tried.setting.learned.level and tried.work is not None]
            if not any(exceeds_memory(tried, FAR_TOO_LARGE) for tried in changed):
                return False
            self.try_in_time(self.least)
        return exceeds_memory(self.known[self.least], FAR_TOO_LARGE)

    def next_best(self, here: Sequence[Setting], chosen: set[Setting], *, without_slower_forms: bool) -> Tried | None:
        """Searches the best setting in `here` that fits and is not in `chosen`; returns None if no setting does.

        `without_slower_forms`: ignore settings that only add memory-saving options to another one that fits.
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
            if not fitting:
                return None
            best = min(fitting, key=lambda tried: tried.order)
            if best.whole or self.try_in_time(best.setting, whole=bool(chosen) or None).fits:
                return self.known[best.setting]

    def undecided(self, here: Iterable[Setting], ignored: set[Setting]) -> list[Setting]:
        """Returns the settings in `here`, not yet evaluated, that may fit and may be faster than those that fit.

        Settings with the fewest memory-saving options are first. `ignored` are settings that fit, but with which other
        settings are not compared.
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
        """Evaluates a setting if there is time, else raises OutOfTime.

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
        were rejected.
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
        """Returns the simulated settings; without any, those whose weights and optimizer state are too large."""
        sized = [tried for tried in self.known.values() if tried.memory is not None]
        return [tried for tried in sized if tried.work is not None] or sized


def needed(tried: Tried) -> int:
    """Returns the GPU memory in bytes that an evaluated setting needs; its memory must be known."""
    assert tried.memory is not None
    return tried.memory.needed


def is_slower(setting: Setting, other: Setting) -> bool:
    """Returns whether a setting differs from another one only by additional memory-saving options, which cost time."""
    return setting != other and other.as_fast_as(setting)


def memory_key(tried: Tried) -> tuple[int, int]:
    """Returns a sort key of evaluated settings: least memory first; ties: most memory-saving options first."""
    return needed(tried), -sum(tried.setting.slower)


def exceeds_memory(tried: Tried, fraction: float) -> bool:
    """Returns whether a setting exceeds the GPU memory by more than `fraction` of the peak memory of its tensors."""
    memory = tried.memory
    return memory is not None and -memory.spare > fraction * memory.peak
