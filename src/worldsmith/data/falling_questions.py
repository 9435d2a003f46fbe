"""The words of the falling-objects dataset: questions with the answer yes or no, and the request for a score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from worldsmith.data.falling_objects import COLOURS, SHAPES, Scene

SCORE_PROMPT = "How well does the video obey the laws of physics? Answer with a digit from 1 to 5."
DESCRIBE = "Describe the video."
ANSWER_HINT = "Answer yes or no."
# For each topic the question that is true of a clip, by what the clip shows.
TOPICS: dict[str, dict[object, str]] = {
    "rises": {True: "Does the object fall upwards?", False: "Does the object fall downwards?"},
    "passes": {True: "Does the object pass through the bar?", False: "Does the object bounce off the bar?"},
    "vanishes": {True: "Does the object vanish?", False: "Is the object still there at the end?"},
    "changes": {True: "Does the object change its colour?", False: "Does the object keep its colour?"},
    "colour": {colour: f"Is the object {colour} at the start?" for colour in COLOURS},
    "shape": {shape: f"Is the object a {shape}?" for shape in SHAPES},
}


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one clip with its true answer, "yes" or "no"."""

    topic: str
    text: str
    answer: str


def ask(scenes: Sequence[Scene]) -> list[list[Question]]:
    """For each scene one question of every topic.

    Of the scenes that show the same, every second one is asked what is true of it and the others what is not, so each
    wording is answered with yes as often as with no, as far as the scenes show each thing equally often.
    """
    asked: list[list[Question]] = [[] for _ in scenes]
    for topic, texts in TOPICS.items():
        seen: dict[object, int] = defaultdict(int)
        for scene, questions in zip(scenes, asked):
            shown = shown_by(scene, topic)
            half, second = divmod(seen[shown], 2)
            seen[shown] += 1
            others = [text for value, text in texts.items() if value != shown]
            text = others[half % len(others)] if second else texts[shown]
            questions.append(Question(topic, text, "no" if second else "yes"))
    return asked


def shown_by(scene: Scene, topic: str) -> object:
    """What a scene shows of a topic: one of the keys of its questions."""
    return getattr(scene, topic) if topic in ("colour", "shape") else topic in scene.broken


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
    return [SCORE_PROMPT, DESCRIBE, *(f"{text} {ANSWER_HINT}" for texts in TOPICS.values() for text in texts.values())]
