"""One thing a line, whatever stands in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_disk import largest_file

from worldsmith.files.lines import append_line, read_lines


def test_only_line_feeds_end_a_line_and_a_byte_order_mark_is_none_of_it(tmp_path: Path) -> None:
    lines = ["a\u2028b", "c\x85d", "e\x0cf", "", "\x1c"]
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeff".encode() + "\r\n".join(lines).encode() + b"\n")
    assert read_lines(file) == lines
    file.write_bytes(b"")
    assert read_lines(file) == []


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"prompts\.txt is not UTF-8 text"):
        read_lines(tmp_path / "prompts.txt")


def test_a_line_is_added_whole_or_not_at_all(tmp_path: Path) -> None:
    """Where the disk takes only a part of it, that is taken back; a last line that was cut off is ended."""
    file = tmp_path / "list.jsonl"
    append_line(file, "first")
    with largest_file(9), pytest.raises(OSError, match="No space left"):
        append_line(file, "second")
    assert file.read_text() == "first\n"
    append_line(file, "sécond")
    file.write_text("first\nseco")
    append_line(file, "third")
    assert read_lines(file) == ["first", "seco", "third"]
