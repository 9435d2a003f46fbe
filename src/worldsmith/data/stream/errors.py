"""Errors of data: `SampleError` for one sample, `DataError` for a dataset."""

from __future__ import annotations

import errno

from worldsmith.files.errors import CodedError

READ_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Error numbers that mean that a file cannot be read. Others concern the process (EMFILE), or come from FFmpeg for
invalid content (EINVAL)."""

MAX_TEXT = 1_000_000
"""Max characters of a caption, or of all texts of a conversation: some 250,000 tokens of English."""


class SampleError(ValueError):
    """One sample cannot be used. `reason` is a short slug that is counted, `detail` a sentence for a person."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def read_error(error: OSError) -> SampleError:
    """Returns the error of a sample that has a file which the operating system cannot read: missing_file or
    unreadable."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return SampleError("missing_file", "the file does not exist")
    return SampleError("unreadable", str(error))


def check_text(text: str, what: str) -> None:
    """Raises SampleError for a text that is too long to be tokenized: text_too_long."""
    if len(text) > MAX_TEXT:
        raise SampleError("text_too_long", f"{what} has {len(text):,} characters: expected at most {MAX_TEXT:,}")


class DataError(CodedError, RuntimeError):
    """The dataset cannot carry a run. The text says what was found, where, and what to do."""
