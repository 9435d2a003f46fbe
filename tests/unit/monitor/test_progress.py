"""How far some work is, in a terminal and in a file."""

from __future__ import annotations

import io

from rich.console import Console

from worldsmith.monitor.progress import ProgressLine


def test_plain_lines_come_now_and_then_and_the_last_once() -> None:
    now = iter([0.0, 1.0, 12.0, 13.0, 30.0, 30.0])
    text = io.StringIO()
    with ProgressLine("encoding", 5, console=Console(file=text, width=20), clock=lambda: next(now)) as line:
        for done in (1, 2, 3, 5, 5):
            line.update(done)
    assert text.getvalue().splitlines() == ["encoding 2/5, 18s left", "encoding 5/5"]


def test_a_terminal_gets_a_bar_in_one_line() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with ProgressLine("encoding", 4, console=console) as line:
        line.update(3)
        line.update(4)
    assert "encoding 4/4" in text.getvalue()
    assert "\x1b[" in text.getvalue()
