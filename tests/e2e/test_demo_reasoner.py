"""The reasoner's demo: dataset, training, export, plain transformers; and that the tiny twin learns to look."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from worldsmith.cli.main import main
from worldsmith.data.conversations.conversation import say
from worldsmith.data.conversations.datasets.manifest import ManifestDataset

ROOT = Path(__file__).parents[2]
TOML = ROOT / "examples/toml/sft_config/falling_objects.toml"
MEASURE = ROOT / "examples/measure_reasoner.py"
LAST_LINE = re.compile(r"yes/no accuracy \d\.\d\d · plausibility within one \d\.\d\d, Pearson -?\d\.\d\d")
# Enough to know eight clips by heart; what is learned of others takes the whole demo.
SMALL = ["trainer.max_iter=80", "scheduler.warm_up_steps=[5]", "dataloader_train.max_samples_per_batch=8"]


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A program that ends well. `folder` is where its data set and runs are."""
    environment = {**os.environ, "DATASET_PATH": str(folder / "data"), "WORLDSMITH_OUTPUT_ROOT": str(folder / "runs")}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, (words, done.stdout + done.stderr)
    return done


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_reasoner", MEASURE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo at its smallest: data/, and runs/ with the run and its export."""
    place = tmp_path_factory.mktemp("reasoner")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATASET_PATH", str(place / "data"))
        patch.setenv("WORLDSMITH_OUTPUT_ROOT", str(place / "runs"))
        for words in commands(place):
            assert main(words) == 0, words
        yield place


def commands(folder: Path) -> list[list[str]]:
    run = str(folder / "runs/worldsmith/demo/falling_objects")
    return [
        ["dataset", "falling-objects", str(folder / "data"), "--clips", "8", "--val-clips", "4"],
        ["train", f"--sft-toml={TOML}", "--", *SMALL],
        ["export", run, "--dtype", "float32", "-o", f"{run}/reasoner"],
    ]


def test_the_demo_ends_with_its_figures(folder: Path) -> None:
    run = folder / "runs/worldsmith/demo/falling_objects"
    done = python(folder, str(MEASURE), str(run / "reasoner"), str(folder / "data"), "--out", str(run / "evaluation"))
    assert LAST_LINE.fullmatch(done.stdout.splitlines()[-1]), done.stdout
    answers = json.loads((run / "evaluation/answers.json").read_text())
    assert [len(answers[kind]) for kind in ("questions", "swapped", "scores")] == [24, 24, 4]
    figures = json.loads((run / "evaluation/summary.json").read_text())
    right = [entry["answer"] == entry["truth"] for entry in answers["questions"]]
    assert figures["yes_no_accuracy"] == pytest.approx(sum(right) / 24, abs=1e-3)


def test_evaluate_and_infer_say_what_plain_transformers_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same answers of the run itself, of its export, and to one question."""
    run = folder / "runs/worldsmith/demo/falling_objects"
    judged = json.loads((run / "evaluation/answers.json").read_text())
    val = str(folder / "data/videophy2_val")
    for kind, dataset, model in (("questions", "LlavaDataset", run), ("scores", "ManifestDataset", run / "reasoner")):
        out = folder / kind
        words = ["evaluate", str(model), "--dataset", dataset, "--dataset.path", val, "--max-new-tokens", "4"]
        assert main([*words, "-o", str(out), "--batch-size", "5"]) == 0
        said = capsys.readouterr().out
        answers = json.loads((out / "results.json").read_text())
        assert [(a["id"], a["response"]) for a in answers] == [(j["id"], j["answer"].strip()) for j in judged[kind]]
        figures = json.loads((out / "metrics.json").read_text())
        last = "yes/no accuracy" if kind == "questions" else "accuracy"
        assert said.splitlines()[-1].startswith(f"{last} {figures['accuracy']:.2f}"), said
    first = ManifestDataset.Config(path=val).build().turns(0)
    (video,) = (part.source for part in first[0].parts if part.kind == "video")
    words = ["infer", str(run), "--prompt", first[0].text, "--video", str(video), "--max-new-tokens", "4"]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == judged["scores"][0]["answer"].strip()


def test_the_pages_on_evaluating_and_lineage_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the adapters, which other tests evaluate."""
    monkeypatch.chdir(tmp_path)
    run = folder / "runs/worldsmith/demo/falling_objects"
    for name, place in (("RUN", run), ("OTHER", run / "reasoner"), ("data", folder / "data")):
        (tmp_path / name).symlink_to(place)
    (tmp_path / "clips").symlink_to(folder / "data/videophy2_val/media")
    (tmp_path / "clip.mp4").symlink_to(next((tmp_path / "clips").glob("*.mp4")))
    page = (ROOT / "docs/evaluate_answers.md").read_text(encoding="utf-8")
    evaluating, _, asking = re.findall(r"^```console\n(.*?)^```", page, re.M | re.S)
    chain = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs/lineage.md").read_text(encoding="utf-8"), re.M | re.S)[0]
    for line in (evaluating + asking + chain.replace("RESULT", "others")).splitlines():
        words = [*shlex.split(line)[1:], *([] if " lineage " in line else ["--max-new-tokens", "4"])]
        assert main(words) == 0, line
    assert json.loads((tmp_path / "others/metrics.json").read_text())["against"]["p_value"] == 1.0
    assert len(json.loads((tmp_path / "said.json").read_text())["answers"]) == 4
    assert "evaluate" in capsys.readouterr().out


