"""`worldsmith quantize`: writes a reasoner with fewer bits per weight."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "quantize": Command(
        "quantize a reasoner to fewer bits per weight and check its answers",
        {"answers": "worldsmith.tools.quantize.quantize:Quantize"},
        by="model",
    ),
}
