"""What a model is asked about a clip of VideoPhy-2, and the answer."""

from __future__ import annotations

from worldsmith.data.stream.errors import SampleError

JUDGE = "You watch videos closely and judge them fairly. "
SCALE = """Give a whole number:
1 = {none}
2 = {little}
3 = {partly}
4 = {mostly}
5 = {fully}

Answer with [one number from 1 to 5] and nothing else. An answer looks like this:
2"""

PHYSICS = (
    JUDGE
    + """Decide how well this video keeps to physical common sense.

Look at:
- **Objects**: solid things keep their shape and size; liquids flow, spread and settle.
- **Motion and forces**: what is not held falls, what moves keeps moving until something slows it, weight shows.
- **Contacts**: things do not pass through each other; a hit has an effect that fits its force.
- **Lasting**: nothing appears, vanishes or turns into something else without a cause.

"""
    + SCALE.format(
        none="physical sense is broken nearly everywhere",
        little="much of it is broken, little holds",
        partly="some of it holds, with clear mistakes",
        mostly="it holds, with slight mistakes",
        fully="it holds throughout",
    )
)
MEANING = (
    JUDGE
    + "Decide how well this video shows what its caption says: the things, what they do, and in which order.\n\n"
    + SCALE.format(
        none="it shows something else",
        little="little of the caption is seen",
        partly="some of it is seen, important parts are not",
        mostly="nearly all of it is seen",
        fully="all of it is seen",
    )
)
BOTH = (
    JUDGE
    + "Does this video show what its caption says, and does it keep to physical common sense in doing so? Answer yes "
    "if it does both, otherwise no. Write the one word and nothing else."
)
PROMPTS = {"pc": PHYSICS, "sa": MEANING, "joint": BOTH}
"""By the column of the score: physical common sense, semantic adherence, both."""
JOINT = {"1": "yes", "0": "no", "1.0": "yes", "0.0": "no", "true": "yes", "false": "no", "yes": "yes", "no": "no"}


def ask(score_field: str, caption: str) -> str:
    """The text of the question; `caption`: "" = none."""
    return PROMPTS[score_field] + (f"\n\nCaption: {caption}" if caption else "")


def answer(score_field: str, value: str) -> str:
    """A digit from 1 to 5, or yes or no. Raises SampleError for a score that is neither."""
    value = value.strip().lower()
    if score_field == "joint":
        found = JOINT.get(value)
    else:
        found = next((digit for digit in "12345" if value in (digit, f"{digit}.0")), None)
    if found is None:
        raise SampleError("bad_score", f"column {score_field} holds {value!r:.40}")
    return found
