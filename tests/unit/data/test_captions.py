from __future__ import annotations

import json
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.clips.captions import CAPTION_KEYS, Caption, choose_caption, render_caption
from worldsmith.data.clips.video_dataset import WINDOW_NUMBERS


def render(caption: Caption, **changes: object) -> str:
    settings = {
        "suffix": "",
        "append_duration_fps": True, "append_resolution": True, "dropout_rate": 0.0, "dropout_keeps_metadata": False,
        "num_frames": 61, "fps": 23.976, "size": (192, 320), "rng": random.Random(0),
    }  # fmt: skip
    return render_caption(caption, **{**settings, **changes})


def choose(captions: dict, keys: list[str] = CAPTION_KEYS, seed: int = 0) -> Caption | None:
    return choose_caption(captions, keys, random.Random(seed))


def test_choice_order_is_json_then_rewrite_then_caption_then_legacy() -> None:
    everything = {"qwen3_32b_short": "s", "caption": "c", "qwen3_32b_rewrite-dense": "r", "caption_json": {"a": 1}}
    order = []
    while everything:
        chosen = choose(everything)
        order.append(chosen.key)
        del everything[chosen.key]
    assert order == ["caption_json", "qwen3_32b_rewrite-dense", "caption", "qwen3_32b_short"]


def test_caption_keys_can_be_changed() -> None:
    assert choose({"caption_json": {"a": 1}, "caption": "c"}, ["caption", "caption_json"]).key == "caption"
    assert choose({"mine": "m"}, ["mine"]).text == "m"
    assert choose({"caption": "c"}, ["mine"]) is None


def test_empty_and_ill_typed_captions_are_passed_over() -> None:
    assert choose({"caption_json": {}, "qwen3_32b_rewrite-dense": "  ", "caption": 7}) is None
    assert choose({"caption_json": " {} ", "caption": "\u00a0"}) is None
    assert choose({"caption_json": "null", "caption": "c"}).key == "caption"
    assert choose({"qwen3_32b_temporal": "weight zero"}) is None
    assert choose(dict.fromkeys(WINDOW_NUMBERS, 1)) is None


def test_legacy_styles_are_drawn_by_their_weights() -> None:
    """short 0.1, descriptive 0.2, dense 0.7 among those present; temporal never."""
    captions = {f"qwen3_32b_{style}": style for style in ("short", "descriptive", "dense", "temporal")}
    rng = random.Random(1)
    drawn = Counter(choose_caption(captions, CAPTION_KEYS, rng).text for _ in range(4000))
    assert set(drawn) == {"short", "descriptive", "dense"}
    for style, weight in (("short", 0.1), ("descriptive", 0.2), ("dense", 0.7)):
        assert abs(drawn[style] / 4000 - weight) < 0.03


def test_structured_captions_are_verbatim_json_in_file_order_not_ascii() -> None:
    """Neither suffix nor metadata sentences nor punctuation; of a serialised string, white space around it goes."""
    value = {"zoo": "café", "a": [1, 2.5], "duration": "5s"}
    assert render(choose({"caption_json": value}), suffix="Nice.") == '{"zoo": "café", "a": [1, 2.5], "duration": "5s"}'
    assert render(choose({"caption_json": ' {"b":1}.\n'})) == '{"b":1}.'


def test_plain_captions_end_in_one_period_then_suffix_then_metadata() -> None:
    text = render(Caption("caption", "A cat walks... \n", structured=False), suffix="In slow motion.")
    assert text == (
        "A cat walks. In slow motion. The video is 2.5 seconds long and is of 24 FPS. "
        "This video is of 192x320 resolution."
    )


def test_white_space_around_texts_goes_and_then_the_periods_at_the_end() -> None:
    """As the published functions do it: what a period hides stays."""
    bare = {"append_duration_fps": False, "append_resolution": False}
    for text, expected in {
        "A cat": "A cat.", "\n A cat.\u00a0": "A cat.", "A cat .": "A cat .", "A cat. .. ": "A cat. .",
    }.items():  # fmt: skip
        assert render(Caption("caption", text, structured=False), **bare) == expected
    assert render(Caption("caption", "A cat", structured=False), suffix=" Slowly. ", **bare) == "A cat. Slowly."
    assert render(Caption("caption", "A cat", structured=False), suffix=" ", **bare) == "A cat."


def test_dropout_empties_everything_or_keeps_the_metadata() -> None:
    plain, structured = Caption("caption", "A cat", structured=False), Caption("caption_json", "{}", structured=True)
    assert render(plain, dropout_rate=1.0) == ""
    assert render(structured, dropout_rate=1.0) == ""
    assert render(structured, dropout_rate=1.0, dropout_keeps_metadata=True) == ""
    kept = render(plain, dropout_rate=1.0, dropout_keeps_metadata=True, suffix="In slow motion.")
    assert kept == "The video is 2.5 seconds long and is of 24 FPS. This video is of 192x320 resolution."


def test_dropout_has_the_configured_rate() -> None:
    rng = random.Random(3)
    texts = [render(Caption("caption", "A cat", structured=False), dropout_rate=0.1, rng=rng) for _ in range(5000)]
    assert abs(texts.count("") / 5000 - 0.1) < 0.015


@given(
    st.dictionaries(
        st.text(), st.recursive(st.text() | st.integers() | st.booleans(), st.lists, max_leaves=4), min_size=1
    )
)
def test_structured_captions_parse_back_to_the_same_object(value: dict) -> None:
    caption = choose({"caption_json": value})
    assert json.loads(render(caption)) == value
    assert list(json.loads(render(caption))) == list(value)


@given(st.text(min_size=1).filter(str.strip))
def test_a_plain_caption_never_ends_in_two_periods(text: str) -> None:
    caption = choose({"caption": text})
    rendered = render(caption, append_duration_fps=False, append_resolution=False)
    assert rendered.endswith(".")
    assert not rendered.endswith("..")
