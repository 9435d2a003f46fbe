"""The page of a study in a real browser: whole on a desk and on a phone, and offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import DRAWN, PROGRAM, TOO_WIDE, open_browser

from worldsmith.config.load import load
from worldsmith.tools.tune.page import write_page
from worldsmith.tools.tune.space import Space

SEARCH = ["optimizer.lr=log:1e-6..1e-3", "trainer.grad_accum_iter=pow2:1..8", "scheduler=LambdaCosine|LambdaLinear"]
EVIL = "<script>alert(1)</script>"


def lines() -> list[dict[str, Any]]:
    """A trial in each state, and seven more that are complete."""
    found = []
    for number in range(10):
        settings = {"optimizer.lr": 10.0 ** -(3 + number % 4), "trainer.grad_accum_iter": 2 ** (number % 3)}
        settings |= {"scheduler": "LambdaLinear"} if number % 2 else {}
        state = {4: "pruned", 5: "failed"}.get(number, "complete")
        found.append(
            {
                "trial": number,
                "state": state,
                "value": None if state == "failed" else 1 / (1 + number),
                "settings": settings if number else {},
                "words": [f"{path}={value}" for path, value in settings.items()] if number else [],
                "reason": EVIL if state == "failed" else None,
                "refused": [{"settings": {"optimizer.lr": 1e-3}, "reason": "too large"}] if number == 7 else [],
                "seconds": 3.5,
                "run": f"trials/{number:04d}",
            }
        )
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "trials/0009").mkdir(parents=True)
    (folder / "trials/0009/report.html").touch()
    space = Space(load("videophy2_nano_tiny").tree, SEARCH)
    facts = {"trial": 9, "value": 0.1, "as_it_is": 1.0, "words": ["optimizer.lr=0.0001"], "final": None}
    return write_page(
        folder / "tune.html",
        name="rates",
        space=space,
        lines=lines(),
        facts=facts,
        rules={"metric": "val/loss", "direction": "min", "source": "videophy2_nano_tiny"},
        importances={"optimizer.lr": 0.75, "scheduler": 0.25},
        command="worldsmith train rates/best.yaml",
        at_work=False,
    )


def test_the_page_says_what_there_is(page: Path) -> None:
    text = page.read_text()
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 1
    assert EVIL not in text
    for part in (
        'href="trials/0009/report.html"',
        "Rejected configurations: 1",
        "75 %",
        "too optimistic",
        "rates/best.yaml",
    ):
        assert part in text, part


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on this machine")
def test_it_is_whole_on_a_desk_and_on_a_phone(page: Path, tmp_path: Path) -> None:
    with open_browser(tmp_path) as browser:
        for width in (1280, 360):
            browser.open(page.as_uri(), width=width)
            assert browser.errors == []
            assert [address for address in browser.requests[1:] if not address.startswith("data:")] == []
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate(TOO_WIDE) == []
            drawn = browser.evaluate(DRAWN)
            over = {f"val/loss over {word.partition('=')[0]}" for word in SEARCH}
            assert {"val/loss by trial", *over} <= drawn.keys()
            assert len(drawn) == 5
            assert all(drawn.values()), drawn
