"""What can be wrong with data: one sample (`SampleError`) or the data set as a whole (`DataError`)."""

from __future__ import annotations


class SampleError(ValueError):
    """One sample cannot be used. `reason` is a short slug that is counted, `detail` a sentence for a person."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class DataError(RuntimeError):
    """The data set cannot carry a run. The text says what was found, where, and what to do."""
