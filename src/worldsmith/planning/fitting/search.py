"""The best of many settings, of which as few as possible are carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from worldsmith.planning.fitting.knobs import Setting
from worldsmith.planning.memory_verdict import MemoryVerdict
from worldsmith.planning.seconds import Range
from worldsmith.planning.work import StepWork

SURELY = 0.05
"""A setting that lacks this share of its tensors' peak rules out all that keep as much: recomputation, smaller packs
and sharing them save far more than they add."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What is known of a setting."""

    setting: Setting
    memory: MemoryVerdict | None = None
    """None: it was refused."""
    work: StepWork | None = None
    """None: what lasts from step to step is too large already."""
    seconds: Range | None = None
    """Of a step."""
    refused: str = ""
    whole: bool = False
    """Whether all layers were carried out, and all phases."""

    @property
    def fits(self) -> bool:
        return self.memory is not None and self.work is not None and self.memory.spare >= 0

    @property
    def order(self) -> tuple[float, ...]:
        """The best first: the least change of what is learned, the fastest, the fewest words, the smallest."""
        assert self.memory is not None
        assert self.seconds is not None
        setting = self.setting
        return setting.learned.level, self.seconds.middle, len(setting.words), self.memory.peak


Evaluate = Callable[[Setting, bool], Tried]
"""Tries a setting; True: with all layers and all phases."""


class Search:
    """Goes from what changes nothing of what is learned to what changes most.

    Two things save most of the trials: a setting that does more than one that fits is slower, and one that keeps more
    than one that surely does not fit does not fit. What is chosen was carried out with all layers.
    """

    def __init__(self, settings: Sequence[Setting], evaluate: Evaluate) -> None:
        self.settings, self.evaluate = settings, evaluate
        self.known: dict[Setting, Tried] = {}

    def best(self, wanted: int = 3) -> list[Tried]:
        """The best, and then the best of those that are not merely a slower form of one before them, then slower forms.

        Where something fits, nothing is tried that changes more of what is learned.
        """
        found: list[Tried] = []
        for level in sorted({setting.learned.level for setting in self.settings}):
            here = [setting for setting in self.settings if setting.learned.level == level]
            for slower_forms in (False, True):
                while len(found) < wanted:
                    chosen = {tried.setting for tried in found}
                    following = self.next_best(here, chosen, without_slower_forms=not slower_forms)
                    if following is None:
                        break
                    found.append(following)
            if found:
                break
        return sorted(found, key=lambda tried: tried.order)

    def next_best(self, here: Sequence[Setting], chosen: set[Setting], *, without_slower_forms: bool) -> Tried | None:
        """The best that fits beside those that were chosen."""
        while True:
            ignored = set() if without_slower_forms else chosen
            open_ = self.undecided(here, ignored)
            while open_:
                self.try_(open_[len(open_) // 2])
                open_ = self.undecided(open_, ignored)
            fitting = [tried for tried in self.fitting(here) if tried.setting not in chosen]
            if without_slower_forms:
                before = [tried.setting for tried in self.fitting(here)]
                fitting = [t for t in fitting if not any(is_slower(t.setting, other) for other in before)]
            if not fitting:
                return None
            best = min(fitting, key=lambda tried: tried.order)
            if best.whole or self.try_(best.setting, whole=True).fits:
                return self.known[best.setting]

    def undecided(self, here: Iterable[Setting], ignored: set[Setting]) -> list[Setting]:
        """What may still fit and be faster than what fits, from the largest to the smallest."""
        fitting = [tried.setting for tried in self.known.values() if tried.fits and tried.setting not in ignored]
        lacking = [tried.setting for tried in self.known.values() if surely_lacks(tried)]
        left = [
            setting
            for setting in here
            if setting not in self.known
            and not any(is_slower(setting, other) for other in fitting)
            and not any(setting.as_large_as(other) for other in lacking)
        ]
        return sorted(left, key=lambda setting: sum(setting.slower))

    def fitting(self, here: Iterable[Setting]) -> list[Tried]:
        return [self.known[setting] for setting in here if setting in self.known and self.known[setting].fits]

    def try_(self, setting: Setting, *, whole: bool = False) -> Tried:
        self.known[setting] = self.evaluate(setting, whole)
        return self.known[setting]

    def nearest(self) -> Tried | None:
        """Of what does not fit that which needs least; None where everything was refused."""
        smallest: dict[tuple[object, ...], Setting] = {}
        for setting in self.settings:
            key = (setting.learned.says, *setting.learned.words, setting.replicas)
            if key not in smallest or sum(setting.slower) > sum(smallest[key].slower):
                smallest[key] = setting
        tried = [self.known.get(setting) or self.try_(setting) for setting in smallest.values()]
        tried += [other for other in self.known.values() if other not in tried]
        measured = [t for t in tried if t.memory is not None and t.work is not None]
        measured = measured or [t for t in tried if t.memory is not None]
        return min(measured, key=lambda t: t.memory.needed, default=None)  # type: ignore[union-attr]


def is_slower(setting: Setting, other: Setting) -> bool:
    """Whether it is a slower form of the other."""
    return setting != other and other.as_fast_as(setting)


def surely_lacks(tried: Tried) -> bool:
    memory = tried.memory
    return memory is not None and -memory.spare > SURELY * memory.peak
