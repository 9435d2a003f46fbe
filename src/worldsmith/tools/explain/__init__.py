"""`worldsmith explain`: explains the errors in a log."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "explain": Command(
        "explain the errors of a log and how to fix them", {"": "worldsmith.tools.explain.explain:Explain"}
    ),
}
