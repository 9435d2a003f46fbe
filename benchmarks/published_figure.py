"""`Published`: bytes that somebody has published, beside what is predicted of the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Published:
    """Memory of one GPU, or the size of files."""

    what: str
    gigabytes: float
    """1e9 bytes."""
    source: str
    predict: Callable[[], float]
    """Bytes."""
    beside: str = "nothing"
    """Calculated part of the prediction, as text."""
    explanation: str = ""
    """For a difference of more than 20 %, or another verdict."""
    bound: Literal["", "<", ">"] = ""
    """What was published is that the run fitted in so much, or did not."""
    quick: bool = False
    """Whether the prediction is arithmetic alone, without a simulated step."""

    def agrees(self, predicted: float) -> bool:
        """Whether gigabytes need no explanation."""
        if self.bound:
            return predicted < self.gigabytes if self.bound == "<" else predicted > self.gigabytes
        return abs(predicted / self.gigabytes - 1) <= 0.2

    def row(self, predicted: float) -> str:
        """Of the table, with so many gigabytes."""
        published = f"{self.bound} {round(self.gigabytes, 1):g}".strip()
        explanation = "" if self.agrees(predicted) else self.explanation
        ratio = f"{predicted / self.gigabytes:.2f}"
        return (
            f"| {self.what} | {self.source} | {published} | {predicted:.1f} | {ratio} | {self.beside} | {explanation} |"
        )
