"""`UserError`: base of exceptions for problems that the user can fix. `CodedError`: exceptions with a code."""

import importlib.util
import re
from typing import Any

CODE = re.compile(r"\[E(1\d\d)\] ")
"""Matches the error code of a message: the id of its explanation in `tools/explain/patterns/5_own.toml`."""
SECRETS = re.compile(r"(?<=://)[^/\s@'\"]+@|\?[^\s'\"]*(?:Signature|token|sig|key)=[^\s'\"]*", re.IGNORECASE)
"""Matches credentials in an address: before the host, or in a signed URL."""


class CodedError(Exception):
    """Base class of exceptions whose message may begin with an error code, such as `[E103] `.

    `worldsmith explain` explains the code. As part of the message, it also appears in logs and in other processes.
    Credentials in addresses are removed from the message.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*(SECRETS.sub("", value) if isinstance(value, str) else value for value in args))

    @property
    def code(self) -> int | None:
        """The first code in the message, such as 103 for `[E103]`; None if the message has no code."""
        return next(map(int, CODE.findall(str(self))), None)


class UserError(CodedError):
    """Exception for a problem that the user can fix, such as a wrong setting or a missing file.

    The command line prints the message as one line without a traceback and exits with code 2.
    """


class WorkerProcessError(RuntimeError):
    """A worker process ended before its work was complete. The command line exits with code 1."""


def require_libraries(user: object, extra: str, *names: str, error: type[Exception] = UserError) -> None:
    """Raises an error with the command that installs it, if an optional library is not installed.

    Args:
        user: What needs the libraries, such as "float8 training" or the path of a file.
        extra: Optional dependencies of the package that contain the libraries.
        *names: Names of the libraries, as they are imported.
        error: Class of the error.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise error(f"{user} needs {name}, which is not installed: `pip install 'worldsmith[{extra}]'`")
