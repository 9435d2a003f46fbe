"""What happens in the clips of falling objects, and the scores and answers that follow from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from worldsmith.demo.falling_objects import (
    BAR,
    CANVAS,
    QUESTIONS,
    ROUND,
    VIOLATIONS,
    describe_scene,
    list_questions,
    path,
    render_falling_object,
    sample_scene,
)
from worldsmith.demo.moving_shapes import RGB

CASES = [frozenset(c) for n in range(5) for c in itertools.combinations(VIOLATIONS, n)]


@pytest.fixture(params=CASES, ids=lambda broken: "+".join(sorted(broken)) or "plausible")
def scene(request):
    return sample_scene(
        np.random.default_rng(len(request.param)), request.param, "red", "square", len(request.param) % 2 == 0
    )


def coloured(frame):
    """The pixels of a frame that no grey of background or bar has: bool [H, W]."""
    return np.ptp(frame.astype(int), axis=-1) > 60


def test_a_clip_breaks_the_laws_that_it_names_and_no_other(scene):
    clip = render_falling_object(scene)
    shown = [coloured(frame) for frame in clip]
    rows = [np.nonzero(mask)[0].mean() if mask.any() else None for mask in shown]
    there = [row for row in rows if row is not None]
    assert (rows[-1] is None) == ("vanishes" in scene.broken)
    assert None not in rows[: len(there)]
    falls = 1 if "rises" not in scene.broken else -1
    bar = scene.bar if falls == 1 else CANVAS - scene.bar
    assert np.sign(bar - there[0]) == falls
    assert any((row - bar) * falls > BAR for row in there) == ("passes" in scene.broken)
    first, last = (clip[i][shown[i]].mean(0) for i in (0, len(there) - 1))
    assert nearest_colour(first) == "red"
    assert (nearest_colour(last) != "red") == ("changes" in scene.broken)
    assert scene.score == 5 - len(scene.broken)


def nearest_colour(pixel):
    return min(RGB, key=lambda name: np.abs(pixel - RGB[name]).sum())


def test_the_fall_is_faster_and_faster_until_the_bar(scene):
    heights = path(scene, 65)
    before = int(scene.fall_time * 64)
    steps = np.abs(np.diff(heights[:before]))
    assert np.allclose(np.diff(steps), np.diff(steps)[0], atol=1e-6)
    assert np.diff(steps)[0] > 0
    assert (np.diff(heights)[0] < 0) == ("rises" in scene.broken)


def test_a_round_has_each_score_and_each_broken_law_equally_often():
    assert [sum(len(broken) == n for broken in ROUND) for n in range(5)] == [12] * 5
    assert [sum(law in broken for broken in ROUND) for law in VIOLATIONS] == [30] * 4
    assert set(ROUND) == set(CASES)


def test_answers_are_true(scene):
    questions = list_questions(scene)
    assert [question.topic for question in questions] == list(QUESTIONS)
    for question in questions:
        assert question.answer == ("yes" if true_of(scene, question.text) else "no")


def true_of(scene, text):
    """The same questions, answered by reading them."""
    if "red" in text:
        return scene.colour == "red"
    if "on the left" in text:
        return np.nonzero(coloured(render_falling_object(scene)[0]))[1].mean() < 32
    facts = {"upwards": "rises", "pass through": "passes", "vanish": "vanishes", "change": "changes"}
    for words, law in facts.items():
        if words in text:
            return law in scene.broken
    raise AssertionError(text)


def test_the_description_says_what_happens(scene):
    sentence = describe_scene(scene)
    assert sentence.startswith(
        f"A red square on the {'left' if scene.left else 'right'} falls "
        f"{'upwards' if 'rises' in scene.broken else 'downwards'}, "
    )
    assert ("passes through" in sentence) == ("passes" in scene.broken)
    assert ("vanishes" in sentence) == ("vanishes" in scene.broken)
    assert (f"turns {scene.later_colour}" in sentence) == ("changes" in scene.broken)
