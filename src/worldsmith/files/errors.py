"""`UserError`: the exception of every room for what the user can mend."""


class UserError(Exception):
    """Something that the user can mend: printed as one line, exit code 2, no traceback."""
