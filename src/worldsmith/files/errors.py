"""`UserError`: base of exceptions for problems that the user can fix. `CodedError`: exceptions with a code."""

import re

CODE = re.compile(r"\[E(1\d\d)\] ")
"""Error code at the start of a message: the id of its explanation in `tools/explain/patterns/5_own.toml`."""


class CodedError(Exception):
    """Base class of exceptions whose message may begin with a code, such as `[E103] `.

    The code is part of the text, so it survives in logs, in errors that quote the message and in other processes.
    """

    @property
    def code(self) -> int | None:
        """The first code in the message, such as 103 for `[E103]`; None if the message has no code."""
        return next(map(int, CODE.findall(str(self))), None)


class UserError(CodedError):
    """A problem that the user can fix.

    The command line prints the message as one line without a traceback and exits with code 2.
    """
