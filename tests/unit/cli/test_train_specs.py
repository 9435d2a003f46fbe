"""Nested specs on the command line: words, reports, and conversions that lead to the same run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.config.load import load

GUIDE = Path(__file__).parents[3] / "docs/specs.md"
EXAMPLES = sorted((Path(__file__).parents[3] / "examples/specs").iterdir())


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    turns = [{"from": "human", "value": "<image>\nIs it?"}, {"from": "gpt", "value": "yes"}]
    records = [{"id": str(number), "image": "a.png", "conversations": turns} for number in range(100)]
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    for name in ("DATASET_PATH", "VAL_DATASET_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    return code, *capsys.readouterr()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_a_run_and_its_conversions_are_the_same_run_or_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "config", "check", "--spec", str(file))[:2] == (0, f"OK: {file}\n")
    word = "train.epoch=2"
    wanted = load(str(file), spec_words=[word]).tree
    for form in ("yaml", "json", "toml"):
        code, text, said = run(capsys, "config", "convert", str(file), word, "--to", form)
        assert re.search(
            r"^  renamed +train\.epoch +trainer\.max_iter = \d+; 2 epochs of \d+ steps: 100 samples", said, re.MULTILINE
        )
        if form == "toml":
            assert (code, text) == (2, "")
            assert re.search(r"the recipe TOML has no key for\n(  \S+\n)*  dataloader_train\.dataset\.\S+\n", said)
            assert f"YAML can express the complete config: worldsmith config convert {file} {word} --to yaml\n" in said
            continue
        assert code == 0
        converted = tmp_path / f"run.{form}"
        converted.write_text(text)
        assert load(str(converted)).tree == wanted


def test_a_file_that_is_a_spec_takes_overrides_without_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with_flag, without = (
        run(capsys, "config", "show", *words, str(EXAMPLES[0]), "train.epoch=2", "--", "trainer.cpu_threads=2")
        for words in (["--spec"], [])
    )
    assert with_flag == without
    assert with_flag[0] == 0


def test_words_of_the_spec_come_before_those_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("config", "show", "--spec", str(EXAMPLES[0]), "train.epoch=2", "automl_policy=off", "num_gpus=1")
    code, out, err = run(capsys, *words, "--optimizer.lr", "3e-6", "--", "trainer.cpu_threads=2")
    assert code == 0, err
    told = {line.split(":")[0].strip(): line.split("  # ")[-1] for line in out.splitlines() if "  # " in line}
    assert told["max_iter"] == "override train.epoch=2"
    assert told["lr"] == "flag --optimizer.lr 3e-6"
    assert told["cpu_threads"] == "override trainer.cpu_threads=2"
    assert told["data_parallel_shard_degree"] == "override num_gpus=1"


MISTAKES = [
    (("train.epoc=2",), "override: train.epoc: [train] has no key 'epoc'"),
    (("more",), "unexpected argument 'more'"),
    (("train.epoch=2", "automl_policy=auto"), f"worldsmith tune --spec {EXAMPLES[1]} train.epoch=2 -o DIR"),
    (("automl_policy=of",), "automl_policy: expected auto or off, found 'of'"),
    (("~train.nothing",), "train.nothing: the spec does not have this key"),
    (("--", "job.experiment=pre_exp012_llava_ov"), "the file is a complete config, built from the recipe 'cosmos_rl'"),
    (("--", "optimizer.lrr=1"), "did you mean 'optimizer.lr'?"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes_of_the_words(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "train", "--spec", str(EXAMPLES[1]), *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_the_commands_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = GUIDE.read_text(encoding="utf-8").partition("```bash\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    text = EXAMPLES[0].read_text(encoding="utf-8")
    Path("spec.toml").write_text(
        text.replace("[policy.parallelism]", "[policy.lora]\ntarget_modules = ['q_proj']\n\n[policy.parallelism]")
    )
    train, convert = (shlex.split(line)[1:] for line in block.strip().splitlines())
    assert run(capsys, "config", "check", *train[1:])[0] == 0
    assert run(capsys, *convert)[0] == 0
    assert load("run.yaml").tree == load("spec.toml", spec_words=["train.epoch=2"]).tree


def test_one_source_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "config", "check", "--spec", str(EXAMPLES[0]), "--sft-toml", "x.toml")
    assert code == 2
    assert "name one recipe or file" in err
