"""`worldsmith lineage`: shows what a result was computed from."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "lineage": Command(
        "show which data, weights and code a result was made from", {"": "worldsmith.tools.lineage.draw:ShowLineage"}
    ),
}
