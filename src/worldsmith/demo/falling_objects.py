"""The falling-objects dataset: one object is dropped onto a bar, and up to four laws of physics are broken.

A clip has a score of 5 minus one point for each of the four laws in `VIOLATIONS` that it breaks. In every round of 60
clips each score occurs 12 times and each law is broken in 30 clips, so that the answer to a question about one law is
"yes" for half of the clips.

Each of the folders videophy2_train and videophy2_val holds the scores in the VideoPhy-2 layout (meta.json, media/,
text/) and questions with the answer yes or no in the LLaVA layout (annotations.json). A training record has all
questions about a clip in one conversation; a held-out record has one question.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from worldsmith.data.dataset_folder import write_json
from worldsmith.data.video_writer import write_video
from worldsmith.demo.moving_shapes import CANVAS, COLOURS, RGB, SHAPES, signed_distance
from worldsmith.demo.synthetic_dataset import SPLITS, SyntheticDataset

# Broken laws: the object falls upwards; passes through the bar; vanishes before the end; changes its color.
VIOLATIONS = ("rises", "passes", "vanishes", "changes")
BAR, BAR_TONE, EDGE = 5.0, 225.0, 2.0
SUBSTEPS = 16
# Laws broken by each clip of a round of 60: each number of violations 12 times, each of its combinations equally often.
ROUND = tuple(
    frozenset(broken)
    for count in range(len(VIOLATIONS) + 1)
    for broken in itertools.combinations(VIOLATIONS, count)
    for _ in range(12 // len(list(itertools.combinations(VIOLATIONS, count))))
)
SCORE_PROMPT = "How well does the video obey the laws of physics? Answer with a digit from 1 to 5."
DESCRIBE = "Describe the video."
ANSWER_HINT = "Answer yes or no."
# Topic -> question about every clip: whether it breaks a law, on which side the object is, and whether it is red.
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
DESCRIBED_OF = 6
"""Every 6th training clip also has a description. A description has many more tokens than an answer, and the loss is a
mean over tokens: with a description of every clip the questions would hardly affect the loss."""
RED_IN_HALF = ("red", "red", "red", *(colour for colour in COLOURS if colour != "red"))


@dataclass(frozen=True)
class FallingObjects(SyntheticDataset):
    """Parameters of a falling-objects dataset: clips with scores and questions, for training a reasoner."""

    kind = "falling-objects"
    format_version = 2
    min_frames = 8
    contents = tuple(f"videophy2_{split}" for split in SPLITS)

    clips: int = 1200
    val_clips: int = 120
    num_frames: int = 16
    topics: list[Topic] = field(default_factory=lambda: list(TOPICS))
    """Topics of the questions in annotations.json."""

    def check(self, out: Path | None = None) -> None:
        """Raises ValueError for invalid parameters, unknown or repeated topics, or too little disk space for `out`."""
        super().check(out)
        if not self.topics or len(set(self.topics)) < len(self.topics) or not set(self.topics) <= set(TOPICS):
            raise ValueError(f"{self.kind}: expected distinct topics among {', '.join(TOPICS)}; found {self.topics}")

    def write(self, out: Path, clip_written: Callable[[], None]) -> dict[str, Any]:
        """Writes clips, scores and questions of both splits into `out` and calls `clip_written` after each clip.

        Returns the number of clips of each score by split, for dataset.json.
        """
        scores = {}
        for split, name in zip(SPLITS, self.contents, strict=True):
            folder = out / name
            (folder / "media").mkdir(parents=True)
            (folder / "text").mkdir()
            scenes = draw_scenes(self, split)
            entries = []
            for index, scene in enumerate(scenes):
                frames = render_falling_object(scene, size=self.size, num_frames=self.num_frames)
                video, conversation = video_name(index), conversation_name(index)
                write_video(folder / video, frames, self.fps, crf=10, preset="veryfast")
                write_json(folder / conversation, score_conversation(scene))
                entries.append({"id": Path(conversation).stem, "media": video, "conversation": conversation})
                clip_written()
            write_json(folder / "meta.json", entries)
            write_json(folder / "annotations.json", list(llava_records(self, split, scenes)))
            scores[split] = [sum(scene.score == score for scene in scenes) for score in range(1, 6)]
        return {"clips_of_score_1_to_5": scores}


@dataclass(frozen=True, slots=True)
class FallingScene:
    """Parameters that determine the pixels of a clip of a falling object.

    Lengths are in 1/64 of the image side; times are fractions of the clip (0 to 1).
    """

    shape: str
    colour: str
    later_colour: str
    broken: frozenset[str]
    side: float
    x: float
    start: float
    bar: float
    fall_time: float
    bounce: float
    change_time: float
    vanish_time: float
    background: tuple[float, float, float]

    @property
    def score(self) -> int:
        """Plausibility score, from 5 (no law broken) to 1 (all four broken)."""
        return 5 - len(self.broken)

    @property
    def left(self) -> bool:
        """Whether the object is in the left half of the image, in all frames."""
        return self.x < CANVAS / 2


def sample_scene(rng: np.random.Generator, broken: frozenset[str], colour: str, shape: str, left: bool) -> FallingScene:
    """Returns a random scene of an object that breaks exactly the laws in `broken` (names in `VIOLATIONS`).

    `left` selects the half of the image in which the object falls.
    """
    side = rng.uniform(14.0, 18.0)
    # Measured along the fall, from the side where the object starts.
    start = EDGE + side / 2 + rng.uniform(0.0, 2.0)
    bar = CANVAS / 2 + rng.uniform(0.0, 6.0)
    # Its center keeps this distance from the image's middle line, so that left and right are clear.
    aside = rng.uniform(4.0, CANVAS / 2 - EDGE - side / 2)
    return FallingScene(
        shape=shape,
        colour=colour,
        later_colour=rng.choice([other for other in COLOURS if other != colour]),
        broken=broken,
        side=side,
        x=CANVAS / 2 - aside if left else CANVAS / 2 + aside,
        start=start,
        bar=bar,
        fall_time=rng.uniform(0.22, 0.32),
        bounce=rng.uniform(0.6, 0.8),
        change_time=rng.uniform(0.25, 0.55),
        vanish_time=rng.uniform(0.65, 0.8),
        background=tuple(rng.uniform(118.0, 138.0) + rng.uniform(-4, 4, 3)),
    )


def path(scene: FallingScene, num_frames: int) -> np.ndarray:
    """Returns how far the object's center is below the top of the image in each frame: float64 [T], image side = 64.

    The acceleration is constant. The object bounces off the bar, or off the image's edge if it passes through the bar.
    """
    passes = "passes" in scene.broken
    contact = scene.bar - BAR / 2 - scene.side / 2
    stop = CANVAS - EDGE - scene.side / 2 if passes else contact
    gravity = 2 * (contact - scene.start) / scene.fall_time**2
    step = 1.0 / (SUBSTEPS * (num_frames - 1))
    at, speed, heights = scene.start, 0.0, []
    for index in range(SUBSTEPS * (num_frames - 1) + 1):
        if index % SUBSTEPS == 0:
            heights.append(at)
        at, speed = at + speed * step + gravity * step * step / 2, speed + gravity * step
        if at > stop:
            at, speed = 2 * stop - at, -scene.bounce * speed
    fallen = np.minimum(np.array(heights), stop)
    return CANVAS - fallen if "rises" in scene.broken else fallen


def render_falling_object(scene: FallingScene, *, size: int = 64, num_frames: int = 16) -> np.ndarray:
    """Renders the clip of a scene with anti-aliased edges.

    Args:
        scene: The scene.
        size: Height and width in pixels.
        num_frames: Number of frames T.

    Returns:
        uint8 ``[T, size, size, 3]``.
    """
    scale = size / CANVAS
    grid = ((np.arange(size) + 0.5) / scale).astype(np.float32)
    times = np.linspace(0.0, 1.0, num_frames)
    bar = CANVAS - scene.bar if "rises" in scene.broken else scene.bar
    background = np.broadcast_to(np.array(scene.background, np.float32), (size, size, 3))
    on_bar = np.clip(0.5 + (BAR / 2 - np.abs(grid - bar)) * scale, 0.0, 1.0)[:, None, None].astype(np.float32)
    background = background * (1 - on_bar) + np.float32(BAR_TONE) * on_bar
    frames = np.empty((num_frames, size, size, 3), np.uint8)
    for index, (time, y) in enumerate(zip(times, path(scene, num_frames))):
        outside = signed_distance(
            scene.shape, (grid - np.float32(scene.x))[None, :], (grid - np.float32(y))[:, None], scene.side / 2
        )
        cover = np.clip(0.5 - outside * scale, 0.0, 1.0)[..., None].astype(np.float32)
        if "vanishes" in scene.broken and time >= scene.vanish_time:
            cover = np.zeros_like(cover)
        changed = "changes" in scene.broken and time >= scene.change_time
        colour = np.array(RGB[scene.later_colour if changed else scene.colour], np.float32)
        frames[index] = np.clip(np.rint(background * (1 - cover) + colour * cover), 0, 255).astype(np.uint8)
    return frames


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one clip with its correct answer, "yes" or "no"."""

    topic: str
    text: str
    answer: str


