"""`worldsmith lineage`: what a result was made from."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "lineage": Command(
        "show which data, weights and code a result was made from", {"": "worldsmith.tools.lineage.draw:ShowLineage"}
    ),
}
