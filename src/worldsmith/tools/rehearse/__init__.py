"""`worldsmith train --rehearse`: simulates the first step, save, resume and export of every rank of a run."""

from worldsmith.actions.registry import Command

COMMANDS: dict[str, Command] = {}
"""Empty, because the rehearsal is a flag of `worldsmith train` and not a command."""
