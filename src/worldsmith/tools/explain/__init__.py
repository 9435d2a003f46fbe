"""`worldsmith explain`: explains the errors in a log."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "explain": Command(
        "say what the errors of a log mean, and what to change", {"": "worldsmith.tools.explain.explain:Explain"}
    ),
}