def list_questions(scene: FallingScene) -> list[Question]:
    """Returns one yes/no question per topic about a scene, with the correct answer.

    In every 60 scenes of a split (see `draw_scenes`), half of the answers to each topic are "yes".
    """
    facts = {law: law in scene.broken for law in VIOLATIONS} | {"left": scene.left, "red": scene.colour == "red"}
    return [Question(topic, text, "yes" if facts[topic] else "no") for topic, text in QUESTIONS.items()]


def describe_scene(scene: FallingScene) -> str:
    """Returns one sentence that describes the object of a scene and answers the questions of all topics."""
    broken = scene.broken
    side, way = "left" if scene.left else "right", "upwards" if "rises" in broken else "downwards"
    parts = [
        f"A {scene.colour} {scene.shape} on the {side} falls {way}",
        "passes through the bar" if "passes" in broken else "bounces off the bar",
        f"turns {scene.later_colour}" if "changes" in broken else "keeps its colour",
        "vanishes" if "vanishes" in broken else "is there at the end",
    ]
    return f"{', '.join(parts[:-1])} and {parts[-1]}."


def draw_scenes(dataset: FallingObjects, split: str) -> list[FallingScene]:
    """Returns the scenes of a split ("train" or "val").

    Scenes depend only on the seed of the dataset and the split; a larger split begins with the same scenes.

    In every 60 scenes each score occurs 12 times; each broken law, each shape, each half of the image and red objects
    occur 30 times.
    """
    scenes = []
    for index in range(dataset.counts[split]):
        round_index, place = divmod(index, len(ROUND))
        order = np.random.default_rng([dataset.seed, SPLITS[split], 0, round_index])
        laws, colour, shape, half = (int(order.permutation(len(ROUND))[place]) for _ in range(4))
        rng = np.random.default_rng([dataset.seed, SPLITS[split], 1, index])
        object_ = RED_IN_HALF[colour % len(RED_IN_HALF)], SHAPES[shape % len(SHAPES)], half % 2 == 0
        scenes.append(sample_scene(rng, ROUND[laws], *object_))
    return scenes


