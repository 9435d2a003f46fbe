"""Writes the falling-objects dataset: clips, their scores in the VideoPhy-2 layout, questions in the LLaVA layout.

Each of the folders videophy2_train and videophy2_val holds meta.json, media/, text/ and annotations.json. The training
annotations ask all questions about a clip in one conversation; the held-out ones ask one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from worldsmith.data.clip_plan import ClipPlan
from worldsmith.data.falling_objects import COLOURS, ROUND, SHAPES, Scene, render, sample_scene
from worldsmith.data.falling_questions import (
    ANSWER_HINT,
    DESCRIBE,
    DESCRIPTION,
    SCORE_PROMPT,
    TOPICS,
    Question,
    Topic,
    ask,
    describe,
)
from worldsmith.data.made_folder import complete_folder, prepare_folder, write_json
from worldsmith.data.video_writer import write_video

SPLITS = {"train": 0, "val": 1}
DESCRIBED_OF = 6
"""One in so many training clips is described, too. A description has many more tokens than an answer, and a loss is the
mean over tokens: descriptions of all clips would drown the questions."""
RED_IN_HALF = ("red", "red", "red", *(colour for colour in COLOURS if colour != "red"))


@dataclass(frozen=True)
class FallingPlan(ClipPlan):
    """Clips for a reasoner."""

    kind = "falling-objects"
    format_version = 2
    least_frames = 8

    clips: int = 1200
    val_clips: int = 120
    num_frames: int = 16
    topics: list[Topic] = field(default_factory=lambda: list(TOPICS))
    """What annotations.json holds of each clip."""

    def check(self, out: Path | None = None) -> None:
        super().check(out)
        if not self.topics or len(set(self.topics)) < len(self.topics) or not set(self.topics) <= set(TOPICS):
            raise ValueError(f"{self.kind}: topics must be some of {', '.join(TOPICS)}, each once; found {self.topics}")


def make_dataset(
    out: str | Path,
    plan: FallingPlan,
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Writes both splits and, last, dataset.json under `out`; False if all of it was there already.

    An interrupted dataset is made anew. Raises ValueError for an impossible plan, and FileExistsError for a dataset of
    another plan (unless `force`) or a folder with other content.
    """
    out = Path(out)
    plan.check(out)
    if not prepare_folder(out, plan.header(), [folder_name(split) for split in SPLITS], force):
        return False
    scores, done = {}, 0
    for split, clips in plan.counts.items():
        folder = out / folder_name(split)
        (folder / "media").mkdir(parents=True)
        (folder / "text").mkdir()
        scenes = draw_scenes(plan, split)
        for index, scene in enumerate(scenes):
            frames = render(scene, size=plan.size, num_frames=plan.num_frames)
            write_video(folder / media(index), frames, plan.fps, crf=10, preset="veryfast")
            write_json(folder / text(index), score_conversation(scene))
            done += 1
            if progress is not None:
                progress(done, sum(plan.counts.values()))
        names = [Path(text(index)).stem for index in range(clips)]
        entries = [{"id": name, "media": media(i), "conversation": text(i)} for i, name in enumerate(names)]
        write_json(folder / "meta.json", entries)
        write_json(folder / "annotations.json", list(llava_records(plan, split, scenes)))
        scores[split] = [sum(scene.score == score for scene in scenes) for score in range(1, 6)]
    complete_folder(out, plan.header() | {"clips_of_score_1_to_5": scores})
    return True


def draw_scenes(plan: FallingPlan, split: str) -> list[Scene]:
    """The scenes of a split: a pure function of the seed and the split; more clips begin with the same ones.

    They come in rounds of 60, in which each score comes 12 times, and each broken law, each shape, each half of the
    picture and red objects 30 times.
    """
    scenes = []
    for index in range(plan.counts[split]):
        round_index, place = divmod(index, len(ROUND))
        order = np.random.default_rng([plan.seed, SPLITS[split], 0, round_index])
        laws, colour, shape, half = (int(order.permutation(len(ROUND))[place]) for _ in range(4))
        rng = np.random.default_rng([plan.seed, SPLITS[split], 1, index])
        object_ = RED_IN_HALF[colour % len(RED_IN_HALF)], SHAPES[shape % len(SHAPES)], half % 2 == 0
        scenes.append(sample_scene(rng, ROUND[laws], *object_))
    return scenes


def score_conversation(scene: Scene) -> dict[str, Any]:
    """The request for a score and the score: a bare digit."""
    request = [{"type": "video", "video": "video_0"}, {"type": "text", "text": SCORE_PROMPT}]
    answer = [{"type": "text", "text": str(scene.score)}]
    return {"conversations": [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]}


def llava_records(plan: FallingPlan, split: str, scenes: list[Scene]) -> Iterator[dict[str, Any]]:
    """The LLaVA-style records of a split."""
    rng = np.random.default_rng([plan.seed, SPLITS[split], 2])
    for index, scene in enumerate(scenes):
        questions = [question for question in ask(scene) if question.topic in plan.topics]
        if split == "train":
            if DESCRIPTION in plan.topics and index % DESCRIBED_OF == 0:
                yield record(index, DESCRIPTION, [(DESCRIBE, describe(scene))])
            if not questions:
                continue
            yield record(index, "questions", [turn(questions[i]) for i in rng.permutation(len(questions))])
        else:
            for question in questions:
                yield record(index, question.topic, [turn(question)])


def turn(question: Question) -> tuple[str, str]:
    return f"{question.text} {ANSWER_HINT}", question.answer


def record(index: int, kind: str, turns: list[tuple[str, str]]) -> dict[str, Any]:
    """One conversation about one clip; the video stands before the first question."""
    conversations = []
    for place, (question, answer) in enumerate(turns):
        tag = "<video>\n" if place == 0 else ""
        conversations += [{"from": "human", "value": tag + question}, {"from": "gpt", "value": answer}]
    return {"id": f"{Path(media(index)).stem}-{kind}", "video": media(index), "conversations": conversations}


def folder_name(split: str) -> str:
    return f"videophy2_{split}"


def media(index: int) -> str:
    return f"media/video_{index + 1:04d}.mp4"


def text(index: int) -> str:
    return f"text/conversation_{index + 1:04d}.json"
