"""`worldsmith check`: inspects the data and the requirements of a run before it starts."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "check": Command(
        "read the data of a run, or a data set, as the run would, and say what is in it",
        {"": "worldsmith.tools.check.check:CheckData"},
        about_run=True,
    ),
}
