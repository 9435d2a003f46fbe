"""The words of the falling-objects dataset: questions with the answer yes or no, and the request for a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from worldsmith.data.falling_objects import VIOLATIONS, Scene

SCORE_PROMPT = "How well does the video obey the laws of physics? Answer with a digit from 1 to 5."
DESCRIBE = "Describe the video."
ANSWER_HINT = "Answer yes or no."
# By topic, what is asked of every clip: whether it breaks a law, and of which colour and where the object is.
QUESTIONS = {
    "rises": "Does the object fall upwards?",
    "passes": "Does the object pass through the bar?",
    "vanishes": "Does the object vanish?",
    "changes": "Does the object change its colour?",
    "left": "Is the object on the left?",
    "red": "Is the object red at the start?",
}
Topic = Literal["rises", "passes", "vanishes", "changes", "left", "red", "description"]
TOPICS: list[Topic] = list(get_args(Topic))
DESCRIPTION = TOPICS[-1]


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one clip with its true answer, "yes" or "no"."""

    topic: str
    text: str
    answer: str


def ask(scene: Scene) -> list[Question]:
    """The questions of all topics. Each is answered with yes for half of the scenes of a round."""
    facts = {law: law in scene.broken for law in VIOLATIONS} | {"left": scene.left, "red": scene.colour == "red"}
    return [Question(topic, text, "yes" if facts[topic] else "no") for topic, text in QUESTIONS.items()]


def describe(scene: Scene) -> str:
    """One sentence that says what the object is, and all that the questions ask."""
    broken = scene.broken
    side, way = "left" if scene.left else "right", "upwards" if "rises" in broken else "downwards"
    parts = [
        f"A {scene.colour} {scene.shape} on the {side} falls {way}",
        "passes through the bar" if "passes" in broken else "bounces off the bar",
        f"turns {scene.later_colour}" if "changes" in broken else "keeps its colour",
        "vanishes" if "vanishes" in broken else "is there at the end",
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}."


def all_sentences() -> list[str]:
    """Every request that the dataset can hold, in a fixed order."""
    return [SCORE_PROMPT, DESCRIBE, *(f"{question} {ANSWER_HINT}" for question in QUESTIONS.values())]
