"""The words of the falling-objects dataset: questions with the answer yes or no, and the request for a score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from worldsmith.data.falling_objects import COLOURS, VIOLATIONS, Scene

SCORE_PROMPT = "How well does the video obey the laws of physics? Answer with a digit from 1 to 5."
DESCRIBE = "Describe the video."
ANSWER_HINT = "Answer yes or no."
# By topic, what is asked of every clip: whether it breaks a law, and where the object is.
QUESTIONS = {
    "rises": "Does the object fall upwards?",
    "passes": "Does the object pass through the bar?",
    "vanishes": "Does the object vanish?",
    "changes": "Does the object change its colour?",
    "left": "Is the object on the left?",
}
COLOUR_QUESTION = "Is the object {colour} at the start?"


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one clip with its true answer, "yes" or "no"."""

    topic: str
    text: str
    answer: str


def ask(scenes: Sequence[Scene]) -> list[list[Question]]:
    """For each scene the questions of all topics, then one about its own colour and one about another.

    Half of the scenes break each law and are on each side, and every colour takes its turn as the other one. So each
    wording is answered with yes as often as with no.
    """
    seen: dict[str, int] = defaultdict(int)
    asked = []
    for scene in scenes:
        facts = {law: law in scene.broken for law in VIOLATIONS} | {"left": scene.left}
        questions = [Question(topic, text, "yes" if facts[topic] else "no") for topic, text in QUESTIONS.items()]
        others = [colour for colour in COLOURS if colour != scene.colour]
        another = others[seen[scene.colour] % len(others)]
        seen[scene.colour] += 1
        questions.append(Question("colour", COLOUR_QUESTION.format(colour=scene.colour), "yes"))
        questions.append(Question("another_colour", COLOUR_QUESTION.format(colour=another), "no"))
        asked.append(questions)
    return asked


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
    questions = [*QUESTIONS.values(), *(COLOUR_QUESTION.format(colour=colour) for colour in COLOURS)]
    return [SCORE_PROMPT, DESCRIBE, *(f"{question} {ANSWER_HINT}" for question in questions)]