def score_conversation(scene: FallingScene) -> dict[str, Any]:
    """Returns the VideoPhy-2 conversation that requests the score of the clip of a scene; the answer is one digit."""
    request = [{"type": "video", "video": "video_0"}, {"type": "text", "text": SCORE_PROMPT}]
    answer = [{"type": "text", "text": str(scene.score)}]
    return {"conversations": [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]}


def llava_records(dataset: FallingObjects, split: str, scenes: list[FallingScene]) -> Iterator[dict[str, Any]]:
    """Yields the LLaVA records (annotations.json) about the scenes of a split ("train" or "val").

    A training record has all questions about a clip; some clips also have a record with a description. A validation
    record has one question.
    """
    rng = np.random.default_rng([dataset.seed, SPLITS[split], 2])
    for index, scene in enumerate(scenes):
        questions = [question for question in list_questions(scene) if question.topic in dataset.topics]
        if split == "train":
            if DESCRIPTION in dataset.topics and index % DESCRIBED_OF == 0:
                yield llava_record(index, DESCRIPTION, [(DESCRIBE, describe_scene(scene))])
            if not questions:
                continue
            yield llava_record(
                index, "questions", [question_and_answer(questions[i]) for i in rng.permutation(len(questions))]
            )
        else:
            for question in questions:
                yield llava_record(index, question.topic, [question_and_answer(question)])


def question_and_answer(question: Question) -> tuple[str, str]:
    return f"{question.text} {ANSWER_HINT}", question.answer


def llava_record(index: int, kind: str, turns: list[tuple[str, str]]) -> dict[str, Any]:
    """Returns the LLaVA record of one conversation about one clip; the video precedes the first question.

    Args:
        index: Index of the clip.
        kind: Suffix of the record id, such as the topic.
        turns: (question, answer) of each turn.
    """
    conversations = []
    for place, (question, answer) in enumerate(turns):
        tag = "<video>\n" if place == 0 else ""
        conversations += [{"from": "human", "value": tag + question}, {"from": "gpt", "value": answer}]
    return {"id": f"{Path(video_name(index)).stem}-{kind}", "video": video_name(index), "conversations": conversations}


def video_name(index: int) -> str:
    return f"media/video_{index + 1:04d}.mp4"


def conversation_name(index: int) -> str:
    return f"text/conversation_{index + 1:04d}.json"
