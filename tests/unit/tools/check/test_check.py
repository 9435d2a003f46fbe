"""`worldsmith check` of a run and of a data set, from the words to the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_runs
import toy_runs
from damaged_data import damaged_chats

from worldsmith.cli.main import main
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.tools.check.check import CheckData


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("check") / "world", clips=6)


@pytest.fixture
def run_file(world: Path, tmp_path: Path) -> Path:
    config = tiny_runs.tiny_config(world)
    config.dataloader_val = config.dataloader_train
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    return tmp_path / "run.yaml"


def facts_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict, int]:
    code = main(["check", "--json", "--workers", "0", *words])
    return json.loads(capsys.readouterr().out), code


def test_a_run_with_overrides_and_a_part_of_its_data(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, code = facts_of(capsys, str(run_file), "--sample", "3", "--", "trainer.grad_accum_iter=1")
    report = facts["data"]["train"]
    assert (code, report["looked_at"], report["positions"], report["kept"]) == (0, 3, 6, 3)
    assert report["steps"] == report["packs"]
    assert report["features"]["size used"] == {"labels": ["64x64"], "counts": [3]}
    assert facts["disk"]["latent_cache"] == 4 * 48 * report["cells"]
    assert facts["disk"]["checkpoints_kept"] * facts["disk"]["checkpoint"] < facts["disk"]["free"]
    assert main(["check", str(run_file), "--sample", "3", "--workers", "0"]) == 0
    assert "3 of them, evenly spaced, decoded as in training" in " ".join(capsys.readouterr().out.split())


def test_validation_data_that_are_trained_on_are_told(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, code = facts_of(capsys, str(run_file), "--", "trainer.run_validation=true")
    assert (code, facts["overlap"]) == (0, 6)
    assert facts["data"]["val"]["kept"] == 6
    assert "6 samples are in both the validation data and the training data" in facts["remarks"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["--dataloader_train.max_sequence_length", "9"],
            "none fits into a pack: set dataloader_train.max_sequence_length to at least 130",
        ),
        (["--dataloader_train.dataset.min_frames", "99"], "no sample of"),
    ],
)
def test_a_run_that_could_not_start_ends_with_2(
    run_file: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts, code = facts_of(capsys, str(run_file), *words)
    assert (code, facts["can_start"]) == (2, False)
    assert problem in facts["problems"][0]
    assert main(["check", str(run_file), *words, "--workers", "0"]) == 2
    assert "PROBLEM" in capsys.readouterr().out


def test_more_processes_than_samples_is_said(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run would start: those processes read the samples of later passes."""
    facts, code = facts_of(capsys, str(run_file), "--processes", "8")
    assert code == 0
    assert facts["data"]["train"]["packs"] == [1] * 6 + [0] * 2
    (remark,) = [remark for remark in facts["remarks"] if "a step takes" in remark]
    assert "but an epoch over 6 samples gives only 0 to some processes (of 8)" in remark
    assert "Possible fixes: at most 1 process, smaller packs" in remark
    one_pack = "--", "trainer.grad_accum_iter=1"
    assert facts_of(capsys, str(run_file), "--processes", "2", *one_pack)[1] == 0
    facts, code = facts_of(capsys, str(run_file), "--processes", "2")
    assert (code, facts["data"]["train"]["packs"]) == (0, [1, 1])
    assert any("at most 1 process, trainer.grad_accum_iter = 1 or less" in remark for remark in facts["remarks"])


def test_a_data_set_is_held_against_the_limits_of_a_recipe(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (world / "data", world / "data" / "video_dataset_file.jsonl"):
        facts, code = facts_of(capsys, str(place))
        assert (code, facts["limits_of"], facts["data"]["train"]["kept"]) == (0, "vision_sft_tiny", 6)
    assert main(["check", str(world / "data"), "--recipe", "moving_shapes", "--workers", "0"]) == 0
    assert "limits       from the recipe moving_shapes;" in capsys.readouterr().out
    file = damaged_chats(tmp_path / "chats")
    for place in (file, file.parent):
        facts, code = facts_of(capsys, str(place), "--dataloader_train.max_bad_fraction", "0.9")
        assert (code, facts["limits_of"], facts["data"]["train"]["kept"]) == (0, "videophy2_nano_tiny", 9)


def test_a_family_that_says_nothing_of_its_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = toy_runs.validated(toy_runs.toy_config(toy_runs.make_world(tmp_path / "world")))
    result = CheckData.Config(workers=0).build(run=Loaded(resolve(config))).run()
    assert result.code == 0
    assert {name: report["kept"] for name, report in result.facts["data"].items()} == {"train": 6, "val": 5}
    assert "kept         6 of 6 samples" in list(result.lines)


def test_what_is_no_data_set_is_refused(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert "is neither a run folder nor a Worldsmith dataset" in capsys.readouterr().err
    assert main(["check", str(run_file), "--recipe", "moving_shapes"]) == 2
    assert "--recipe requires a dataset" in capsys.readouterr().err
    assert main(["check", str(run_file), "--sample", "0"]) == 2
    assert "argument --sample: expected an integer of at least 1, found '0'" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "listed"), [([], 5), (["--examples", "6"], 6), (["--examples", "1"], 1)])
def test_all_skipped_samples_can_be_listed(
    run_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], listed: int
) -> None:
    facts, _ = facts_of(capsys, str(run_file), *words, "--", "dataloader_train.dataset.min_frames=1000")
    group = facts["data"]["train"]["left_out"]["too_short"]
    assert group["count"] == 6
    assert len(group["examples"]) == listed
    assert group["examples"][0]["path"].endswith(".mp4")
