"""`worldsmith plan`, from the words to the exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from worldsmith.cli.commands import read_command
from worldsmith.cli.main import main
from worldsmith.tools.plan.evaluate_settings import Clock
from worldsmith.tools.plan.plan import Progress, launch_arguments, unset_variables

VARIABLES = ("DATASET_PATH", "WAN_PATH", "WAN_VAE_PATH", "BASE_CHECKPOINT_PATH", "COGVIDEOX_PATH")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str, int]:
    code = main(["plan", *words])
    out, err = capsys.readouterr()
    return " ".join(out.split()), err, code


@pytest.mark.parametrize("recipe", ["vision_sft_nano", "wan22_t2v_a14b", "cogvideox_5b_lora"])
def test_what_is_known_at_once_needs_no_variables(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err, code = said(capsys, recipe, "--quick")
    assert (code, err) == (0, "")
    assert out.startswith(f"run {recipe} on ")
    assert not set(VARIABLES) & set(os.environ)


def test_the_degrees_of_the_recipe_say_how_many_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert "on 8 GPUs (replicate 1 × shard 8), h100-80 with 79.1 GiB" in said(capsys, "vision_sft_nano", "--quick")[0]
    assert "on 1 GPU, l40s with 44.4 GiB" in said(capsys, "wan21_t2v_1b", "--quick", "--gpu", "l40s")[0]
    words = ["--model.config.parallelism.data_parallel_replicate_degree", "-1", "--gpus", "16"]
    assert "on 16 GPUs (replicate 2 × shard 8)" in said(capsys, "vision_sft_nano", "--quick", *words)[0]


def test_words_after_the_dashes_change_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    whole, adapted = (
        json.loads(said(capsys, "vision_sft_nano", "--quick", "--json", *words)[0])["quick"]
        for words in ([], ["--", "model.config.lora_enabled=true", "optimizer.keys_to_select=[lora_]"])
    )
    assert adapted["trained"] < whole["trained"] < whole["parameters"] < adapted["parameters"]
    assert adapted["states"]["moments"] < whole["states"]["moments"]


def test_what_is_known_at_once_says_of_which_gpus_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "vision_sft_nano", "--quick", "--json", "--gpu", "24GB", "--gpus", "8")[0])
    assert (found["run"], found["family"], found["gpus"]) == ("vision_sft_nano", "cosmos3", 8)
    assert (found["degrees"]["shard"], found["gpu"]["memory"]) == (8, 24 * 10**9)


def test_names_stand_for_variables_that_are_not_set() -> None:
    words = ["vision_sft_nano", "--", "dataloader_train.dataset.path=${oc.env:CLIPS}/a"]
    command, args = read_command("plan", words)
    loaded = command.action(args).loaded
    assert loaded.tree.dataloader_train.dataset.path == "$CLIPS/a"
    assert loaded.raw.dataloader_train.dataset.path == "${oc.env:CLIPS}/a"
    assert unset_variables(loaded.raw) == ["WAN_VAE_PATH", "BASE_CHECKPOINT_PATH", "CLIPS"]
    assert not {*VARIABLES, "CLIPS"} & set(os.environ)


@pytest.mark.parametrize(
    "word",
    ["trainer.max_iter=${oc.env:CLIPS}", "model.config.precision=${oc.env:CLIPS}"],
)
def test_a_name_stands_for_no_number_and_no_choice(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err, code = said(capsys, "vision_sft_nano", "--quick", "--", word)
    assert (out, code) == ("", 2)
    assert f"{word.partition('=')[0]}: the environment variable 'CLIPS' is not set" in err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["vision_sft_nano", "--gpus", "6"], "model.config.parallelism: data_parallel_shard_degree = 8"),
        (["vision_sft_nano", "--gpu", "h10"], "unknown GPU 'h10': did you mean"),
        (["vision_sft_nano", "--gpus", "0"], "expected an integer of at least 1, found '0'"),
        (["vision_sft_nan"], "vision_sft_nano"),
        ([], "name one recipe or file"),
        (["vision_sft_nano", "--fit"], "--fit simulates steps and --quick does not: omit one of them"),
        (
            ["vision_sft_nano", "-o", "best.yaml"],
            "-o is the file for the best setting of --fit: add --fit or omit -o",
        ),
        (["vision_sft_nano", "--json", "--gpu", "h10"], "unknown GPU 'h10': did you mean"),
    ],
)
def test_mistakes(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err, code = said(capsys, *words, "--quick")
    assert (out, code) == ("", 2)
    assert problem in err


def test_the_quick_answer_comes_without_torch() -> None:
    code = (
        "import sys; from worldsmith.cli.main import main; assert main(['plan', 'vision_sft_nano', '--quick']) == 0; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (1, ""),
        (8, "launch --nproc-per-node 8"),
        (12, "launch --nnodes 2 --node-rank R --master-addr HOST --nproc-per-node 6"),
        (9, "launch --nnodes 3 --node-rank R --master-addr HOST --nproc-per-node 3"),
    ],
)
def test_the_best_is_started_in_all_its_processes(ranks: int, words: str) -> None:
    assert " ".join(launch_arguments(ranks, 8)) == words


def test_an_interrupted_search_prints_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, tried = Progress.__call__, 0

    def interrupt(self: Progress, text: str) -> None:
        nonlocal tried
        plain(self, text)
        tried += 1
        if tried == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "__call__", interrupt)
    out, err, code = said(capsys, "cogvideox_2b_tiny", "--gpu", "80GB", "--fit")
    assert code == 130
    assert "1. fits" in out
    assert "from a few layers" in out or "worldsmith train cogvideox_2b_tiny" in out
    assert re.match(r"\d+ of \d+ s of CPU time: baseline$", err.splitlines()[0])


def test_progress_through_a_pipe_is_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Clock(60.0))
    for number in range(50):
        progress(f"setting {number}")
    progress.end()
    assert capsys.readouterr().err == "0 of 60 s of CPU time: setting 0\n"


@pytest.mark.slow
def test_what_fits_best_is_a_command_and_a_file_to_train_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best, words = tmp_path / "best.yaml", ["wan21_t2v_tiny", "--gpus", "2", "--gpu", "80GB", "--fit"]
    out, err, code = said(capsys, *words, "-o", str(best), "--", "dataloader_train.max_samples_per_batch=3")
    assert code == 0
    assert err.startswith("trying, ")
    assert "worldsmith launch --nproc-per-node 2 train wan21_t2v_tiny -- \\ dataloader_train.max_samples" in out
    assert f"written: {best}; worldsmith launch --nproc-per-node 2 train {best}" in out
    assert "${oc.env:DATASET_PATH}" in best.read_text()
    assert "on 2 GPUs" in said(capsys, str(best), "--quick", "--gpus", "2")[0]
    assert "best.yaml" in said(capsys, *words, "-o", str(best))[1]  # which is there already
    out, _, code = said(capsys, *words[:3], "--gpu", "1GB", "--fit")
    assert code == 1
    assert "nothing fits" in out.lower()
