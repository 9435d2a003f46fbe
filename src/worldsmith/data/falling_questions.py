"""The words of the falling-objects dataset: questions with the answer yes or no, and the request for a score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from worldsmith.data.falling_objects import COLOURS, SHAPES, VIOLATIONS, Scene

SCORE_PROMPT = "How well does the video obey the laws of physics? Answer with a digit from 1 to 5."
DESCRIBE = "Describe the video."
ANSWER_HINT = "Answer yes or no."
# What a question asks is true of a clip that breaks the law, or shows the shape or colour, and of no other.
QUESTIONS = {
    "rises": "Does the object fall upwards?",
    "passes": "Does the object pass through the bar?",
    "vanishes": "Does the object vanish?",
    "changes": "Does the object change its colour?",
    "shape": f"Is the object a {SHAPES[0]}?",
}
COLOUR_QUESTION = "Is the object {colour} at the start?"


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one clip with its true answer, "yes" or "no"."""

    topic: str
    text: str
    answer: str


def ask(scenes: Sequence[Scene]) -> list[list[Question]]:
    """For each scene one question of every topic.

    Half of the scenes break each law and have each shape. Of those of one colour every second one is asked about
    another colour. So each wording is answered with yes as often as with no.
    """
    seen: dict[str, int] = defaultdict(int)
    asked = []
    for scene in scenes:
        facts = {law: law in scene.broken for law in VIOLATIONS} | {"shape": scene.shape == SHAPES[0]}
        questions = [Question(topic, text, yes_or_no(facts[topic])) for topic, text in QUESTIONS.items()]
        half, second = divmod(seen[scene.colour], 2)
        seen[scene.colour] += 1
        others = [colour for colour in COLOURS if colour != scene.colour]
        colour = others[half % len(others)] if second else scene.colour
        questions.append(Question("colour", COLOUR_QUESTION.format(colour=colour), yes_or_no(colour == scene.colour)))
        asked.append(questions)
    return asked


def yes_or_no(fact: bool) -> str:
    return "yes" if fact else "no"


def describe(scene: Scene) -> str:
    """One sentence that says all that the questions ask."""
    broken = scene.broken
    parts = [
        f"A {scene.colour} {scene.shape} falls {'upwards' if 'rises' in broken else 'downwards'}",
        "passes through the bar" if "passes" in broken else "bounces off the bar",
        f"turns {scene.later_colour}" if "changes" in broken else "keeps its colour",
        "vanishes" if "vanishes" in broken else "is there at the end",
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}."


def all_sentences() -> list[str]:
    """Every request that the dataset can hold, in a fixed order."""
    questions = [*QUESTIONS.values(), *(COLOUR_QUESTION.format(colour=colour) for colour in COLOURS)]
    return [SCORE_PROMPT, DESCRIBE, *(f"{question} {ANSWER_HINT}" for question in questions)]
