"""What takes the metrics may fail as it likes."""

from __future__ import annotations

from worldsmith.monitor.sinks import Sinks


class Kept:
    def __init__(self, *, fails_on: tuple[int, ...] = (), fails_at_end: bool = False) -> None:
        self.fails_on, self.fails_at_end = fails_on, fails_at_end
        self.steps: list[int] = []

    def write(self, step, metrics):
        if step in self.fails_on:
            raise RuntimeError(f"no {step}")
        self.steps.append(step)

    def close(self, *, failed=False):
        if self.fails_at_end:
            raise ConnectionResetError
        self.failed = failed


def refuse():
    raise ValueError("no such server")


def test_a_sink_that_raises_is_said_once_counted_and_asked_again(caplog):
    sinks, broken, whole = Sinks(), Kept(fails_on=(2, 3), fails_at_end=True), Kept()
    sinks.add("nowhere", refuse)
    sinks.add("broken", lambda: broken)
    sinks.add("whole", lambda: whole)
    for step in range(1, 5):
        sinks.write(step, {"loss": 1.0})
    assert (broken.steps, whole.steps) == ([1, 4], [1, 2, 3, 4])
    assert dict(sinks.lost) == {"broken": 2}
    sinks.close(failed=True)
    assert whole.failed
    assert [record.getMessage() for record in caplog.records] == [
        "nowhere cannot be written, the run continues without it: ValueError: no such server",
        "broken cannot be written, the run continues: RuntimeError: no 2",
        "broken could not be closed: ConnectionResetError",
        "broken: 2 writes have failed, and their metrics are missing",
    ]
