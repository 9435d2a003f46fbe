"""`worldsmith quantize`: writes a reasoner with fewer bits per weight."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "quantize": Command(
        "make a reasoner's folder with fewer bits for each weight, and judge it",
        {"answers": "worldsmith.tools.quantize.quantize:Quantize"},
        by="model",
    ),
}
