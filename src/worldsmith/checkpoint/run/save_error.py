"""`SaveError`: a checkpoint could not be written, with the cause from the errors of PyTorch and of all ranks."""

from __future__ import annotations

import errno

from worldsmith.distributed.peers import causes, lost_partner
from worldsmith.files.errors import CodedError


class SaveError(CodedError):
    """A checkpoint could not be written. Its incomplete files are removed; complete checkpoints are unchanged."""


def is_disk_full(error: BaseException) -> bool:
    """Returns whether a full disk or quota caused the error, on any rank."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return any(isinstance(cause, OSError) and cause.errno in full for cause in causes(error))


def is_expected(error: BaseException) -> bool:
    """Returns whether the file system or an ended process caused the error, and not a bug."""
    return any(isinstance(cause, OSError) for cause in causes(error)) or lost_partner(error) is not None


def describe_causes(error: BaseException) -> str:
    """Returns the innermost causes on one line."""
    if lost := lost_partner(error):
        return lost
    found = [cause for cause in causes(error) if isinstance(cause, OSError)] or list(causes(error))[-1:]
    return "; ".join(dict.fromkeys(f"{type(cause).__name__}: {cause}" for cause in found))
