"""The page of a run, opened in a real browser: as a file, on a phone, by keyboard, in the dark, and live."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import DRAWN, PROGRAM, TOO_WIDE, Browser, open_browser
from PIL import Image
from run_folders import EVIL, add_samples, write_lines, write_run

from worldsmith.cli.main import main
from worldsmith.monitor.page import samples
from worldsmith.monitor.page.run_page import write_page
from worldsmith.tools.reports.report import write_comparison

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples/toml/sft_config"
SMALL = ["trainer.max_iter=3", "trainer.logging_iter=1", "dataloader_train.max_samples_per_batch=2"]
DEMOS = {
    "moving_shapes": ["dataset", "moving-shapes", "data", "--clips", "3", "--val-clips", "1"],
    "falling_objects": ["dataset", "falling-objects", "data", "--clips", "8", "--val-clips", "4"],
}

TITLES = "[...document.querySelectorAll('.chart h3')].map(title => title.textContent)"

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module", params=DEMOS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a demo, at its smallest."""
    folder, name = tmp_path_factory.mktemp(request.param), request.param
    train = ["train", f"--sft-toml={RECIPES / name}.toml", "--", *SMALL]
    train += ["scheduler.warm_up_steps=[1]"] if name == "falling_objects" else []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DATASET_PATH", str(folder / "data"))
        patch.setenv("WORLDSMITH_OUTPUT_ROOT", str(folder / "runs"))
        patch.setenv("WORLDSMITH_LATENT_CACHE", str(folder / "latents"))
        for words in (DEMOS[name], train):
            assert main(words) == 0, words
    return folder / f"runs/worldsmith/demo/{name}"


NO_STOP_IN_CHARTS = """(() => {
  const isStop = element => element.hasAttribute("tabindex") && element.tabIndex >= 0;
  const hasStop = node => [...node.querySelectorAll("*")]
    .some(element => isStop(element) || (element.shadowRoot && hasStop(element.shadowRoot)));
  return ![...document.querySelectorAll(".plot")].some(hasStop);
})()"""
"""Whether the Tab key passes all drawn charts; Bokeh makes them stops, which the page undoes when they are drawn."""


def test_the_page_of_a_demo_stands_alone(run: Path, browser: Browser) -> None:
    """No error in the console, nothing fetched, small, whole on a desk and on a phone."""
    page = run / "report.html"
    assert page.stat().st_size < 5_000_000
    for width in (1280, 360):
        browser.open(page.as_uri(), width=width)
        assert browser.errors == []
        assert browser.requests[0] == page.as_uri()
        assert [address for address in browser.requests[1:] if not address.startswith("data:")] == []
        assert browser.evaluate("document.title") == f"{run.name}: finished, step 3"
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(TOO_WIDE) == []
        drawn = browser.evaluate(DRAWN)
        assert {"Training loss", "Learning rate", "Gradient norm", "Tokens per second", "Peak memory GiB"} <= set(drawn)
        assert all(drawn.values()), drawn


def test_nothing_is_cut_off_on_a_phone(tmp_path: Path, browser: Browser) -> None:
    folder = write_run(tmp_path)
    add_samples(folder)
    (folder / "evaluation").mkdir()
    (folder / "evaluation/metrics.json").write_text('{"task": "binary", "accuracy": 0.5}')
    Image.new("RGB", (1200, 300)).save(folder / "evaluation/contact_sheet.png")
    (folder / "plan.json").write_text('{"gpus": 1, "gpu": {"name": "H100"}}')  # as many sections as there can be
    browser.open(write_page(folder).as_uri(), width=400)
    shown = "[...document.querySelectorAll('nav a, .picture img')]"
    assert browser.evaluate(f"{shown}.length") >= 10
    right = f"{shown}.filter(one => one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML)"
    assert browser.evaluate(right) == []
    assert browser.evaluate("document.querySelector('nav').getBoundingClientRect().height") < 100


