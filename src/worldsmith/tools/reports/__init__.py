"""`worldsmith report` and `worldsmith watch`: HTML reports of runs."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "report": Command("write the page of a run, or compare runs", {"": "worldsmith.tools.reports.report:Report"}),
    "watch": Command("show a run in a browser on this machine, live", {"": "worldsmith.tools.reports.watch:Watch"}),
}
