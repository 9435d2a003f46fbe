"""`worldsmith evaluate RUN --dataset CLIPS`: loss, videos of the captions, and their comparison with the clips."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from generator_run import write_generator_run
from pipeline_runs import make_world, pipeline_config
from pretrained_folders import make_clip, make_videomae

from worldsmith.cli.main import main
from worldsmith.evaluation.intervals import mean_interval
from worldsmith.sampling.write_media import read_image, write_mp4
from worldsmith.tools.export.export import Export
from worldsmith.tools.generate.sample_order import Order
from worldsmith.training.trainer import Trainer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run `run` on `data`, and other clips of two sizes in `val`."""
    monkeypatch.chdir(tmp_path)
    write_generator_run(tmp_path)
    shutil.copytree("data", "val")
    for index in range(2):
        clip = torch.full((3, 9, 64, 96), 90, dtype=torch.uint8)
        clip[2, :, 30:50, 20 + 8 * index : 60] = 230
        write_mp4(f"val/{index}.mp4", clip, 8)
    return tmp_path


def evaluate(words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["evaluate", *shlex.split(words)]) == code, capsys.readouterr().err
    said = capsys.readouterr()
    return said.out if code == 0 else " ".join(said.err.split())


def facts_of(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(out, "evaluation.json").read_text())
    return found


