"""Search dimension: maps suggestions of Optuna to values of a field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.search import Search
from worldsmith.config.declare.value_types import fits
from worldsmith.config.write.values import WORD, write

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution

DIGITS = 4
"""Significant digits of suggested numbers, so that they are distinguishable and easy to type."""


@dataclass(frozen=True)
class Dimension:
    """Dimension of a search space of `worldsmith tune`: a config field, its range or choices, and its Optuna name."""

    name: str
    path: str
    mark: Search
    hint: Any
    """Declared type of the config field that the dimension sets."""

    @cached_property
    def is_whole(self) -> bool:
        """Whether the config field of the dimension accepts integers only."""
        return fits(1, self.hint) and not fits(1.5, self.hint)

    @cached_property
    def labels(self) -> list[str]:
        """Choices of the dimension as text, as stored by Optuna and shown in messages; empty for a range of numbers."""
        return [value if isinstance(value, str) else write(value, WORD) for value in self.mark.choices]

    def distribution(self) -> BaseDistribution:
        """Returns the Optuna distribution of the dimension; for powers of two, the distribution of the exponent.

        Optuna has no weighted choices. They become a float from 0 to 1, and each choice has an interval of it whose
        length is proportional to the weight.
        """
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        mark = self.mark
        if mark.choices:
            return FloatDistribution(0, 1) if mark.weights else CategoricalDistribution(self.labels)
        assert mark.low is not None
        assert mark.high is not None
        if mark.power_of_two:
            return IntDistribution(exponent(mark.low), exponent(mark.high))
        if self.is_whole:
            return IntDistribution(int(mark.low), int(mark.high), log=mark.log)
        return FloatDistribution(mark.low, mark.high, log=mark.log)

    def suggest(self, trial: Trial) -> Any:
        """Returns Optuna's suggestion for a trial, which `value` converts to a value of the config field.

        The suggestion is a number of the range, an exponent for powers of two, the label of a choice, or a float from 0
        to 1 for weighted choices.
        """
        from optuna.distributions import CategoricalDistribution, IntDistribution

        kind: Any = self.distribution()
        if isinstance(kind, CategoricalDistribution):
            return trial.suggest_categorical(self.name, kind.choices)
        if isinstance(kind, IntDistribution):
            return trial.suggest_int(self.name, kind.low, kind.high, log=kind.log)
        drawn = trial.suggest_float(self.name, kind.low, kind.high, log=kind.log)
        return drawn if self.mark.choices else min(max(float(f"{drawn:.{DIGITS}g}"), kind.low), kind.high)

    def value(self, drawn: Any, base: Any) -> Any:
        """Returns the value of the config field for a suggestion of Optuna.

        Args:
            drawn: The suggestion, as returned by `suggest`.
            base: Value of the field that a ratio refers to (`mark.ratio_of`); None if the dimension is not a ratio.
        """
        mark = self.mark
        if mark.choices:
            found = mark.choices[interval_index(mark.weights, drawn) if mark.weights else self.labels.index(drawn)]
        else:
            found = 2**drawn if mark.power_of_two else drawn
        if mark.ratio_of:
            found = base * found if isinstance(base * found, int) else float(f"{base * found:.12g}")
        return int(found) if self.is_whole and isinstance(found, float) and found.is_integer() else found

    def drawn(self, value: Any, base: Any) -> Any:
        """Returns the suggestion of Optuna that produces a value of the config field; None if no suggestion does.

        Args:
            value: Value of the field.
            base: Value of the field that a ratio refers to (`mark.ratio_of`); None if the dimension is not a ratio.
        """
        mark, numbers = self.mark, isinstance(value, (int, float)) and not isinstance(value, bool)
        if mark.ratio_of:
            if not (numbers and base):
                return None
            value = value / base
        if mark.choices:
            index = next((index for index, choice in enumerate(mark.choices) if choice == value), None)
            if index is None or not mark.weights:
                return None if index is None else self.labels[index]
            return (sum(mark.weights[:index]) + mark.weights[index] / 2) / sum(mark.weights)
        if not numbers or not float(mark.low or 0) <= value <= float(mark.high or 0):
            return None
        if mark.power_of_two:
            return exponent(value) if value == 2 ** exponent(value) else None
        return value

    def __str__(self) -> str:
        mark = self.mark
        range_text = f"{mark.low:g} to {mark.high:g}" if not mark.choices else ""
        if mark.choices:
            weights = [f" ({weight / sum(mark.weights):.0%})" for weight in mark.weights] or [""] * len(mark.choices)
            range_text = ", ".join(f"{label}{weight}" for label, weight in zip(self.labels, weights, strict=True))
        kind = ", logarithmic" if mark.log else ", powers of two" if mark.power_of_two else ""
        ratio = f" times {mark.ratio_of}" if mark.ratio_of else ""
        return f"{self.path}: {range_text}{kind}{ratio}{f', if {mark.when}' if mark.when else ''}"


def interval_index(weights: Sequence[float], fraction: float) -> int:
    """Returns the index of the interval that contains `fraction`, a number from 0 to 1.

    The intervals divide 0 to 1 in proportion to `weights`; each contains its lower end, and the last one 1.
    """
    total, end = sum(weights), 0.0
    for index, weight in enumerate(weights):
        end += weight / total
        if fraction < end:
            return index
    return max(index for index, weight in enumerate(weights) if weight > 0)


def exponent(value: float) -> int:
    """Returns floor(log2(value)) of a value of at least 1; 0 for smaller values."""
    return max(int(value), 1).bit_length() - 1
