"""The file and the commands of docs/evaluate.md work as they stand."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from generator_run import write_generator_run
from PIL import Image
from robot_run import write_robot_run

from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.sampling.write_media import read_image, write_mp4
from worldsmith.tools.evaluate.video_metrics import read_known

PAGE = (Path(__file__).parents[2] / "docs/evaluate.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(300)
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_generator_run(tmp_path).rename("my_run")
    Path("samples.yaml").write_text(blocks("yaml")[0])
    clip = torch.full((3, 9, 64, 96), 90, dtype=torch.uint8)
    for time in range(9):
        clip[2, time, 40 - 3 * time : 56 - 3 * time, 32:48] = 230
    write_mp4("clip.mp4", clip, 8)
    Image.fromarray(clip[:, 0].permute(1, 2, 0).numpy()).save("picture.png")
    said = []
    for line in blocks("bash")[1].strip().splitlines():
        program, *words = shlex.split(line)
        assert program == "worldsmith"
        assert main([*words, "--dryrun"]) == 0, line
        plan = capsys.readouterr().out
        assert main(words) == 0, line
        said.append((plan, capsys.readouterr().out))
    assert "5 samples, in evaluation/trained" in said[0][0]
    assert "5 samples, all already complete" in said[1][0]
    table, again, beside = (out.splitlines() for _, out in said)
    assert table[0].split() == [
        "figure",
        "unit",
        "trained",
        "untrained",
        "real",
        "minus",
        "untrained",
        "minus",
        "real",
        "samples",
    ]
    assert "is complete for these videos (to generate and measure them again: --force)" in again[0]
    assert again[1:] == table
    assert "psnr: 3 not measured (trained): no real video is known (extra.real)" in table
    assert "adherence: 2 not measured (untrained): no moving-shape attributes in the sample's extra" in table
    assert [line.split()[0] for line in beside[1:6]] == ["psnr", "ssim", "motion_error", "motion", "flicker"]
    facts = json.loads(Path("evaluation/evaluation.json").read_text())
    assert [(one["name"], one["seed"]) for one in facts["samples"]["trained"]] == [
        ("left/0", 0), ("left/1", 1), ("left/2", 2), ("goes_on", 0), ("from_picture", 0),
    ]  # fmt: skip
    assert facts["models"]["untrained"]["weights"] == "untrained"
    figures = facts["figures"]
    assert {name: figure["trained"]["samples"] for name, figure in figures.items()} == {
        "psnr": 2, "ssim": 2, "motion_error": 2, "motion": 5, "flicker": 5, "sharpness": 5, "diversity": 1,
        "adherence": 3,
    }  # fmt: skip
    assert figures["diversity"]["trained"]["mean"] > 0
    equal = json.loads(Path("beside/evaluation.json").read_text())["figures"]
    assert all(figure["difference"]["baseline"]["mean"] == 0 for figure in equal.values())
    assert (figures["motion"]["real"]["samples"], figures["psnr"]["real"]["samples"]) == (2, 0)
    sheet = read_image("evaluation/contact_sheet.png")
    assert min(sheet.shape[1:]) > 300
    assert measured_anew_where_something_changed(capsys) == [False, True, True, True]


def test_the_section_on_robot_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    write_robot_run(tmp_path).rename("my_robot_run")
    Path("other").rename("other_episodes")
    said = []
    for line in blocks("bash")[0].strip().splitlines():
        assert main(shlex.split(line)[1:]) == 0, line
        said.append([row.split()[0] for row in capsys.readouterr().out.splitlines()])
    assert {"loss", "psnr", "action_mse", "action_mse_6", "shuffled_to_true"} <= {*said[0]}
    assert {"psnr", "shuffled_to_true"} <= {*said[1]}
    assert not {"loss", "action_mse"} & {*said[1]}


def measured_anew_where_something_changed(capsys: pytest.CaptureFixture[str]) -> list[bool]:
    """After nothing, figures of others, a sheet that is gone and a sample that is gone, which is made first."""

    def again() -> bool:
        assert main(shlex.split(blocks("bash")[1].strip().splitlines()[1])[1:]) == 0
        return "(to generate and measure them again: --force" not in capsys.readouterr().out

    found = [again()]
    for change in (
        lambda: Path("evaluation/evaluation.json").write_text(json.dumps({"signature": "of others"})),
        lambda: Path("evaluation/contact_sheet.png").unlink(),
        lambda: Path("evaluation/untrained/left/1/sample_outputs.json").unlink(),
    ):
        change()
        found.append(again())
    return found


def test_what_cannot_be_measured_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_generator_run(tmp_path)
    shutil.copytree(run, "other")
    shutil.copytree("data", "faster")
    for clip in Path("faster").glob("*.mp4"):
        write_mp4(clip, torch.zeros(3, 9, 64, 96, dtype=torch.uint8), 16)
    config = Path("other/config.yaml")
    config.write_text(config.read_text().replace(str(tmp_path / "data"), str(tmp_path / "faster")))
    Path("one.txt").write_text("A red square.\n")
    Path("real.json").write_text('{"prompt": "x", "extra": {"real": "none.mp4"}}')
    before = sorted(tmp_path.iterdir())
    for words, reason in (
        ([], "one of them selects what is measured"),
        (["-i", "one.txt", "--prompts", "one.txt"], "one of them selects what is measured"),
        (["--prompts", "one.txt", "--evaluators", "motion"], "needs sample files"),
        (["-i", "one.txt", "--evaluators", "sharpnes"], "sharpness"),
        (["-i", "real.json"], "real: extra.real must be a video file, found none.mp4"),
        (["-i", "one.txt", "--baseline", "other"], "one_0: fps would be 16 with other, and 8 with"),
    ):
        for dry in ([], ["--dryrun"]):
            assert main(["evaluate", str(run), *words, "-o", "out", *dry]) == 2
            assert reason in " ".join(capsys.readouterr().err.split())
    assert sorted(tmp_path.iterdir()) == before


def test_figures_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = tmp_path / "evaluation.json"
    assert read_known(file, "s") == {}
    known = {"signature": "s", "figures": {}}
    damaged = {"signature": "s", "figures": {"psnr": {"not_measured": {"a": 1}}}}
    for text in ("{", "[1]", '{"signature": "s"}', json.dumps(known), json.dumps(damaged)):
        file.write_text(text)
        with pytest.raises(UserError, match=r"evaluation.json.* Remove the file to measure the videos again"):
            read_known(file, "s")