def test_loss_videos_and_metrics(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_clip(folder / "clip")
    make_videomae(folder / "videomae")
    words = "run --dataset val -o run/own --steps 1 --untrained run --clip clip --videomae videomae --device cpu"
    plan = evaluate(f"{words} --dryrun", capsys)
    assert "data        2 windows of val/video_dataset_file.jsonl" in plan
    assert "videos      2 per model, text2video" in plan
    assert not Path("run/own").exists()
    said = evaluate(words, capsys)
    facts = facts_of("run/own")
    losses = facts["losses"]["trained"]
    assert set(losses) == {"0_w0", "1_w0"}
    figure = facts["figures"]["loss"]
    mean = sum(losses.values()) / 2
    assert figure["trained"] == {
        "mean": pytest.approx(mean), "interval": pytest.approx(mean_interval(list(losses.values()))), "samples": 2,
    }  # fmt: skip
    assert figure["difference"]["untrained"]["samples"] == 2
    assert {name: of["trained"]["samples"] for name, of in facts["figures"].items()} == dict.fromkeys(
        ("loss", "motion", "flicker", "sharpness", "clip_score", "fvd_videomae"), 2
    )
    assert facts["figures"]["clip_score"]["real"]["mean"] > 0
    reason = "a video generated from text need not look like the clip; use --model-mode image2video"
    assert f"skipped the metric continuation: {reason}" in said
    assert "fvd_videomae: 2 videos are too few" in said
    assert facts["skipped"].keys() == {"continuation"}
    assert facts["held_out"]["in_training_data"] == 0
    assert facts["fingerprints"]["trained"].startswith("sha256:")
    assert "torch" in facts["versions"]
    sample = facts["samples"]["trained"][0]
    assert Path("run/own", sample["file"]).is_file()
    assert min(read_image("run/own/contact_sheet.png").shape[1:]) > 100
    record = json.loads(Path("run/own/lineage.json").read_text())
    assert [one["role"] for one in record["inputs"]] == ["model", "dataset"]
    files = times()
    again = evaluate(words, capsys)
    assert "(to generate and measure them again: --force" in again
    assert again.splitlines()[1:] == said.splitlines()
    assert times() == files


def times() -> dict[Path, int]:
    """When the files of the evaluation were written; `generate` draws its contact sheets anew."""
    return {file: file.stat().st_mtime_ns for file in Path("run/own").rglob("*") if file.suffix not in ("", ".png")}


def test_videos_from_first_frames_are_compared_with_the_clips(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "run --dataset val/video_dataset_file.jsonl -o out --steps 1 --device cpu --model-mode image2video --json"
    facts = json.loads(evaluate(f"{words} --max-videos 1", capsys))
    assert facts["figures"]["psnr"]["trained"]["samples"] == 1
    assert facts["figures"]["loss"]["trained"]["samples"] == 2
    first = facts["samples"]["trained"][0]
    assert first["model_mode"] == "image2video"
    both = json.loads(evaluate(f"{words} --max-videos 2", capsys))  # the first video is kept
    assert both["figures"]["ssim"]["trained"]["samples"] == 2
    assert both["samples"]["trained"][0] == first
    line = json.loads(Path("out/held_out_samples.jsonl").read_text().splitlines()[0])
    real = read_image(Path("out", line["vision_path"]))
    assert list(real.shape) == [3, line["height"], line["width"]]


@pytest.mark.parametrize("place", ["--processes 2", pytest.param("--on ray", marks=pytest.mark.slow)])
def test_processes_generate_the_same_videos(folder: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Although this process has computed the loss with several threads, which a copy of it would not have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        words = "run --dataset val --steps 1 --device cpu --json --evaluators loss --evaluators motion"
        alone = json.loads(evaluate(f"{words} -o alone", capsys))["samples"]["trained"]
        shared = json.loads(evaluate(f"{words} -o shared --untrained run {place}", capsys))["samples"]["trained"]
    finally:
        torch.set_num_threads(threads)
    assert [one["name"] for one in shared] == [one["name"] for one in alone]
    for one, other in zip(shared, alone, strict=True):  # the number of threads may differ
        assert one["figures"]["motion"] == pytest.approx(other["figures"]["motion"], rel=0.1)


def test_a_video_that_fails_is_not_measured(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if an earlier command has left a video of this name."""
    make_pack = Order.make_pack

    def fail(self: Order, generator: Any, pack: Any, *others: Any) -> None:
        if pack[0].name == "0_w0":
            raise RuntimeError("no such pixel")
        make_pack(self, generator, pack, *others)

    words = "run --dataset val --device cpu --evaluators motion -o out"
    evaluate(f"{words} --steps 1", capsys)
    with monkeypatch.context() as patch:
        patch.setattr(Order, "make_pack", fail)
        said = evaluate(f"{words} --steps 2 --force --max-failures 1", capsys)
    assert "not measured  0_w0: its video could not be generated" in said
    assert facts_of("out")["not_generated"] == ["0_w0"]
    assert [one["name"] for one in facts_of("out")["samples"]["trained"]] == ["1_w0"]
    assert "not measured" not in evaluate(f"{words} --steps 2 --force", capsys)
    assert facts_of("out")["figures"]["motion"]["trained"]["samples"] == 2


def test_the_loss_alone_generates_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("settings.yaml").write_text("dataset: val\nevaluators: [loss]\nout: out\ndevice: cpu\n")
    said = evaluate("run --settings settings.yaml", capsys)
    assert said.splitlines()[1].split()[0] == "loss"
    assert sorted(file.name for file in Path("out").rglob("*") if file.is_file()) == [
        "evaluation.json", "held_out_loss.json", "lineage.json",
    ]  # fmt: skip


def test_training_clips_are_pointed_out(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words = "run --dataset data -o out --evaluators loss --device cpu"
    assert "noted       2 of 2 windows belong to clips in the training data" in evaluate(f"{words} --dryrun", capsys)
    evaluate(words, capsys)
    assert "2 of 2 windows belong to clips in the training data" in caplog.text
    assert facts_of("out")["held_out"]["in_training_data"] == 2


def test_an_export_whose_run_is_gone_is_measured_without_the_loss(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Export.Config(model="run", dtype="float32", out="export").build().run()
    Path("run").rename("moved")
    words = "export --dataset val -o out --steps 1 --max-videos 1 --device cpu"
    reason = "export does not state its training objective, and no lineage.json leads to its training run"
    assert f"loss        {reason}" in evaluate(f"{words} --dryrun", capsys)
    said = evaluate(words, capsys)
    assert f"loss: 1 not measured (trained): {reason}" in said
    assert facts_of("out")["figures"]["motion"]["trained"]["samples"] == 1
    assert reason in evaluate(f"{words} --evaluators loss", capsys, 2)
    assert "lies inside the model folder" in evaluate("export --dataset val -o export/out", capsys, 2)


def test_mistakes_are_said_before_anything_is_generated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    for words, reason in (
        ("--dataset none", "none"),
        ("--dataset val --clip data", "--clip data: config.json is missing. Add --clip FOLDER; `hf download"),
        ("--dataset val --model-mode text2speech", "text2image"),
        ("--dataset val --evaluators loss --processes 2", "one process measures everything here"),
        ("--prompts p.jsonl --on ray", "one process measures it"),
        ("--dataset val --prompts p.jsonl", "one of them selects what is measured"),
        ("-i a.txt --evaluators loss", "the loss and actions need a dataset"),
        ("-i a.txt --model-mode image2video", "sample files set the generation mode"),
        (
            "-i a.txt --evaluators fvd",
            "no metric can be computed: fvd: its weights are not set: add --videomae FOLDER",
        ),
        ("--dataset val --evaluators clip", "clip: its weights are not set: add --clip FOLDER; `hf"),
    ):
        for dry in ("", " --dryrun"):
            assert reason in evaluate(f"run {words} -o out{dry}", capsys, 2), words
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("family", "measured", "skipped"),
    [
        ("cogvideox", {"loss": 6, "motion": 1, "flicker": 1, "sharpness": 1}, {"clip", "fvd", "continuation"}),
        ("flux", {"loss": 7, "sharpness": 1}, {"clip", "fvd", "continuation", "motion"}),
        pytest.param(
            *("wan22", {"loss": 6, "motion": 1, "flicker": 1, "sharpness": 1}, {"clip", "fvd", "continuation"}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_family_is_measured(
    family: str, measured: dict[str, int], skipped: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(family, tmp_path / "world")
    Trainer(pipeline_config(family, world, steps=1, save_iter=1), run_folder=tmp_path / "run").train()
    words = f"--dataset {world}/data -o {tmp_path}/out --steps 1 --max-videos 1 --device cpu --json"
    facts = json.loads(evaluate(f"{tmp_path}/run {words}", capsys))
    assert {name: figure["trained"]["samples"] for name, figure in facts["figures"].items()} == measured
    assert facts["skipped"].keys() == skipped
    assert facts["held_out"]["in_training_data"] == measured["loss"]
