"""`SaveError`: a checkpoint could not be written, and why, out of the errors of PyTorch and of all ranks."""

from __future__ import annotations

import errno

from worldsmith.distributed.peers import causes, lost_partner
from worldsmith.files.errors import CodedError


class SaveError(CodedError):
    """A checkpoint could not be written. What was written of it is removed; complete ones are untouched."""


def is_disk_full(error: BaseException) -> bool:
    """Returns whether the disk, or a quota on it, was full."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return any(isinstance(cause, OSError) and cause.errno in full for cause in causes(error))


def is_expected(error: BaseException) -> bool:
    """Returns whether the file system is to blame or a process that has ended, and not the program."""
    return any(isinstance(cause, OSError) for cause in causes(error)) or lost_partner(error) is not None


def describe_causes(error: BaseException) -> str:
    """Returns the innermost causes in one line."""
    if lost := lost_partner(error):
        return lost
    found = [cause for cause in causes(error) if isinstance(cause, OSError)] or list(causes(error))[-1:]
    return "; ".join(dict.fromkeys(f"{type(cause).__name__}: {cause}" for cause in found))
