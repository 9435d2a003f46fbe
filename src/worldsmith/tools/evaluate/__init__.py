"""`worldsmith evaluate`: measures what a model has learned, from its videos or answers."""

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
