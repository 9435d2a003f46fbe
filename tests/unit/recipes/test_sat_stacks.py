"""SAT's YAML stacks over the real recipes: commands, conversions, and the guide."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from sat_files import FILLED, write_stack

from worldsmith.cli.main import main
from worldsmith.config.load import load
from worldsmith.families.cogvideox.task import CogVideoXTask

GUIDE = (Path(__file__).parents[3] / "docs/from_cogvideo.md").read_text()
LINES = re.findall(r"^\| `train_video.py --base configs/(\S+).yaml configs/sft.yaml` \| (.*) \| (.*) \|$", GUIDE, re.M)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> int:
    """A command with the files of a stack."""
    return main(list(words))


def test_convert_prints_the_report_of_a_stack_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("config", "convert", *write_stack(), *FILLED, "args.epochs=3", "--to", "yaml")
    said = capsys.readouterr().err
    assert code == 2
    assert ", 1 refused\n" in said
    assert "  refused       args.epochs" in said
    assert "-> ~args.epochs" in said


def test_train_takes_words_and_flags_of_sat(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--seed", "0", "args.train_iters=0", *FILLED)
    assert run("train", "--dryrun", "--base", *write_stack(), *words) == 2
    said = capsys.readouterr().err
    assert "--seed" not in said
    assert "args.seed: expected at least 1, found 0" in said
    assert "args.train_iters: expected at least 1, found 0" in said


@pytest.mark.parametrize(("name", "here", "what"), LINES)
def test_an_old_command_line_becomes_what_the_guide_says(
    name: str, here: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    size = name.removeprefix("cogvideox").removesuffix("_lora").removeprefix("_")
    files = write_stack(size, lora=name.endswith("_lora"))
    code = run("config", "check", "--base", *files, "--seed", "7", *FILLED)
    assert (code, here) == (0, f"`worldsmith train --base configs/{name}.yaml configs/sft.yaml`"), what
    assert ("latent_input" in what) is ("latent_input is approximated" in capsys.readouterr().err)


def test_the_guide_has_the_published_stacks() -> None:
    assert len(LINES) == len({name for name, _, _ in LINES}) == 8


def finetune() -> str:
    """The part of the guide about the trainer over diffusers."""
    return GUIDE.partition("## finetune/")[2].partition("\n## ")[0]


def test_the_recipes_of_the_guide_for_the_other_trainer_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGVIDEOX_PATH", "pipeline")
    monkeypatch.setenv("DATASET_PATH", "clips")
    names = set(re.findall(r"worldsmith train (\w+)", finetune())) | set(re.findall(r"\(or `(\w+)`\)", finetune()))
    assert len(names) == 8
    assert all(run("config", "check", name) == 0 for name in sorted(names))


def test_the_words_of_the_guide_for_the_other_trainer_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGVIDEOX_PATH", "pipeline")
    monkeypatch.setenv("DATASET_PATH", "clips")
    words = [word for text in re.findall(r"`([^`]+)`", finetune()) for word in text.split()]
    words = [word for word in words if re.match(r"[a-z_]+\.[\w.]+=", word)]
    assert len(words) == 29
    tree = load("cogvideox_5b_lora", words).tree
    assert (tree.model.config.lora_alpha, tree.scheduler.f_min, tree.optimizer.lr) == (64, [1.0], 2e-5)
    assert run("config", "check", "cogvideox_5b_lora", "--", *words) == 0


@pytest.mark.parametrize("size", ["2b", "5b_i2v"])
@pytest.mark.parametrize("form", ["toml", "yaml"])
def test_a_converted_stack_leads_to_the_same_run(form: str, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    files, words = write_stack(size), [*FILLED, "args.train_iters=500"]
    wanted = load(files, spec_words=words).tree
    code = run("config", "convert", *files, *words, "--to", form, "-o", f"run.{form}")
    if form == "toml":  # it has no keys for the shape of the network and the like
        (command,) = re.findall(r"YAML can express the complete config: worldsmith (.*)", capsys.readouterr().err)
        assert code == 2
        assert not Path("run.toml").exists()
        code = run(*shlex.split(command))
    assert code == 0
    assert load("run.yaml").tree == wanted


def test_a_run_of_all_weights_says_how_many_and_what_they_take() -> None:
    loaded = load(write_stack("5b", lora=False), spec_words=FILLED)
    told = "the transformer has 5570283072 parameters: weights, gradients, optimizer state and EMA need 103.8 GiB"
    assert any(told in warning for warning in loaded.warnings)
    path = "model.first_stage_config.params.ckpt_path"
    told = f'{path} = "zai-org/CogVideoX-2b", not "3d-vae.pt": the command line has precedence here'
    assert any(told in warning for warning in loaded.warnings)
    assert loaded.tree.model.config.count_parameters() == 5_570_283_072
    assert not loaded.tree.model.config.lora_enabled
    images = load(write_stack("5b_i2v", lora=False), spec_words=FILLED)
    assert images.tree.model.config.count_parameters() == 5_570_479_680 + 54_607_872
    CogVideoXTask.check(images.tree)
