"""`worldsmith evaluate`: what a model has learned, by its videos or its answers."""

from worldsmith.actions.registry import Command

COMMANDS = {
    "evaluate": Command(
        "measure what a model has learned",
        {
            "videos": "worldsmith.tools.evaluate.evaluate_videos:EvaluateVideos",
            "answers": "worldsmith.tools.evaluate.evaluate_answers:EvaluateAnswers",
        },
        by="model",
    ),
}
