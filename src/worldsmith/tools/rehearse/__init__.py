"""`worldsmith train --rehearse`: what every rank of a run would do first, save, resume and export."""

from worldsmith.actions.registry import Command

COMMANDS: dict[str, Command] = {}
"""None: it is a flag of `worldsmith train`."""
