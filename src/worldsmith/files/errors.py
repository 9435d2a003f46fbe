"""`UserError`: the exception of every room for what the user can mend. `CodedError`: errors that have a code."""

import re

CODE = re.compile(r"\[E(1\d\d)\] ")
"""Error code at the start of a message: the id of its explanation in `tools/explain/patterns/5_own.toml`."""


class CodedError(Exception):
    """Base of the errors whose message may begin with a code, such as `[E103] `.

    Logs, errors that quote the message and other processes keep the code.
    """

    @property
    def code(self) -> int | None:
        """The first code in the message; None without one."""
        return next(map(int, CODE.findall(str(self))), None)


class UserError(CodedError):
    """Something that the user can mend: printed as one line, exit code 2, no traceback."""
