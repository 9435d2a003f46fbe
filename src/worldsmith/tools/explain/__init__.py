"""`worldsmith explain`: what the errors of a log mean."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "explain": Command(
        "say what the errors of a log mean, and what to change", {"": "worldsmith.tools.explain.explain:Explain"}
    ),
}
