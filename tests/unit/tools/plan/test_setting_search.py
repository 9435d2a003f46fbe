"""The best of many settings is found, whatever is left out: against trying them all."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from worldsmith.distributed.gpus import GIB, Gpu
from worldsmith.planning.estimate_memory import MemoryVerdict
from worldsmith.planning.estimate_time import EstimateRange
from worldsmith.tools.plan.packs import Packing
from worldsmith.tools.plan.setting_search import SettingSearch, Tried
from worldsmith.tools.plan.settings import Learned, Setting

GPU = Gpu("made up", 24 * GIB)
WORK: Any = object()
"""Of a step; the search does not look into it."""


def lattice() -> list[Setting]:
    steps = product(range(3), (1, 2), (1, 2, 4), range(3), (1, 2, 4), (False, True))
    return [
        Setting(
            Learned(level, str(level)),
            (f"{level}{replicas}{again}{smaller}{context}{every}",),
            {},
            (again, context, smaller, every),
            replicas,
            Packing([[0]] * 2**smaller),
        )
        for level, replicas, context, smaller, again, every in steps
        if smaller or not every
    ]


class Machine:
    """Times and sizes by a law of sums; every trial is counted."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.states, self.activations = draw.uniform(1, 30), draw.uniform(1, 60)
        self.again, self.shared = draw.uniform(0.1, 0.9), draw.uniform(0.1, 0.5)
        self.replicas = {n: draw.uniform(0.8, 1.2) for n in (1, 2)}
        self.tried: list[Setting] = []

    def evaluate(self, setting: Setting, whole: bool) -> Tried:
        self.tried.append(setting)
        again, context, smaller, every = setting.slower
        size = self.states * setting.replicas / (1 + setting.learned.level)
        size += self.activations * self.again**again / context / 2**smaller + 5 * setting.keeps_sums
        seconds = (1 + 0.2 * again + self.shared * (context - 1) + 0.02 * smaller) * self.replicas[setting.replicas]
        seconds += 0.01 * smaller * every
        peak = int(size * GIB) if whole else int(0.99 * size * GIB)  # of fewer layers less is seen
        return Tried(setting, MemoryVerdict(GPU, peak, 8), WORK, EstimateRange(seconds, seconds), whole=whole)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_of_all(seed: int) -> None:
    machine, settings = Machine(seed), lattice()
    found = SettingSearch(settings, machine.evaluate).best()
    spent, everything = len(machine.tried), [machine.evaluate(setting, True) for setting in settings]
    fitting = sorted((tried for tried in everything if tried.fits), key=lambda tried: tried.order)
    assert [tried.setting for tried in found[:1]] == [tried.setting for tried in fitting[:1]]
    assert all(tried.fits and tried.whole for tried in found)
    alike = [tried for tried in fitting if tried.setting.learned == fitting[0].setting.learned] if fitting else []
    assert len(found) == min(3, len(alike))
    assert spent < len(settings) / 2


def test_what_is_nearest_where_nothing_fits() -> None:
    machine = Machine(0)
    machine.states = 500
    search = SettingSearch(lattice(), machine.evaluate)
    assert search.best() == []
    nearest = search.nearest()
    assert nearest is not None
    assert nearest.memory is not None
    everything = [machine.evaluate(setting, False) for setting in lattice()]
    assert nearest.memory.peak == min(tried.memory.peak for tried in everything if tried.memory)


def test_a_setting_that_is_refused_rules_out_no_other() -> None:
    machine = Machine(1)
    machine.states = machine.activations = 0.1
    settings = [setting for setting in lattice() if setting.learned.level == 0]
    fastest = SettingSearch(settings, machine.evaluate).best()[0].setting

    def refusing(setting: Setting, whole: bool) -> Tried:
        return Tried(setting, refused="no") if setting is fastest else machine.evaluate(setting, whole)

    best = SettingSearch(settings, refusing).best()[0]
    others = [machine.evaluate(setting, True) for setting in settings if setting is not fastest]
    assert best.setting is min(others, key=lambda tried: tried.order).setting


def test_the_nearest_of_settings_with_the_same_states_is_the_one_that_saves_most() -> None:
    """Nothing of them was carried out, since their states are too large."""
    search = SettingSearch(lattice(), lambda setting, whole: Tried(setting, MemoryVerdict(GPU, 50 * GIB, 1)))
    assert search.best() == []
    nearest = search.nearest()
    assert nearest is not None
    assert nearest.setting.slower == max(search.settings, key=lambda setting: sum(setting.slower)).slower


def smallest(settings: list[Setting]) -> Setting:
    return max(settings, key=lambda setting: (setting.learned.level, -setting.replicas, sum(setting.slower)))


def offloading(again: int, away: bool) -> Setting:
    options = {"recomputation": str(again), "offload": str(away)}
    return Setting(
        Learned(0, "0"), (f"{again}{away}",), options, (again, away, False), 1, Packing([[0]]), offloads=away
    )


@pytest.mark.parametrize(
    ("memory", "copies", "best", "tried_offload"),
    [
        (40, 0.1, (0, False), False),  # nothing is recomputed
        (25, 0.1, (0, True), True),  # copies cost less time than the recomputation
        (25, 9.0, (2, False), True),
        (7, 9.0, (3, True), True),  # nothing else fits
    ],
)
def test_offload_is_evaluated_if_nothing_else_fits_or_instead_of_recomputation(
    memory: int, copies: float, best: tuple[int, bool], tried_offload: bool
) -> None:
    settings, tried = [offloading(again, away) for away in (False, True) for again in range(4)], list[Setting]()
    gpu = Gpu("made up", memory * GIB)

    def evaluate(setting: Setting, whole: bool) -> Tried:
        tried.append(setting)
        again, away, _ = setting.slower
        verdict = MemoryVerdict(gpu, (13 - 3 * again + 15 * (not away)) * GIB, 1)
        seconds = 1 + again + copies * away
        return Tried(setting, verdict, WORK, EstimateRange(seconds, seconds), whole=whole)

    found = SettingSearch(settings, evaluate).best()
    assert found[0].setting.slower[:2] == best
    assert found[0].whole
    assert any(setting.offloads for setting in tried) == tried_offload


@pytest.mark.parametrize("seed", range(12))
def test_with_the_smallest_setting_known_the_best_is_the_same(seed: int) -> None:
    machine, settings = Machine(seed), lattice()
    plain = SettingSearch(settings, machine.evaluate).best()
    assert SettingSearch(settings, machine.evaluate, least=smallest(settings)).best() == plain
    if plain and plain[0].setting.learned.level == 0:  # no time is lost where nothing has to change
        machine.tried.clear()
        SettingSearch(settings, machine.evaluate, least=smallest(settings)).best()
        assert smallest(settings) not in machine.tried


def test_where_the_smallest_setting_is_far_too_large_no_other_of_its_kind_is_tried() -> None:
    machine, settings = Machine(0), lattice()
    machine.states = 500
    assert SettingSearch(settings, machine.evaluate, least=smallest(settings)).best() == []
    assert [setting for setting in machine.tried if setting.learned.level == 2] == [smallest(settings)]
