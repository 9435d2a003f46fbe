"""`SaveError`: a checkpoint could not be written, with the cause from the errors of PyTorch and of all ranks."""

from __future__ import annotations

import errno

from worldsmith.distributed.coordination_group import causes, lost_partner
from worldsmith.files.errors import CodedError


class SaveError(CodedError):
    """Error: a checkpoint could not be written. Its files are removed, and complete checkpoints are unchanged."""


def is_disk_full(error: BaseException) -> bool:
    """Returns whether a full disk or an exceeded quota caused the error, on this or another rank."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return any(isinstance(cause, OSError) and cause.errno in full for cause in causes(error))


def is_expected(error: BaseException) -> bool:
    """Returns whether the file system or the end of another process caused the error; False for a bug."""
    return any(isinstance(cause, OSError) for cause in causes(error)) or lost_partner(error) is not None


def describe_causes(error: BaseException) -> str:
    """Returns the original causes of an error of a save, from all ranks, as one line of text."""
    if lost := lost_partner(error):
        return lost
    found = [cause for cause in causes(error) if isinstance(cause, OSError)] or list(causes(error))[-1:]
    return "; ".join(dict.fromkeys(f"{type(cause).__name__}: {cause}" for cause in found))