def test_samples_play_beside_their_prompts(tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Videos within the page and beside it, and text that would be markup."""
    folder = write_run(tmp_path)
    add_samples(folder, prompt=EVIL)
    write_lines(folder / "messages.jsonl", [{"step": 3, "level": "error", "text": EVIL}])
    monkeypatch.setattr(samples, "EMBEDDED_FILE", next(folder.glob("*/*/*.mp4")).stat().st_size)
    files = sorted(folder.glob("EveryNDrawSample/*/*.mp4"))
    with files[1].open("ab") as file:
        file.write(b"\0\0\0\x08free")  # an empty box: still a video, and one byte too large to be embedded
    browser.open(write_page(folder).as_uri(), height=3000)
    browser.wait_for("[...document.querySelectorAll('video')].every(video => video.videoWidth === 16)")
    kinds = browser.evaluate("[...document.querySelectorAll('video')].map(video => video.src.slice(0, 5))")
    assert kinds == ["data:", "file:"]
    browser.wait_for(
        "[...document.querySelectorAll('video')].every(video => !video.paused && video.muted && video.loop)"
    )
    assert browser.evaluate("document.querySelector('.prompt h3').textContent") == EVIL
    assert browser.errors == []
    assert not any("example.invalid" in address for address in browser.requests)


def test_it_is_used_by_keyboard(tmp_path: Path, browser: Browser) -> None:
    folder = write_run(tmp_path)
    origins = {"optimizer.lr": {"origin": "x.toml:3", "changed": True, "was": 0.1}, "job.name": {"origin": "default"}}
    (folder / "config_origins.json").write_text(json.dumps(origins))
    browser.open(write_page(folder).as_uri())
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1
    headings = browser.evaluate("[...document.querySelectorAll('h2')].map(heading => heading.textContent)")
    assert headings == ["Curves", "Samples", "What to do next", "Messages", "Data", "Config", "Environment"]
    browser.wait_for(NO_STOP_IN_CHARTS)
    seen = []
    for _ in range(40):
        browser.press("Tab")
        if browser.evaluate("document.activeElement === document.body"):  # after the last stop
            break
        seen.append(browser.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent"))
        outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen[-3:]
        if seen[-1] == "Training loss: logarithmic scale":
            browser.press("Enter")
            browser.wait_for("document.activeElement.ariaLabel === 'Training loss: linear scale'")
            browser.wait_for(NO_STOP_IN_CHARTS)  # it is drawn again
    assert seen[:2] == ["Skip to the content", "Overview"]
    assert "Command: Export it" in seen
    rows = "[...document.querySelectorAll('.config tbody tr')].filter(row => !row.hidden).map(row => row.textContent)"
    assert browser.evaluate(rows) == ["optimizer.lr0.001 recipe: 0.1x.toml:3"]
    browser.evaluate("document.getElementById('config-changed').click()")
    assert len(browser.evaluate(rows)) > 5
    browser.evaluate("document.getElementById('config-filter').focus()")
    browser.call("Input.insertText", text="job default")
    assert browser.evaluate(rows) == ["job.namefirstdefault"]


def test_it_is_dark_where_that_is_wanted(tmp_path: Path, browser: Browser) -> None:
    page = write_page(write_run(tmp_path))
    light = "getComputedStyle(document.body).backgroundColor"
    colour = "Bokeh.documents[0].roots()[0].renderers.at(-1).glyph.line_color.value"
    found = []
    for dark in (False, True):
        browser.open(page.as_uri(), dark=dark)
        found.append((browser.evaluate(light), browser.evaluate(colour)))
    assert found == [("rgb(246, 247, 249)", "#0b6bcb"), ("rgb(18, 22, 28)", "#6cb3ff")]


def test_several_runs_share_their_charts(tmp_path: Path, browser: Browser) -> None:
    folders = [write_run(tmp_path, "first"), write_run(tmp_path, "second", steps=30)]
    page = write_comparison(folders, tmp_path / "compare.html")
    for width in (1280, 360):
        browser.open(page.as_uri(), width=width)
        assert browser.errors == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        labels = "[...document.querySelectorAll('.chart:first-child .legend button')].map(button => button.textContent)"
        assert browser.evaluate(labels) == ["first1", "second1.3333"]


def test_watch_follows_a_run_without_loading_it_anew(tmp_path: Path, browser: Browser) -> None:
    folder = write_run(tmp_path, steps=30, status={"state": "stopped"})
    command = [sys.executable, "-m", "worldsmith", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().partition(" is shown at ")[2].split()[0]
        browser.open(address)
        browser.evaluate("window.same = document.querySelector('.plot').firstElementChild")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 31, "loss": 0.125}\n')
        browser.wait_for("document.title === 'first: stopped, step 31'")
        browser.wait_for("document.querySelector('.summary').textContent.startsWith('0.125 at step 31')")
        assert browser.evaluate("window.same === document.querySelector('.plot').firstElementChild")
        assert browser.evaluate("document.querySelector('progress').value") == 31 / 40
        assert {address_of(asked) for asked in browser.requests} == {address.rstrip("/")}
        assert browser.errors == []
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        browser.wait_for("document.getElementById('stale').textContent.includes('has ended')")


def address_of(request: str) -> str:
    """Scheme and host; the page's own icon counts as the page's."""
    return "/".join(request.split("/")[:3])


def test_a_run_has_one_color_in_all_charts_of_a_comparison(tmp_path: Path, browser: Browser) -> None:
    folders = [write_run(tmp_path, "first"), write_run(tmp_path, "second", steps=30)]
    for folder in folders:
        levels = [{"step": step, "val": {"loss_by_noise": {f"0.{n}": n / step for n in range(6)}}} for step in (10, 20)]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        write_lines(folder / "metrics.jsonl", [*levels, *lines])
    browser.open(write_comparison(folders, tmp_path / "compare.html").as_uri())
    legend = """[...document.querySelectorAll('.chart')].map(chart => [...chart.querySelectorAll('.legend button')]
        .map(button => [button.firstChild.nextSibling.data, getComputedStyle(button.firstChild).color,
                        button.firstChild.style.borderTopStyle]))"""
    loss, validation, *_, by_noise = browser.evaluate(legend)
    blue, orange = "rgb(11, 107, 203)", "rgb(217, 89, 11)"
    assert loss == by_noise == [["first", blue, "solid"], ["second", orange, "solid"]]
    assert validation == [
        ["first · raw weights", blue, "solid"],
        ["first · EMA weights", blue, "dashed"],
        ["second · raw weights", orange, "solid"],
        ["second · EMA weights", orange, "dashed"],
    ]
    drawn = "Bokeh.documents.at(-1).roots()[0].renderers.map(one => one.glyph.line_color?.value).filter(Boolean)"
    assert set(browser.evaluate(drawn)) == {"#0b6bcb", "#d9590b"}
    assert browser.errors == []


def test_the_smoothed_line_neither_lags_nor_leaves_the_values(tmp_path: Path, browser: Browser) -> None:
    """On a straight line the smoothed values are the values, also at its ends; noise is smaller than before."""
    folder = write_run(tmp_path)
    lines = [{"step": step, "loss": 5 + step, "grad_norm": 1 + 0.5 * (-1) ** step} for step in range(1, 101)]
    write_lines(folder / "metrics.jsonl", lines)
    browser.open(write_page(folder).as_uri())
    smoothed = "Bokeh.documents[{}].roots()[0].renderers.at(-1).data_source.data.s"
    loss = browser.evaluate(f"[...{smoothed.format(0)}]")
    assert loss == pytest.approx([5.0 + step for step in range(1, 101)])
    norm = next(index for index, name in enumerate(browser.evaluate(TITLES)) if name == "Gradient norm")
    assert browser.evaluate(f"[...{smoothed.format(norm)}]")[20:80] == pytest.approx([1.0] * 60, abs=0.1)


def test_a_strip_shows_the_newest_sample_next_to_the_real_clip(tmp_path: Path, browser: Browser) -> None:
    folder = write_run(tmp_path)
    (clip, *_) = add_samples(folder, steps=tuple(range(1, 9)))
    file = folder / "EveryNDrawSample/samples.jsonl"
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    write_lines(file, [{**entry, "real": clip.relative_to(folder).as_posix()} for entry in entries])
    browser.open(write_page(folder).as_uri(), width=400)
    seen = """[...document.querySelectorAll('.strip li')].filter(item => {
        const box = item.getBoundingClientRect();
        const at = document.elementFromPoint(box.left + box.width / 2, box.top + 20);
        return box.left >= 0 && box.right <= innerWidth && item.contains(at);
    }).map(item => item.querySelector('figcaption').textContent)"""
    browser.evaluate("document.querySelector('.strip').scrollIntoView({block: 'center'})")
    assert browser.evaluate(seen) == ["real clip", "step 8"]
