"""Errors of data: `SampleError` for one sample, `DataError` for a dataset."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from worldsmith.files.errors import SECRETS, CodedError

READ_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Values of errno which mean that a file cannot be read. Other values are problems of the process (EMFILE), or are set
by FFmpeg for invalid content (EINVAL)."""

MAX_TEXT = 1_000_000
"""Max characters of a caption, or of all texts of a conversation: some 250,000 tokens of English."""


class SampleError(ValueError):
    """Error for a sample that cannot be used.

    Args:
        reason: Short slug by which errors are counted, such as "missing_file".
        detail: Message for users; credentials in addresses are removed.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, SECRETS.sub("", detail)
        super().__init__(f"{reason}: {self.detail}")


@contextmanager
def prefixing(name: str) -> Iterator[None]:
    """Context manager that prefixes the detail of a `SampleError` with `name`, such as the file that caused it.

    A detail that begins with `name` is not changed.
    """
    try:
        yield
    except SampleError as error:
        is_named = error.detail.startswith((f"{name}:", f"{name} "))
        raise SampleError(error.reason, error.detail if is_named else f"{name}: {error.detail}") from None


def read_error(error: OSError) -> SampleError:
    """Returns the SampleError (missing_file or unreadable) for an OSError that a file of a sample has caused."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return SampleError("missing_file", "the file does not exist" if error.errno else str(error))
    return SampleError("unreadable", str(error))


def check_text(text: str, what: str) -> None:
    """Raises SampleError (text_too_long) if a text has more than `MAX_TEXT` characters.

    Args:
        text: Text of a sample.
        what: Name of the text for the message, such as "the conversation".
    """
    if len(text) > MAX_TEXT:
        raise SampleError("text_too_long", f"{what} has {len(text):,} characters: expected at most {MAX_TEXT:,}")


class DataError(CodedError, RuntimeError):
    """Error for a dataset that cannot be used for a run. The message contains the cause, its location and the fix."""
