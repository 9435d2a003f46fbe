"""The files of the falling-objects dataset."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import av
import numpy as np
import pytest

from worldsmith.demo.falling_objects import (
    SCORE_PROMPT,
    FallingObjects,
    draw_scenes,
    list_questions,
    render_falling_object,
)

PLAN = FallingObjects(clips=6, val_clips=3, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("falling") / "set"
    assert PLAN.make(out)
    return out


def files(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def read(path):
    return json.loads(path.read_text())


def test_the_layout_is_that_of_videophy2(folder):
    scenes = draw_scenes(PLAN, "train")
    meta = read(folder / "videophy2_train/meta.json")
    assert meta[0] == {
        "id": "conversation_0001",
        "media": "media/video_0001.mp4",
        "conversation": "text/conversation_0001.json",
    }
    assert len(meta) == len(scenes) == 6
    for entry, scene in zip(meta, scenes):
        user, assistant = read(folder / "videophy2_train" / entry["conversation"])["conversations"]
        assert user == {
            "role": "user",
            "content": [{"type": "video", "video": "video_0"}, {"type": "text", "text": SCORE_PROMPT}],
        }
        assert assistant == {"role": "assistant", "content": [{"type": "text", "text": str(scene.score)}]}
        with av.open(str(folder / "videophy2_train" / entry["media"])) as video:
            stream = video.streams.video[0]
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(stream)])
            assert stream.average_rate == 8
        assert frames.shape == (16, 64, 64, 3)
        assert np.abs(frames.astype(int) - render_falling_object(scene)).mean() < 3


def test_annotations_are_llava_records_with_the_true_answers(folder):
    for split in ("train", "val"):
        scenes = draw_scenes(PLAN, split)
        records = read(folder / f"videophy2_{split}/annotations.json")
        assert len({r["id"] for r in records}) == len(records)
        found = Counter()
        for record in records:
            turns = record["conversations"]
            assert [t["from"] for t in turns] == ["human", "gpt"] * (len(turns) // 2)
            assert turns[0]["value"].startswith("<video>\n")
            assert sum("<video>" in t["value"] for t in turns) == 1
            pairs = zip(turns[::2], turns[1::2])
            found.update((record["video"], q["value"].removeprefix("<video>\n"), a["value"]) for q, a in pairs)
            assert split == "train" or len(turns) == 2
        expected = {
            (f"media/video_{i + 1:04d}.mp4", f"{q.text} Answer yes or no.", q.answer)
            for i, scene in enumerate(scenes)
            for q in list_questions(scene)
        }
        descriptions = {key for key in found if key[1] == "Describe the video."}
        assert set(found) - descriptions == expected
        assert len(descriptions) == (len(scenes[::6]) if split == "train" else 0)


def test_the_same_plan_gives_the_same_bytes_and_another_seed_others(folder, tmp_path):
    PLAN.make(tmp_path / "again")
    assert files(tmp_path / "again") == files(folder)
    replace(PLAN, seed=6).make(tmp_path / "other")
    clip = "videophy2_train/media/video_0001.mp4"
    assert files(tmp_path / "other")[clip] != files(folder)[clip]


def test_no_clip_is_in_both_splits():
    plan = FallingObjects(clips=240, val_clips=240)
    train, val = draw_scenes(plan, "train"), draw_scenes(plan, "val")
    clips = {render_falling_object(scene).tobytes() for scene in [*train, *val]}
    assert len(clips) == 480


def test_held_out_questions_cannot_be_answered_from_their_text():
    scenes = draw_scenes(FallingObjects(val_clips=120), "val")
    answers = Counter((q.text, q.answer) for scene in scenes for q in list_questions(scene))
    best = sum(max(answers[text, "yes"], answers[text, "no"]) for text in {text for text, _ in answers})
    assert best == sum(answers.values()) / 2


def test_more_clips_begin_with_the_same_ones():
    assert draw_scenes(PLAN, "train") == draw_scenes(replace(PLAN, clips=80), "train")[:6]


def test_a_complete_dataset_is_left_alone_and_another_plan_refused(folder):
    before = files(folder)
    assert not PLAN.make(folder)
    with pytest.raises(FileExistsError, match="seed 5, requested 6"):
        replace(PLAN, seed=6).make(folder)
    assert files(folder) == before


@pytest.mark.parametrize(("change", "said"), [({"clips": 0}, "clips must be at least 1"), ({"size": 65}, "even")])
def test_impossible_plans_are_refused(tmp_path, change, said):
    with pytest.raises(ValueError, match=said):
        replace(PLAN, **change).make(tmp_path)


def test_only_the_topics_that_are_wanted_are_asked(tmp_path):
    plan = replace(PLAN, topics=["red", "left"])
    plan.make(tmp_path / "set")
    train, val = (read(tmp_path / f"set/videophy2_{split}/annotations.json") for split in ("train", "val"))
    asked = [turn["value"] for record in train for turn in record["conversations"] if turn["from"] == "human"]
    assert len(train) == 6
    assert sum("red at the start" in text for text in asked) == sum("on the left" in text for text in asked) == 6
    assert len(asked) == 12
    assert [record["id"].partition("-")[2] for record in val] == ["left", "red"] * 3


@pytest.mark.parametrize("topics", [[], ["red", "red"], ["green"]])
def test_topics_that_there_are_not(topics):
    with pytest.raises(
        ValueError, match="expected distinct topics among rises, passes, vanishes, changes, left, red, description"
    ):
        replace(PLAN, topics=topics).check()
