"""Samples on a page: the real clip next to them, captions, one heading per question; pictures of an evaluation."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from run_folders import add_samples, write_lines, write_run

from worldsmith.data.video_writer import write_video
from worldsmith.monitor.page import samples
from worldsmith.monitor.page.run_files import read_run
from worldsmith.monitor.page.run_page import page_of, write_page
from worldsmith.monitor.page.samples import PageBudget
from worldsmith.tools.reports.report import comparison

FILE = "EveryNDrawSample/samples.jsonl"


def html_of(folder: Path, name: str = "samples") -> str:
    page = page_of(read_run(folder), PageBudget(folder))
    return next(str(section.html) for section in page.sections if section.name == name)


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def add_real_clip(folder: Path, name: str = "EveryNDrawSample/real/0.mp4") -> Path:
    """Writes a real clip, and names it in every sample."""
    file = folder / name
    file.parent.mkdir(parents=True)
    write_video(file, np.full((4, 16, 16, 3), 200, np.uint8), 4)
    entries = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    write_lines(folder / FILE, [{**entry, "real": name} for entry in entries])
    return file


def test_the_real_clip_stands_first_next_to_the_samples(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    files = add_samples(folder)
    assert "real clip" not in html_of(folder)
    real = add_real_clip(folder)
    html = html_of(folder)
    inside = [base64.b64decode(found) for found in re.findall(r'src="data:video/mp4;base64,([^"]+)"', html)]
    assert inside == [file.read_bytes() for file in (real, *files)]
    assert text_of(html).endswith("A red square. real clip step 20 step 40")


def test_a_real_clip_that_is_missing_or_outside_is_reported(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    add_samples(folder)
    real = add_real_clip(folder)
    name = real.relative_to(folder).as_posix()
    real.unlink()
    assert f"{name} does not exist real clip" in text_of(html_of(folder))
    (folder.parent / "private.mp4").write_bytes(b"private")
    real.symlink_to(folder.parent / "private.mp4")
    assert f"{name} is outside the run folder real clip" in text_of(html_of(folder))


def test_a_comparison_shows_the_real_clip_once(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, name) for name in ("first", "second")]
    for folder in folders:
        add_samples(folder)
        add_real_clip(folder)
    page = comparison([read_run(folder) for folder in folders], PageBudget(tmp_path))
    text = text_of(next(str(section.html) for section in page.sections if section.name == "samples"))
    assert text.endswith("A red square. real clip first · step 40 second · step 40")


def test_captions_name_only_what_differs(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    given = {"step": 20, "kind": "video", "prompt": "p", "file": "x.mp4"}
    write_lines(folder / FILE, [{**given, "weights": name, "guidance": 3.0} for name in ("live", "ema")])
    captions = re.findall(r"<figcaption>([^<]*)</figcaption>", html_of(folder))
    assert captions == ["step 20 · raw weights", "step 20 · EMA weights"]
    write_lines(folder / FILE, [{**given, "weights": "live", "guidance": scale} for scale in (1.0, 3.0)])
    captions = re.findall(r"<figcaption>([^<]*)</figcaption>", html_of(folder))
    assert captions == ["step 20 · guidance 1", "step 20 · guidance 3"]


def test_held_out_captions_are_labeled_and_explained(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    given = {"step": 20, "kind": "video", "weights": "ema", "file": "x.mp4"}
    labels = {"A red square.": "training caption", "A blue square.": "held-out caption"}
    entries = [{**given, "prompt": prompt, "source": source} for prompt, source in labels.items()]
    write_lines(folder / FILE, entries[:1])
    assert "Held-out captions" not in text_of(html_of(folder))
    write_lines(folder / FILE, entries)
    text = text_of(html_of(folder))
    assert "Held-out captions belong to validation clips: their samples may stay blurred" in text
    for prompt, label in labels.items():
        assert f"{prompt} {label} x.mp4 does not exist" in text


def test_questions_with_the_same_words_share_one_heading(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    given = {"step": 20, "kind": "answer", "weights": "live", "answer": "yes", "expected": "yes"}
    asked = [("Does it fall?", "a.mp4"), ("Is it red?", "a.mp4"), ("Does it fall?", "b.mp4")]
    write_lines(folder / FILE, [{**given, "prompt": prompt, "media": media} for prompt, media in asked])
    html = html_of(folder)
    assert re.findall(r"<h3>([^<]*)</h3>", html) == ["Does it fall?", "Is it red?"]
    assert html.count('<p class="expected">') == 3


def test_prompts_that_are_not_shown_are_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    given = {"step": 20, "kind": "answer", "weights": "live", "answer": "yes", "prompt": "Does it fall?"}
    write_lines(folder / FILE, [{**given, "media": f"{n}.mp4"} for n in range(samples.MOST_PROMPTS + 3)])
    assert "3 more prompts are in the folder" in text_of(html_of(folder))


def test_only_the_first_prompts_are_open(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    given = {"step": 20, "kind": "answer", "weights": "live", "answer": "yes"}
    write_lines(folder / FILE, [{**given, "prompt": f"p{n}"} for n in range(samples.OPEN_PROMPTS + 2)])
    first, rest = html_of(folder).split("<details")
    assert first.count("<h3>") == samples.OPEN_PROMPTS
    assert rest.count("<h3>") == 2
    assert "2 more prompts" in rest


def add_sheet(folder: Path, size: tuple[int, int]) -> Path:
    """A contact sheet of noise, as large as a PNG can be, in an evaluation of the run."""
    (folder / "evaluation").mkdir(exist_ok=True)
    (folder / "evaluation/metrics.json").write_text('{"task": "binary", "accuracy": 0.5}')
    noise = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "evaluation/contact_sheet.png")
    return folder / "evaluation/contact_sheet.png"


def pictures_in(html: str) -> list[Any]:
    found = re.findall(r'<img[^>]*src="data:image/\w+;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(content))) for content in found]


def test_a_large_contact_sheet_is_scaled_down_into_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    sheet = add_sheet(folder, (2000, 1000))
    assert sheet.stat().st_size > samples.EMBEDDED_PICTURE
    html = write_page(folder).read_text()
    (picture,) = pictures_in(html)
    assert picture.format == "JPEG"
    assert 2 * picture.height == picture.width
    assert 400 <= picture.width <= samples.PICTURE_WIDTH
    assert "lies beside this file" not in html
    assert (folder / "report.html").stat().st_size < 5_000_000


def test_a_small_picture_is_embedded_as_it_is(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    sheet = add_sheet(folder, (20, 10))
    assert base64.b64encode(sheet.read_bytes()).decode() in html_of(folder, "evaluation")


@pytest.mark.parametrize("broken", [True, False])
def test_a_picture_that_cannot_be_embedded_is_linked(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path)
    sheet = add_sheet(folder, (800, 800))
    if broken:
        sheet.write_bytes(b"\x89PNG" + sheet.read_bytes()[100:])
    else:
        monkeypatch.setattr(samples, "EMBEDDED_PICTURES", 1000)
    html = write_page(folder).read_text()
    assert 'src="evaluation/contact_sheet.png"' in html
    assert "1 linked video or image is next to this file" in html


def test_long_answers_get_a_wide_box(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    given = {"step": 20, "kind": "answer", "weights": "live"}
    answers = {"p": "yes", "q": "It falls to the left and stops. " * 3}
    write_lines(folder / FILE, [{**given, "prompt": prompt, "answer": text} for prompt, text in answers.items()])
    first, second = html_of(folder).split("<h3>")[1:]
    assert 'class="long"' not in first
    assert 'class="long"' in second
