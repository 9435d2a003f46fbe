"""The best of many settings, of which as few as possible are carried out."""

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
        return self.memory is not None and self.work is not None and self.memory.spare >= 0

    @property
    def order(self) -> tuple[float, ...]:
        """The best first: the least change of what is learned, the fastest, the fewest words, the smallest."""
        assert self.memory is not None
        assert self.seconds is not None
        setting = self.setting
        return setting.learned.level, self.seconds.middle, len(setting.words) + setting.encoded, self.memory.peak


Evaluate = Callable[[Setting, bool], Tried]
"""Simulates a setting; True: with all layers and all phases."""


class OutOfTime(Exception):  # noqa: N818 (no error: it ends a search)
    """There is no time for a further setting."""


class SettingSearch:
    """Goes from what changes nothing of what is learned to what changes most.

    Two things save most of the trials: a setting that does more than one that fits is slower, and one that keeps more
    than one that surely does not fit does not fit. What is chosen was carried out with all layers.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        evaluate: Evaluate,
        has_time: Callable[[bool], bool] = lambda whole: True,
        *,
        least: Setting | None = None,
    ) -> None:
        """`has_time`: whether there is time to try a further setting, with all layers (True) or with few. `least`: the
        setting that probably needs least memory of all, where it is known."""
        self.settings, self.evaluate, self.has_time, self.least = settings, evaluate, has_time, least
        self.known: dict[Setting, Tried] = {}
        self.found: list[Tried] = []
        """Selected settings that were simulated with all layers."""
        self.stopped: Literal["", "time"] = ""
        """Whether time was too short for all settings that may be better than the result."""

    @property
    def best_so_far(self) -> list[Tried]:
        """Returns the selected settings; before there are any, the best fitting ones, possibly simulated with few
        layers."""
        chosen = self.found or sorted(self.fitting(self.settings), key=lambda tried: (not tried.whole, tried.order))[:1]
        return sorted(chosen, key=lambda tried: tried.order)

    def confirm(self) -> None:
        """Carries the best so far out with all layers where that was not done, until one fits."""
        while (chosen := self.best_so_far) and not chosen[0].whole:
            self.try_(chosen[0].setting, whole=True)

    def best_if_least_fits(self) -> list[Tried]:
        """Returns the best, if the setting that needs least memory fits: else it is not looked for.

        Raises OutOfTime.
        """
        return self.best() if self.least is not None and self.try_in_time(self.least).fits else []

    def best(self, wanted: int = 3) -> list[Tried]:
        """Returns the best, and then the best of those that are not merely a slower form of one before them, then
        slower forms.

        Where something fits, nothing is tried that changes more of what is learned, and where even `least` is far from
        fitting, nothing that changes anything. Raises OutOfTime before something was found; after that the time ends
        the search.
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
        """Returns whether even `least` is far from fitting: it is tried after a milder change was carried out and
        is, too."""
        if self.least is None:
            return False
        if self.least not in self.known:
            changed = [tried for tried in self.known.values() if tried.setting.learned.level and tried.work is not None]
            if not any(lacks(tried, FAR) for tried in changed):
                return False
            self.try_in_time(self.least)
        return lacks(self.known[self.least], FAR)

    def next_best(self, here: Sequence[Setting], chosen: set[Setting], *, without_slower_forms: bool) -> Tried | None:
        """Returns the best that fits next to those that were chosen."""
        while True:
            ignored = set() if without_slower_forms else chosen
            open_ = self.undecided(here, ignored)
            while open_:
                if not self.has_time(False) and any(t.setting not in chosen for t in self.fitting(here)):
                    self.stopped = "time"  # there is one that can still be carried out with all layers
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
        """Returns the settings that may fit and be faster than the fitting ones, from the largest memory to the
        smallest."""
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
        """Returns the settings that may be better than the selected ones and were not tried."""
        most = min((tried.setting.learned.level for tried in self.best_so_far), default=math.inf)
        return self.undecided([setting for setting in self.settings if setting.learned.level <= most], set())

    def fitting(self, here: Iterable[Setting]) -> list[Tried]:
        return [self.known[setting] for setting in here if setting in self.known and self.known[setting].fits]

    def try_in_time(self, setting: Setting, *, whole: bool | None = False) -> Tried:
        """Raises OutOfTime where there is no time. `whole`: with all layers; None: so, whatever time it takes."""
        if whole is not None and not self.has_time(whole):
            self.stopped = "time"
            raise OutOfTime
        return self.try_(setting, whole=whole is not False)

    def try_(self, setting: Setting, *, whole: bool = False) -> Tried:
        self.known[setting] = self.evaluate(setting, whole)
        return self.known[setting]

    def nearest(self) -> Tried | None:
        """Returns the setting that needs least memory of those that do not fit; None where everything was refused.

        Where only the states are known, which are the same in many settings, it is the one that saves most besides.
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
    """Returns the bytes that a setting needs of a GPU, where they are known."""
    assert tried.memory is not None
    return tried.memory.needed


def is_slower(setting: Setting, other: Setting) -> bool:
    """Returns whether it is a slower form of the other."""
    return setting != other and other.as_fast_as(setting)


def by_need(tried: Tried) -> tuple[int, int]:
    """Sort key: least memory first; ties: most memory-saving options first."""
    return needed(tried), -sum(tried.setting.slower)


def lacks(tried: Tried, fraction: float) -> bool:
    """Returns whether more memory is lacking than this fraction of the tensors' peak."""
    memory = tried.memory
    return memory is not None and -memory.spare > fraction * memory.peak
