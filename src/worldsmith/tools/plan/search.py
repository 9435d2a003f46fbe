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

SURELY = 0.05
"""If a setting lacks this fraction of its tensors' peak, all settings with the same memory-saving options are ruled
out: gradient checkpointing, smaller packs and context parallelism save far more than the other options add."""

FAR = 0.25
"""If the setting with the smallest weights and optimizer state lacks this fraction of its tensors' peak, no other
setting fits: options that change what is trained hardly change activations."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Result of evaluating a setting."""

    setting: Setting
    memory: MemoryVerdict | None = None
    """Memory verdict; None: the setting was rejected."""
    work: StepWork | None = None
    """Simulated operations; None: weights and optimizer state alone exceed the memory."""
    seconds: EstimateRange | None = None
    """Estimated seconds per step."""
    refused: str = ""
    whole: bool = False
    """Whether all layers and phases were simulated."""

    @property
    def fits(self) -> bool:
        """Whether the setting was simulated and fits."""
        return self.memory is not None and self.work is not None and self.memory.spare >= 0

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key, best first: smallest change of the training result, fastest, fewest overrides, least memory."""
        assert self.memory is not None
        assert self.seconds is not None
        setting = self.setting
        return setting.learned.level, self.seconds.middle, len(setting.words) + setting.encoded, self.memory.peak


Evaluate = Callable[[Setting, bool], Tried]
"""Simulates a setting; True: with all layers and all phases."""


class OutOfTime(Exception):  # noqa: N818 (no error: it ends a search)
    """Raised if there is no time to evaluate another setting."""


class SettingSearch:
    """Search that begins with settings that do not change the training result and ends with those that change it most.

    Two rules save most evaluations. A setting that saves more memory than a fitting one is slower, and a setting that
    keeps more than one that clearly does not fit does not fit either. Selected settings were simulated with all layers.
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
            settings: The settings.
            evaluate: Evaluates a setting, see `Evaluate`.
            has_time: Returns whether there is time to evaluate another setting, with all layers (True) or few (False).
            least: Setting that probably needs the least memory; None: unknown.
        """
        self.settings, self.evaluate, self.has_time, self.least = settings, evaluate, has_time, least
        self.known: dict[Setting, Tried] = {}
        self.found: list[Tried] = []
        """Selected settings that were simulated with all layers."""
        self.stopped: Literal["", "time"] = ""
        """Whether time was too short for all settings that may be better than the result."""

    @property
    def best_so_far(self) -> list[Tried]:
        """Selected settings, best first; if there are none, the best fitting one, perhaps simulated with few layers."""
        chosen = self.found or sorted(self.fitting(self.settings), key=lambda tried: (not tried.whole, tried.order))[:1]
        return sorted(chosen, key=lambda tried: tried.order)

    def confirm(self) -> None:
        """Simulates the best setting so far with all layers, and then the next one, until one fits."""
        while (chosen := self.best_so_far) and not chosen[0].whole:
            self.try_(chosen[0].setting, whole=True)

    def best_if_least_fits(self) -> list[Tried]:
        """Returns `best()` if the setting that needs the least memory fits, else an empty list. Raises OutOfTime."""
        return self.best() if self.least is not None and self.try_in_time(self.least).fits else []

    def best(self, wanted: int = 3) -> list[Tried]:
        """Returns at most `wanted` fitting settings, best first.

        After the best setting, settings that are not merely slower forms of a selected one have priority over slower
        forms. If a setting fits, settings that change the training result more are not evaluated. If even `least` is
        far from fitting, the search ends.

        Raises:
            OutOfTime: If the time is over before a setting was found; later, the search only ends.
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
        """Returns whether even `least` is far from fitting.

        It is evaluated only after another setting that changes the training result was far from fitting, too.
        """
        if self.least is None:
            return False
        if self.least not in self.known:
            changed = [tried for tried in self.known.values() if tried.setting.learned.level and tried.work is not None]
            if not any(lacks(tried, FAR) for tried in changed):
                return False
            self.try_in_time(self.least)
        return lacks(self.known[self.least], FAR)

    def next_best(self, here: Sequence[Setting], chosen: set[Setting], *, without_slower_forms: bool) -> Tried | None:
        """Returns the best fitting setting in `here` that is not in `chosen`, else None."""
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
        """Returns settings that may fit and be faster than the fitting ones, the largest memory first."""
        fitting = [tried.setting for tried in self.known.values() if tried.fits and tried.setting not in ignored]
        lacking = [tried.setting for tried in self.known.values() if lacks(tried, SURELY)]
        left = [
            setting
            for setting in here
            if setting not in self.known
            and not any(is_slower(setting, other) for other in fitting)
            and not any(setting.as_large_as(other) for other in lacking)
        ]
        return sorted(left, key=lambda setting: sum(setting.slower))

    def untried(self) -> list[Setting]:
        """Returns the settings that may be better than the selected ones and were not evaluated."""
        most = min((tried.setting.learned.level for tried in self.best_so_far), default=math.inf)
        return self.undecided([setting for setting in self.settings if setting.learned.level <= most], set())

    def fitting(self, here: Iterable[Setting]) -> list[Tried]:
        """Returns the evaluated settings in `here` that fit."""
        return [self.known[setting] for setting in here if setting in self.known and self.known[setting].fits]

    def try_in_time(self, setting: Setting, *, whole: bool | None = False) -> Tried:
        """Evaluates a setting. Raises OutOfTime if there is no time.

        `whole`: simulate all layers; None: all layers, regardless of the time.
        """
        if whole is not None and not self.has_time(whole):
            self.stopped = "time"
            raise OutOfTime
        return self.try_(setting, whole=whole is not False)

    def try_(self, setting: Setting, *, whole: bool = False) -> Tried:
        """Evaluates a setting and stores the result."""
        self.known[setting] = self.evaluate(setting, whole)
        return self.known[setting]

    def nearest(self) -> Tried | None:
        """Returns the setting that needs the least memory although it does not fit; None if all were rejected.

        If only the training state is known, which is equal for many settings, it is the one with most memory-saving
        options.
        """
        if self.least in self.known and lacks(self.known[self.least], FAR):
            return min(self.needs(), key=by_need, default=None)
        smallest: dict[tuple[object, ...], Setting] = {}
        for setting in self.settings:
            key = (setting.learned.says, *setting.learned.words, setting.replicas)
            if key not in smallest or sum(setting.slower) > sum(smallest[key].slower):
                smallest[key] = setting
        for setting in smallest.values():
            if setting not in self.known:
                self.try_in_time(setting)
        return min(self.needs(), key=by_need, default=None)

    def needs(self) -> list[Tried]:
        """Returns the settings with known memory; without simulated ones, those known to be too large."""
        sized = [tried for tried in self.known.values() if tried.memory is not None]
        return [tried for tried in sized if tried.work is not None] or sized


def needed(tried: Tried) -> int:
    """Returns the bytes of GPU memory that a setting with known memory needs."""
    assert tried.memory is not None
    return tried.memory.needed


def is_slower(setting: Setting, other: Setting) -> bool:
    """Returns whether a setting is a slower form of another one."""
    return setting != other and other.as_fast_as(setting)


def by_need(tried: Tried) -> tuple[int, int]:
    """Sort key: least memory first; ties: most memory-saving options first."""
    return needed(tried), -sum(tried.setting.slower)


def lacks(tried: Tried, fraction: float) -> bool:
    """Returns whether the lacking memory exceeds this fraction of the peak of the tensors."""
    memory = tried.memory
    return memory is not None and -memory.spare > fraction * memory.peak
