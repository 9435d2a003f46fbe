"""`worldsmith generate`: generates videos and images with a model."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "generate": Command(
        "generate videos and images with a trained or released model",
        {"videos": "worldsmith.tools.generate.generate:GenerateVideos"},
        by="model",
    ),
}
