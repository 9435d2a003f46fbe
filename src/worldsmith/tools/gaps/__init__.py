"""`worldsmith gaps`: lists the wrong answers of a model as a table."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "gaps": Command(
        "list the failure cases of a reasoner as a table", {"": "worldsmith.tools.gaps.find_gaps:FindGaps"}
    ),
}
