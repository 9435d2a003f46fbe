"""The progress line in a terminal and in a file."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import time

import pytest
from rich.console import Console

from worldsmith.monitor.short_text import format_bytes, format_duration, short_number
from worldsmith.monitor.terminal_view import TerminalView
from worldsmith.monitor.throughput import Activity, Throughput


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_file_gets_plain_lines_now_and_then_and_always_the_last_one():
    out, clock = io.StringIO(), Clock()
    view = TerminalView(total_steps=100, console=Console(file=out, width=80), plain_interval=10, clock=clock)
    with view:
        for step in range(1, 101):
            clock.now += 1
            view.update(step, loss=1 / step, tokens_per_second=12345.6, remaining_seconds=100 - step)
    lines = out.getvalue().splitlines()
    assert lines[0] == "step 1/100  loss 1.0000  12.3k tokens/s  1m39s left"
    assert lines[-1] == "step 100/100  loss 0.0100  12.3k tokens/s"
    assert len(lines) == 11
    assert "\x1b" not in out.getvalue()


def test_log_records_and_messages_appear_while_the_view_is_open_and_only_then():
    out = io.StringIO()
    logger = logging.getLogger("worldsmith.some.part")
    before = list(logging.getLogger("worldsmith").handlers)
    with TerminalView(total_steps=2, console=Console(file=out, width=40)) as view:
        logger.warning("a [bold] step was skipped, and this line is longer than the console is wide")
        logger.info("saved")
        logger.error("lost")
        view.print("done")
    logger.info("later")
    assert out.getvalue().splitlines() == [
        "warning: a [bold] step was skipped, and this line is longer than the console is wide",
        "saved",
        "error: lost",
        "done",
    ]
    assert logging.getLogger("worldsmith").handlers == before


@pytest.mark.parametrize("stdout", ["a closed pipe", "/dev/full"])
def test_a_run_goes_on_when_nobody_can_read_it(stdout: str) -> None:
    """The reader of the pipe has gone away, or the disk of the log file is full: said once on stderr, and no more."""
    program = (
        "from worldsmith.monitor.terminal_view import TerminalView\n"
        "with TerminalView(total_steps=3) as view:\n"
        "    for step in (1, 2, 3): view.print(f'step {step}')\n"
        "print('done')"
    )
    if stdout == "/dev/full":
        out: int = os.open(stdout, os.O_WRONLY)
    else:
        reader, out = os.pipe()
        os.close(reader)
    done = subprocess.run([sys.executable, "-c", program], stdout=out, stderr=subprocess.PIPE, text=True)
    os.close(out)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1
    assert re.match("standard output is no longer written: .*; the run continues", done.stderr)


def test_a_terminal_gets_one_line_that_is_redrawn_and_warnings_above_it():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    with TerminalView(total_steps=20000, first_step=4, console=console) as view:
        view.update(12000, loss=0.25, tokens_per_second=12345.0, remaining_seconds=3700)
        give_up = time.monotonic() + 100
        while "left" not in out.getvalue() and time.monotonic() < give_up:
            time.sleep(0.05)
        view.warning("clip 7 is damaged")
        view.update(20000, loss=0.125)
    text = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", out.getvalue())
    frames = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    warned = next(i for i, line in enumerate(frames) if line.strip() == "warning: clip 7 is damaged")
    shown = next(i for i, line in enumerate(frames) if "step 12000/20000" in line)
    assert "loss 0.2500  12.3k tokens/s  1h01m left" in frames[shown]
    assert shown < warned
    assert frames[warned + 1] == frames[shown]
    assert "step 20000/20000" in frames[-1]
    assert "loss 0.1250" in frames[-1]


@pytest.mark.parametrize(
    ("seconds", "text", "spaced"),
    [
        (0.4, "0s", "0 s"),
        (59.4, "59s", "59 s"),
        (185, "3m05s", "3 min 5 s"),
        (7620, "2h07m", "2 h 7 min"),
        (3 * 86400 + 4 * 3600, "3d04h", "3 d 4 h"),
    ],
)
def test_durations_are_short(seconds, text, spaced):
    assert format_duration(seconds) == text
    assert format_duration(seconds, spaced=True) == spaced


def test_bytes_have_a_unit_and_the_digits_that_are_asked_for():
    assert format_bytes(4.56 * 2**30) == "4.56 GiB"
    assert format_bytes(600 * 2**20) == "600.0 MiB"
    assert format_bytes(600 * 2**20, gib=",.1f", gib_from=2**29) == "0.6 GiB"
    assert format_bytes(212 * 2**20, mib=",.0f", gib_from=2**29) == "212 MiB"


@pytest.mark.parametrize(
    ("value", "text"), [(812.3, "812"), (12345, "12.3k"), (4_500_000, "4.5M"), (64_037_846_016, "64.0B")]
)
def test_numbers_are_short(value, text):
    assert short_number(value) == text


def test_throughput_is_that_of_the_recent_steps_without_the_first():
    clock = Clock()
    speed = Throughput(window=4, clock=clock)
    assert speed.tokens_per_second is None
    speed.step(1000)
    assert speed.remaining_seconds(5) is None
    for _ in range(10):
        clock.now += 2.0
        speed.step(100)
    assert speed.tokens_per_second == 50.0
    for _ in range(4):
        clock.now += 0.5
        speed.step(100)
    assert speed.tokens_per_second == 200.0
    assert speed.seconds_per_step == 0.5
    assert speed.remaining_seconds(10) == 5.0


def test_the_time_left_is_that_of_usual_steps_and_unknown_before_there_are_any():
    clock = Clock()
    speed = Throughput(window=4, clock=clock)

    def step(seconds: float, *, unusual: bool) -> float | None:
        clock.now += seconds
        speed.step(100, unusual=unusual)
        return speed.remaining_seconds(10)

    assert [step(60.0, unusual=True) for _ in range(4)] == [None] * 4  # of the first nothing is known at all
    assert step(3.0, unusual=False) == 30.0
    assert step(60.0, unusual=True) == 30.0
    assert speed.tokens_per_second == 400 / 183
    assert [step(50.0, unusual=True) for _ in range(2)] == [30.0, 30.0]
    assert step(50.0, unusual=True) == 525.0  # nothing else in a whole window: this is how the run is


@pytest.mark.parametrize("width", [80, 120])
def test_what_goes_on_beside_the_steps_has_a_bar_of_its_own(width: int) -> None:
    now: list[Activity | None] = [None]
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    view = TerminalView(total_steps=800, console=console, meanwhile=lambda: now[0])
    with view:
        view.update(399, loss=0.25, tokens_per_second=12345.6, remaining_seconds=3600)
        assert view.progress is not None

        def lines() -> list[str]:
            return "".join(s.text for s in console.render(view.progress.get_renderable())).splitlines()

        assert [line.split()[:2] for line in lines()] == [["step", "399/800"]]
        now[0] = Activity("sampling", 0.5)
        line, bar = lines()
        assert line.startswith("step 399/800")
        assert re.fullmatch(r"sampling ━+[╸╺]?━* 50%\s*", bar), bar
        now[0] = Activity("saving")
        assert re.fullmatch(r"saving [━ ]+", lines()[1])
        assert all(len(line) <= width for line in lines())
