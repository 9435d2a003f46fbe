"""Determines the state of a run from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from worldsmith.files.locks import in_use
from worldsmith.monitor.page.run_files import RunFiles, lookup

SILENT = timedelta(minutes=2)
"""Time without an update after which a run whose folder no process has locked counts as dead."""
AT_WORK = ("starting", "running")
MEANING = {
    "starting": "The run is being built.",
    "running": "The run is training.",
    "finished": "All steps are complete.",
    "stopped": "The run was asked to stop and saved a checkpoint; the command that started it resumes it.",
    "interrupted": "Stopped by a second Ctrl-C, without a new checkpoint; the command that started the run resumes it.",
    "failed": "The run has ended with an error.",
    "died": "[E125] The process ended without a message: killed, out of memory, or the machine failed.",
    "ended": "No process uses this folder, and not all steps are complete.",
}


STOPPED_BY = {
    "SIGINT": "Ctrl-C",
    "SIGTERM": "SIGTERM, as a job scheduler or kill sends it",
    "SIGHUP": "SIGHUP, because its terminal was closed",
}
"""Descriptions of stop reasons, by the recorded reason."""
INTERRUPTED = "KeyboardInterrupt"
"""Prefix of the recorded stop reason of a run that was ended by a second Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Status:
    """State of a run for the head of the report. Times are in UTC."""

    state: str
    """Key of `MEANING`, such as "running"."""
    step: int
    """Number of completed optimizer steps."""
    max_iter: int | None
    """Number of steps of the run; None: not known."""
    doing: str | None = None
    """Current activity, such as "validation"; None if it is not known or the run has ended."""
    reason: str | None = None
    """Recorded reason why the run has ended: a signal or an error message."""
    started: datetime | None = None
    updated: datetime | None = None
    remaining_seconds: float | None = None

    @property
    def at_work(self) -> bool:
        """Whether the run is starting or running."""
        return self.state in AT_WORK

    @property
    def meaning(self) -> str:
        """Description of the state in one or two sentences."""
        if self.state == "stopped" and self.reason:
            cause = STOPPED_BY.get(self.reason, self.reason)
            return f"Stopped by {cause} and saved after step {self.step}; the command that started the run resumes it."
        return MEANING[self.state]

    @property
    def problem(self) -> str | None:
        """Recorded reason why the run has ended; None if `meaning` already contains it, or if none is recorded."""
        return None if self.state in ("stopped", "interrupted") else self.reason

    @property
    def elapsed_seconds(self) -> float | None:
        """Seconds from the last start to the last update; None if unknown."""
        if self.started and self.updated and self.updated > self.started:
            return (self.updated - self.started).total_seconds()
        return None

    @property
    def share(self) -> float | None:
        """Completed fraction of the steps, 0 to 1; None if the number of steps is not known."""
        return min(self.step / self.max_iter, 1.0) if self.max_iter else None


def find_status(run: RunFiles, known: Mapping[str, Any] | None = None) -> Status:
    """Determines the status of a run.

    Args:
        run: Files of the run.
        known: Values by name, such as "state" and "step", that replace those in `status.json`; given by the process
            that trains the run. None: only the files are used.
    """
    recorded = {**run.status, **(known or {})}
    max_iter = find_first_integer(recorded.get("max_iter"), find_first_integer(lookup(run.config, "trainer.max_iter")))
    step = find_first_integer(recorded.get("step"), run.metrics.step)
    if run.metrics.step is not None and (step is None or run.metrics.step > step):
        step = run.metrics.step
    updated = when(run.status.get("updated")) or last_change(run)
    state = recorded.get("state")
    if not isinstance(state, str) or state not in MEANING:
        state = infer_state(run, step, max_iter)
    elif state in AT_WORK and known is None and in_use(run.folder) is None and is_old(updated):
        state = "died"
    if state == "failed" and str(recorded.get("reason")).startswith(INTERRUPTED):
        state = "interrupted"
    at_work = state in AT_WORK
    remaining = recorded.get("remaining_seconds")
    if remaining is None and at_work and step is not None and max_iter:
        remaining = estimate_seconds(run, max_iter - step)
    return Status(
        state,
        step or 0,
        max_iter,
        doing=recorded.get("doing") if at_work else None,
        reason=recorded.get("reason"),
        started=when(run.status.get("started")) or when(run.launch.get("started_at")),
        updated=updated,
        remaining_seconds=remaining if at_work else None,
    )


def infer_state(run: RunFiles, step: int | None, max_iter: int | None) -> str:
    """Infers the state of a run whose `status.json` has no valid state: "running", "finished" or "ended"."""
    if in_use(run.folder) is not None:
        return "running"
    return "finished" if step is not None and max_iter is not None and step >= max_iter else "ended"


def estimate_seconds(run: RunFiles, steps: int) -> float | None:
    """Estimates the seconds of `steps` steps from the median of recent steps; None without logged steps."""
    series = run.metrics.series.get("step_seconds")
    recent = series.buckets[-20:] if series else []
    paces = sorted(bucket.total / bucket.count for bucket in recent)
    return steps * paces[len(paces) // 2] if paces else None


def is_old(time: datetime | None) -> bool:
    return time is None or datetime.now(UTC) - time > SILENT


def last_change(run: RunFiles) -> datetime | None:
    """Returns the newest modification time of the run's metrics, status, messages and config; None without them."""
    times = [
        path.stat().st_mtime
        for name in ("metrics.jsonl", "status.json", "messages.jsonl", "config.yaml")
        if (path := run.folder / name).exists()
    ]
    return datetime.fromtimestamp(max(times), UTC) if times else None


def when(text: Any) -> datetime | None:
    """Parses an ISO 8601 time, in UTC if it states no time zone; returns None for any other value."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def find_first_integer(*values: Any) -> int | None:
    """Returns the first value that is an int and not a bool; None without one."""
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
