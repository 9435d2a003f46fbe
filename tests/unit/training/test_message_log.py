"""What a run says, kept in `messages.jsonl`."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path

import pytest
from small_disk import largest_file

from worldsmith.training.run_folder import MessageLog

logger = logging.getLogger("worldsmith.anything")


def read(path: Path) -> list[tuple[int, str, str]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(datetime.fromisoformat(line.pop("time")).tzinfo is not None for line in lines)
    return [(line["step"], line["level"], line["text"]) for line in lines]


def test_messages_of_the_block_are_lines_and_those_before_and_after_are_not(tmp_path, caplog):
    log, step = MessageLog(tmp_path / "messages.jsonl", step=lambda: step), 0
    log.begin()
    with caplog.at_level(logging.DEBUG, logger="worldsmith"):
        logger.info("before")
        with log:
            logger.info("%d clips", 3)
            step = 4
            logger.warning("größer\nund mehr")
            logger.debug("a detail")
            logging.getLogger("other").warning("not ours")
        logger.info("after")
    assert read(log.path) == [(0, "info", "3 clips"), (4, "warning", "größer\nund mehr")]


@pytest.mark.parametrize("heard", [False, True])
def test_warnings_that_nobody_else_hears_reach_the_standard_error(tmp_path, capsys, monkeypatch, heard):
    """As Python has it for a library without handlers, which this one would end by being a handler."""
    worldsmith = logging.getLogger("worldsmith")
    monkeypatch.setattr(worldsmith, "propagate", False)
    monkeypatch.setattr(worldsmith, "handlers", [logging.NullHandler()] if heard else [])
    log = MessageLog(tmp_path / "messages.jsonl", step=lambda: 0)
    log.begin()
    with log:
        logger.warning("a remark")
        logger.info("a detail")
    assert capsys.readouterr().err == ("" if heard else "a remark\n")


def test_a_start_that_is_refused_leaves_nothing_and_one_that_works_says_all(tmp_path, caplog):
    refused = MessageLog(tmp_path / "refused.jsonl", step=lambda: 0)
    with refused:
        logger.warning("a remark")
    with pytest.raises(KeyboardInterrupt), refused:
        raise KeyboardInterrupt
    assert not refused.path.exists()
    log = MessageLog(tmp_path / "messages.jsonl", step=lambda: 8)
    with log:
        logger.warning("a remark")
        log.begin()
        logger.error("another")
    assert read(log.path) == [(8, "warning", "a remark"), (8, "error", "another")]


def test_what_ends_the_run_is_its_last_message(tmp_path):
    log = MessageLog(tmp_path / "messages.jsonl", step=lambda: 2)
    log.begin()
    with pytest.raises(FloatingPointError), log:
        raise FloatingPointError("step 3: the loss is nan")
    with pytest.raises(KeyboardInterrupt), log:
        raise KeyboardInterrupt
    assert read(log.path) == [
        (2, "error", "FloatingPointError: step 3: the loss is nan"),
        (2, "error", "KeyboardInterrupt"),
    ]


def test_a_full_disk_loses_messages_and_nothing_else(tmp_path, caplog):
    log = MessageLog(tmp_path / "messages.jsonl", step=lambda: 0)
    log.begin()
    with log, largest_file(180):
        logger.warning("there is room for this")
        logger.warning("and not for this")
    assert read(log.path) == [(0, "warning", "there is room for this")]
