"""`UserError`: the exception of every room for what the user can mend. `CodedError`: errors that have a code."""

from __future__ import annotations

import re

CODE = re.compile(r"\[E(1\d\d)\] ")
"""An error code in a message."""


class CodedError(Exception):
    """Base of the errors that `worldsmith explain` may know by a code.

    The message begins with the code, as `[E103] `, so that logs, errors that quote it and other processes keep it.

    Args:
        args: The message.
        code: Id of the explanation in `tools/explain/patterns/5_own.toml`.
    """

    def __init__(self, *args: object, code: int | None = None) -> None:
        super().__init__(*args if code is None else (f"[E{code}] {args[0]}", *args[1:]))

    @property
    def code(self) -> int | None:
        """The first code in the message; None if there is none."""
        found = CODE.search(str(self))
        return int(found[1]) if found else None


class UserError(CodedError):
    """Something that the user can mend: printed as one line, exit code 2, no traceback."""
