"""`worldsmith explain`: what the errors of a log mean."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "explain": Command(
        "explain the errors of a log and how to fix them", {"": "worldsmith.tools.explain.explain:Explain"}
    ),
}
