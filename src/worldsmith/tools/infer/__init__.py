"""`worldsmith infer`: answers a question with a reasoner."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "infer": Command(
        "answer a question about images or videos with a reasoner",
        {"answers": "worldsmith.tools.infer.infer:Infer"},
        by="model",
    ),
}
