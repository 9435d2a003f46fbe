"""`worldsmith lineage`: shows what a result was computed from."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "lineage": Command(
        "show the data, weights and code that produced a result",
        {"": "worldsmith.tools.lineage.show_lineage:ShowLineage"},
    ),
}
