"""`worldsmith report` and `worldsmith watch`: HTML reports of runs."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "report": Command(
        "write the HTML report of a run, or compare runs", {"": "worldsmith.tools.reports.report:Report"}
    ),
    "watch": Command(
        "show the HTML report of a run in a browser, updated live", {"": "worldsmith.tools.reports.watch:Watch"}
    ),
}
