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
    """One sample cannot be used. `reason` is a short slug by which errors are counted, `detail` a message for users."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def read_error(error: OSError) -> SampleError:
    """Converts an OSError about a file of a sample to a SampleError: missing_file or unreadable."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return SampleError("missing_file", "the file does not exist")
    return SampleError("unreadable", str(error))


def check_text(text: str, what: str) -> None:
    """Raises SampleError (text_too_long) if a text exceeds `MAX_TEXT` characters; `what` names it in the message."""
    if len(text) > MAX_TEXT:
        raise SampleError("text_too_long", f"{what} has {len(text):,} characters: expected at most {MAX_TEXT:,}")


class DataError(CodedError, RuntimeError):
    """The dataset cannot be used for a run. The message contains the cause, its location and the fix."""
