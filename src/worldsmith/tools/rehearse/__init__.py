"""`worldsmith train --rehearse`: simulates the first step, save, resume and export of every rank of a run."""

from worldsmith.actions.registry import Command

COMMANDS: dict[str, Command] = {}
"""None: it is a flag of `worldsmith train`."""
