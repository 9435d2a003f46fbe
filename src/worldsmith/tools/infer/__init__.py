"""`worldsmith infer`: answers a question with a reasoner."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "infer": Command("ask a reasoner one question", {"answers": "worldsmith.tools.infer.infer:Infer"}, by="model"),
}
