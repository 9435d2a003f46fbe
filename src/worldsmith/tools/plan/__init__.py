"""`worldsmith plan`: estimates what a run needs, and finds settings that make it fit."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "plan": Command(
        "say what a run would need: memory, time, disk, before it has a GPU",
        {"": "worldsmith.tools.plan.plan:PlanRun"},
        about_run=True,
    ),
}
