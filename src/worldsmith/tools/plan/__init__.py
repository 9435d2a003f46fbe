"""`worldsmith plan`: estimates what a run needs, and finds settings that make it fit."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "plan": Command(
        "estimate the memory, time and disk of a run without a GPU",
        {"": "worldsmith.tools.plan.plan:PlanRun"},
        about_run=True,
    ),
}