def test_a_second_start_does_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for words in commands(folder):
        assert main(words) == 0
        out, error = capfd.readouterr()
        assert re.search(r"is complete|complete|is already there|up to date", out + error), (words, out + error)


def test_the_build_tiny_variant_learns_scores_from_the_frames(folder: Path, measure: ModuleType) -> None:
    """Of the clips that it was trained on: all right with their own frames, and not with those of others."""
    judge = measure.Judge(folder / "runs/worldsmith/demo/falling_objects/reasoner")
    scores = measure.read(ManifestDataset.Config(path=str(folder / "data/videophy2_train")).build())
    swapped = [(key, measure.other_frames(turns, scores[-1 - i][1])) for i, (key, turns) in enumerate(scores)]
    own, others = (
        [answer == measure.truth(turns) for answer, (_, turns) in zip(judge.answer(asked), scores)]
        for asked in (scores, swapped)
    )
    assert all(own)
    assert sum(others) <= 4


def test_quantized_it_answers_as_before(
    folder: Path, measure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's commands, with questions that it knows by heart; transformers alone asks the results."""
    run = folder / "runs/worldsmith/demo/falling_objects"
    monkeypatch.chdir(tmp_path)
    for name, place in (("my_run", run), ("my_model", run / "reasoner"), ("data", folder / "data")):
        (tmp_path / name).symlink_to(place)
    page = (ROOT / "docs/quantize.md").read_text(encoding="utf-8")
    commands, loading = (re.findall(rf"^```{kind}\n(.*?)^```", page, re.M | re.S)[0] for kind in ("bash", "python"))
    for line in commands.splitlines():
        asked = ["--questions.path", "data/videophy2_train", "--max-new-tokens", "4"]
        kind = [] if "--questions" in line else ["--questions", "ManifestDataset"]
        assert main([*shlex.split(line)[1:], *kind, *asked]) == 0, line
    exec(loading.partition("processor =")[0], {})  # that of transformers needs torchvision
    train = str(folder / "data/videophy2_train")
    known = measure.read(ManifestDataset.Config(path=train).build())
    shares = {}
    for name in ("my_model", "my_int4", "my_fp8", "my_dynamic"):
        said = measure.Judge(tmp_path / name).answer(known)
        shares[name] = sum(text.strip() == measure.truth(turns) for text, (_, turns) in zip(said, known)) / len(known)
    assert all(share >= 0.98 for share in shares.values()), shares
    size = json.loads((tmp_path / "my_int4/quantization.json").read_text())["size"]
    assert size["bytes_before"] / size["bytes_after"] == pytest.approx(size["expected_factor"], rel=0.01)


def test_figures_are_those_of_the_formulas(measure: ModuleType) -> None:
    turns = {text: (say("assistant", text),) for text in ("1", "3", "5", "yes", "no")}
    scores = [("a", turns["1"]), ("b", turns["3"]), ("c", turns["5"]), ("d", turns["5"])]
    found = measure.plausibility(scores, ["1", "Score: 4", "10", "3"])
    assert found == {"accuracy": 0.25, "within_one": 0.5, "pearson": 0.655, "answers_without_a_score": 1}
    asked = [("v-rises", turns["yes"]), ("w-rises", turns["no"]), ("v-left", turns["no"])]
    figures = measure.yes_no(asked, [" Yes", "yes", "No "])
    assert figures == {"yes_no_accuracy": 0.667, "yes_no_accuracy_rises": 0.5, "yes_no_accuracy_left": 1.0}
