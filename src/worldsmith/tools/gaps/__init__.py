"""`worldsmith gaps`: lists the wrong answers of a model as a table."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "gaps": Command("list what a model answers wrongly, as a table", {"": "worldsmith.tools.gaps.find_gaps:FindGaps"}),
}
