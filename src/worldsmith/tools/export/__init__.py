"""`worldsmith export` and `worldsmith convert`: write weights in the formats of other libraries."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "convert": Command(
        "convert released weights to a checkpoint, a diffusers folder, or another format",
        {"": "worldsmith.tools.export.convert:Convert"},
    ),
    "export": Command(
        "export a checkpoint to a folder that other libraries load", {"": "worldsmith.tools.export.export:Export"}
    ),
}
