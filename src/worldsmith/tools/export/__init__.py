"""`worldsmith export` and `worldsmith convert`: write weights in the formats of other libraries."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "convert": Command(
        "make a base checkpoint from weights in another format", {"": "worldsmith.tools.export.convert:Convert"}
    ),
    "export": Command(
        "turn a checkpoint into a folder that other libraries load", {"": "worldsmith.tools.export.export:Export"}
    ),
}
