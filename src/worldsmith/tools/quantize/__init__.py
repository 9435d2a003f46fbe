"""`worldsmith quantize`: a reasoner with fewer bits for each weight."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "quantize": Command(
        "quantize a reasoner to fewer bits per weight and check its answers",
        {"answers": "worldsmith.tools.quantize.quantize:Quantize"},
        by="model",
    ),
}
