"""`worldsmith check`: inspects the data and the requirements of a run before it starts."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "check": Command(
        "validate a dataset before training, as the run would read it",
        {"": "worldsmith.tools.check.check:CheckData"},
        about_run=True,
    ),
}
