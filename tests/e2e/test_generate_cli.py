"""`worldsmith export` and `worldsmith generate` on a run folder with real clips, from the command line."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from generator_run import find_samples, write_generator_run
from mp4 import read_mp4
from PIL import Image

from worldsmith.assets import asset_path
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.cli.main import main
from worldsmith.config.tree.read_config import from_dict
from worldsmith.config.yaml.yaml_text import dump_yaml, read_yaml
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec
from worldsmith.sampling.requests import GenerationRequest, conditional_text
from worldsmith.sampling.write_media import read_image, write_mp4


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generator_run(tmp_path_factory.mktemp("run"))


def args_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sample_args.json").read_text())


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_export_then_generate(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's size, length and rate reach the export and the videos; run and export generate the same frames."""
    export = tmp_path / "export"
    assert main(["export", str(run_folder), "-o", str(export), "--dtype", "float32"]) == 0
    said = capsys.readouterr().out
    assert "EMA weights after 4 steps, float32" in said
    command = said.partition("next:\n")[2].replace("\\\n", "")
    assert shlex.split(command)[:5] == ["worldsmith", "generate", str(export), "--prompt", "…"]
    assert main(["export", str(run_folder), "-o", str(export), "--dtype", "float32"]) == 0
    assert "already complete" in capsys.readouterr().out
    generation = json.loads((export / "worldsmith.json").read_text())["generation"]
    assert [generation[key] for key in ("height", "width", "num_frames", "fps", "shift")] == [64, 96, 9, 8.0, 1]
    assert generation["append_resolution"] is True

    words = ["--prompt", "A red square.", "--prompt", "A blue one", "--steps", "2", "--seed", "5"]
    assert main(["generate", str(run_folder), *words, "-o", str(tmp_path / "a")]) == 0
    assert "num_frames           9 (as trained)" in capsys.readouterr().err
    assert main(["generate", str(export), *words, "-o", str(tmp_path / "b")]) == 0
    for name in ("000_a_red_square", "001_a_blue_one"):
        video, fps = read_mp4(tmp_path / "a" / name / "vision.mp4")
        assert (tuple(video.shape), fps) == ((3, 9, 64, 96), 8)
        assert torch.equal(video, read_mp4(tmp_path / "b" / name / "vision.mp4")[0])
        outcome = json.loads((tmp_path / "a" / name / "sample_outputs.json").read_text())
        assert (outcome["status"], outcome["outputs"][0]["files"]) == ("success", ["vision.mp4"])
        assert outcome["args"] == args_of(tmp_path / "a" / name)
    sheet = read_image(tmp_path / "a" / "contact_sheet.png")
    assert sheet.shape[0] == 3
    assert main(["generate", str(run_folder), "--prompt", "Another.", "--steps", "2", "-o", str(tmp_path / "a")]) == 0
    assert "(with 2 earlier ones)" in capsys.readouterr().out
    assert read_image(tmp_path / "a" / "contact_sheet.png").shape[2] > sheet.shape[2]  # three columns, not two
    first = args_of(tmp_path / "a" / "000_a_red_square")
    assert (first["seed"], first["num_steps"], first["guidance"], first["model"]["weights"]) == (5, 2, 6.0, "ema")
    assert [first["sources"][name] for name in ("seed", "num_frames", "guidance")] == [
        "flag",
        "as trained",
        "as trained",
    ]


def test_a_file_of_samples_in_every_mode(run_folder: Path, tmp_path: Path) -> None:
    """Flags win over the file, a condition is found beside it, and each sample has a folder of its name."""
    write_mp4(tmp_path / "opening.mp4", torch.full((3, 6, 64, 96), 99, dtype=torch.uint8), 8)
    Image.new("RGB", (96, 64), (10, 200, 10)).save(tmp_path / "first.png")
    samples = [
        {"prompt": "One.", "seed": 9, "width": 64, "extra": {"colour": "red"}, "num_steps": 7},
        {"prompt": {"subjects": [{"description": "ü"}]}, "vision_path": "opening.mp4", "num_outputs": 2, "seed": 3},
        {"name": "still", "model_mode": "text2image", "prompt": "A picture.", "guidance": 2.0},
        {"name": "from_image", "prompt": "Two.", "vision_path": "first.png"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    out = tmp_path / "out"
    words = ["-i", str(tmp_path / "*.jsonl"), "-o", str(out), "--num-steps", "2", "--weights", "untrained"]
    assert main(["generate", str(run_folder), *words]) == 0
    made = {sample.args["name"]: sample for sample in find_samples(out)}
    assert sorted(made) == ["from_image", "in_0", "in_1/0", "in_1/1", "still"]
    one, two = made["in_0"].args, made["in_1/1"].args
    assert (one["seed"], one["width"], one["num_steps"], one["extra"]) == (9, 64, 2, {"colour": "red"})
    assert one["sources"]["num_steps"] == "flag"
    assert one["sources"]["width"] == f"{tmp_path / 'in.jsonl'}:1"
    assert (two["prompt"], two["seed"], two["model_mode"]) == ('{"subjects": [{"description": "ü"}]}', 4, "video2video")
    assert two["condition_frame_indexes_vision"] == [0, 1]
    assert (two["model"]["weights"], two["model"]["iteration"]) == ("untrained", 0)
    still = made["still"]
    assert read_image(still.file).shape == (3, 64, 96)
    assert (still.file.name, still.args["num_frames"], still.args["guidance"]) == ("vision.jpg", 1, 2.0)
    assert made["from_image"].args["model_mode"] == "image2video"
    opening, _ = read_mp4(made["in_1/0"].file)
    assert (opening[:, 0].float() - 99).abs().mean() < 30  # what the tiny VAE makes of it


def test_what_is_complete_stays_and_what_was_made_otherwise_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stopped command goes on to the same bytes; other arguments need --force; files of others are left alone."""
    out = tmp_path / "out"
    words = ["generate", str(run_folder), "--prompt", "x", "--prompt", "y", "-o", str(out), "--steps", "1"]
    assert main(words) == 0
    names = ["000_x/vision.mp4", "001_y/vision.mp4"]
    before = [(out / name).read_bytes() for name in names]
    assert before[0] != before[1]
    (out / "000_x" / "sample_outputs.json").unlink()
    (out / "000_x" / "vision.mp4").write_text("half")
    (out / "000_x" / ".saving_vision.mp4.0").write_text("of a process that was killed")
    (out / "mine.mp4").write_text("keep")
    stamp = (out / names[1]).stat().st_mtime_ns
    capsys.readouterr()
    assert main(words) == 0
    assert "2 samples, 1 of them is already complete" in capsys.readouterr().out
    assert [(out / name).read_bytes() for name in names] == before
    assert (out / names[1]).stat().st_mtime_ns == stamp
    assert main(words) == 0
    assert "2 samples, all already complete" in capsys.readouterr().out

    assert main([*words, "--seed", "3"]) == 2
    assert "000_x was generated with other arguments (seed)" in capsys.readouterr().err
    assert [(out / name).read_bytes() for name in names] == before
    assert main([*words, "--seed", "3", "--force", "--num-frames", "1"]) == 0
    assert files_in(out) == [
        *("000_x/sample_args.json", "000_x/sample_outputs.json", "000_x/vision.jpg"),
        *("001_y/sample_args.json", "001_y/sample_outputs.json", "001_y/vision.jpg", "contact_sheet.png", "mine.mp4"),
    ]


def test_released_weights_need_no_flags(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain diffusers folder: published defaults, each with its source; small ones are made here."""
    folder = tmp_path / "released"
    assert main(["export", str(run_folder), "-o", str(folder), "--dtype", "float32"]) == 0
    (folder / "worldsmith.json").unlink()
    words = ["generate", str(folder), "-o", str(tmp_path / "out")]
    capsys.readouterr()
    assert main([*words, "--prompt", "x", "--dryrun"]) == 0
    said = capsys.readouterr().out
    for expected in ("189 frames of 720×1280, 24 fps", "shift                10.0 (as published)"):
        assert expected in said
    caption = json.dumps({"subjects": [], "fps": 30})
    small = ["--resolution", "64", "--aspect-ratio", "1,1", "--num-frames", "5", "--steps", "1"]
    assert main([*words, "--prompt", caption, *small]) == 0
    (made,) = find_samples(tmp_path / "out")
    found = [made.args[name] for name in ("height", "shift", "guidance", "structured_metadata")]
    assert found == [64, 10.0, 6.0, True]
    model = find_model(folder)
    request = GenerationRequest(prompt="A cat.", height=64, width=64, num_frames=5, fps=24.0)
    expected = "A cat. The video is 0.2 seconds long and is of 24 FPS. This video is of 64x64 resolution."
    assert conditional_text(request, model.defaults) == expected


def test_a_launch_checks_and_plans_before_there_are_processes(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")  # which a plan changes
    monkeypatch.setattr("torch.distributed.run.run", lambda *_: pytest.fail("processes were started"))
    launch = ["launch", "--nproc-per-node", "2", "generate", str(run_folder), "-o", str(tmp_path / "out")]
    assert main([*launch, "--prompt", "x", "--cfgp-size", "2", "--dryrun"]) == 0
    assert "folder   " in capsys.readouterr().out
    assert main([*launch, "--prompt", "x", "--num-stepz", "2"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no prompt: use --prompt TEXT or --input-files FILE"),
        (["--prompt", "x", "--height", "50"], "height must be a multiple of 16, found 50; the nearest is 48"),
        (["--prompt", "x", "--condition-frame-indexes-vision", "0"], "require a vision_path with the frames"),
        (["--prompt", "x", "--model-mode", "image2video"], "does not fit a sample that has no vision_path"),
        (["--prompt", "x", "--model-mode", "text2image", "--num-frames", "5"], "one frame, found num_frames 5"),
        (["--prompt", "x", "--resolution", "77"], "it is not a resolution bucket"),
        (["--prompt", "x", "--resolution", "64", "--width", "64"], "each sets the same value in another way"),
        (["--prompt", "x", "--cfgp-size", "2"], "--cfgp-size 2 requires an even number of processes, found 1"),
        (["-i", "missing.txt"], "missing.txt"),
        (["--prompt", "x", "--steps", "0"], "num_steps must be at least 1 and at most 1000, found 0"),
        (["--prompt", "x", "--shift", "nan"], "shift: expected a number or null, found nan"),
        (["--prompt", "x", "--guidance", "nan"], "guidance: expected a number or null, found nan"),
        (["--prompt", "x", "--guidance", "inf"], "guidance must be finite and at least 0, found inf"),
        (["--prompt", "x", "--fps", "inf"], "fps must be finite and above 0, found inf"),
        (["--prompt", "x", "--seed", "-1"], "seed must be at least 0 and below"),
        (["--prompt", "x", "--num-frames", "0"], "num_frames must be at least 1, found 0"),
        (["--prompt", "x", "--width", "wide"], "width: expected an integer or null, found 'wide'"),
        (["--prompt", "x", "--device", "foo"], "device foo: no such device; use cpu or cuda"),
        (["--prompt", "x", "--device", "cuda:99"], "device cuda:99: this machine has "),
    ],
)
def test_mistakes_are_exit_code_2(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """One line that says what is wrong, no traceback, no files."""
    assert main(["generate", str(run_folder), *words, "-o", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mistakes are found as without it; no weight is read."""
    load = "worldsmith.checkpoint.formats.stored_model.StoredModel.load"
    monkeypatch.setattr(load, lambda *_, **__: pytest.fail("weights were read"))
    monkeypatch.chdir(tmp_path)
    scene = {"colour": "red", "shape": "square", "direction": "left", "held_out": False}
    size = {"prompt": "A red square.", "seed": 3, "height": 64, "width": 64, "num_frames": 5, "fps": 8}
    Path("prompts.jsonl").write_text(json.dumps({**scene, **size}) + "\n")
    Path("samples.json").write_text(json.dumps(size))
    run, prompts = str(run_folder), ["--prompts", "prompts.jsonl"]
    for words, lines in (
        (["generate", run, "--prompt", "x"], ["EMA weights, 4 steps", "9 frames of 64×96, 8 fps, seed 0: x"]),
        (["generate", run, "-i", "samples.json"], ["5 frames of 64×64, 8 fps, seed 3: A red square."]),
        (["evaluate", run, *prompts, "--untrained", run, "-o", "out"], ["(EMA weights, 4 steps)", "untrained", "1 of"]),
        (["export", run, "-o", "out"], ["pipeline would be written to out (EMA weights after 4 steps, bfloat16)"]),
        (["convert", run, "-o", "out"], ["would be converted to out (dcp)"]),
        (["dataset", "moving-shapes", "out", "--clips", "2"], ["2 train and 64 val clips of 17 frames, 64×64"]),
    ):
        assert main([*words, "--dryrun"]) == 0
        said = capsys.readouterr().out
        assert all(line in said for line in lines), said
    assert main(["generate", run, "--prompt", "x", "--height", "50", "--dryrun"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.jsonl", "samples.json"]


@pytest.mark.parametrize("shift", ["0", "-1", "nan", "inf", "much"])
def test_an_export_takes_no_shift_that_makes_no_schedule(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], shift: str
) -> None:
    """The rule of `generate`, in every format that states a shift."""
    for form in ("diffusers", "native"):
        words = ["export", str(run_folder), f"--shift={shift}", "--format", form, "-o", str(tmp_path / "out")]
        assert main(words) == 2
        assert "| --shift" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_export_for_comfyui_needs_a_network_of_comfyui(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run_folder), "--format", "comfyui", "-o", str(tmp_path / "out")]) == 2
    reason = "expected diffusers or native or adapter for this model, because ComfyUI does not have its network"
    assert reason in " ".join(capsys.readouterr().err.replace("|", " ").split())


def test_a_prompt_file_with_a_rate_that_is_no_number_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x", "fps": Infinity}\n')
    words = ["-i", str(tmp_path / "prompts.jsonl"), "-o", str(tmp_path / "out")]
    assert main(["generate", str(run_folder), *words]) == 2
    assert "prompts.jsonl:1:1: not valid JSON: Infinity is not a JSON number" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_export_works_from_another_directory_and_moved(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run names its VAE relative to where it was started; what is exported names it absolutely or holds it."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(run_folder, home / "run")
    shutil.copytree(asset_path("tiny_vae"), home / "models" / "vae")
    for file in home.rglob("config.yaml"):
        file.write_text(file.read_text().replace(str(asset_path("tiny_vae")), "models/vae"))
    monkeypatch.chdir(home)
    assert main(["export", "run", "-o", "pipeline", "--dtype", "float32"]) == 0
    assert main(["export", "run", "-o", "native", "--format", "native", "--dtype", "float32"]) == 0
    assert main(["export", "pipeline", "-o", "again", "--format", "native", "--dtype", "float32"]) == 0
    assert f"the VAE is not copied: {home / 'models' / 'vae'}" in capsys.readouterr().out
    monkeypatch.chdir(elsewhere)
    words = ["--prompt", "A red square.", "--steps", "1", "-o"]
    for name in ("pipeline", "native", "again"):
        if name != "pipeline":  # the VAE of `again` is the one in `pipeline`
            shutil.move(home / name, elsewhere / name)
        folder = (elsewhere if name != "pipeline" else home) / name
        assert main(["generate", str(folder), *words, str(tmp_path / f"of_{name}")]) == 0
    shutil.move(home / "pipeline", elsewhere / "pipeline")
    assert main(["generate", "pipeline", *words, str(tmp_path / "of_moved")]) == 0
    videos = {
        next((tmp_path / f"of_{n}").glob("*/*.mp4")).read_bytes() for n in ("pipeline", "native", "again", "moved")
    }
    assert len(videos) == 1


@pytest.mark.parametrize("form", ["diffusers", "native"])
def test_the_place_of_an_export_is_tried_before_anything_is_read(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Below a file, or where another folder is: one line, and nothing of the model was looked at."""

    def never(*args: Any, **kwargs: Any) -> None:
        pytest.fail("the model was opened")

    monkeypatch.setattr("worldsmith.checkpoint.formats.find_model.find_model", never)
    (tmp_path / "file").write_text("keep")
    assert main(["export", str(run_folder), "--format", form, "-o", str(tmp_path / "file" / "a" / "out")]) == 2
    assert f"{tmp_path / 'file' / 'a'} cannot be written: Not a directory" in capsys.readouterr().err
    assert main(["export", str(run_folder), "--format", form, "-o", str(tmp_path), "--force"]) == 2
    assert "is not an export" in capsys.readouterr().err
    assert main(["generate", str(run_folder), "--prompt", "x", "-o", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written: Not a directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folders_that_are_no_checkpoints_are_passed_over(run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    shutil.copytree(run / "checkpoints" / "iter_000000004", run / "checkpoints" / "iter_backup")
    assert main(["export", str(run), "-o", str(tmp_path / "out"), "--format", "native"]) == 0


def test_keeping_adapters_of_a_run_without_any_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--format", "native", "--no-merge", "-o", str(tmp_path / "out")]
    assert main(["export", str(run_folder), *words]) == 2
    assert "--no-merge keeps adapters separate, but" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def lora_run(run_folder: Path) -> Path:
    """The same run with adapters that are not zero on its weights."""
    folder = run_folder.parent / "lora_run"
    tree = read_yaml((run_folder / "config.yaml").read_text(), "config.yaml").data
    tree["job"]["name"], tree["trainer"]["seed"] = "lora", 3
    tree["model"]["config"] |= {"lora_enabled": True, "lora_rank": 2, "lora_alpha": 6}
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_yaml(tree))
    network = from_dict(tree["model"], ModelSpec).config.build(seed=3).network
    weights = {"net." + name: tensor.detach() for name, tensor in native_parameters(network).items()}
    for name, tensor in weights.items():
        if "lora_B" in name:
            tensor.normal_(0, 0.3, generator=torch.Generator().manual_seed(4))
    Checkpointer.Config(init="scratch").build(folder=folder / "checkpoints").save(4, {"model": weights})
    return folder


def test_adapters_are_merged_once(lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On weights that hold these adapters already, merged or beside them, --adapter is refused; on the base it is not,
    and then the videos are those of the run."""
    exports = {"adapter": ["adapter"], "merged": ["native"], "beside": ["native", "--no-merge"], "pipe": ["diffusers"]}
    for name, words in exports.items():
        out = ["-o", str(tmp_path / name), "--dtype", "float32"]
        assert main(["export", str(lora_run), "--format", *words, *out]) == 0
    assert main(["export", str(tmp_path / "merged"), "-o", str(tmp_path / "twice"), "--dtype", "float32"]) == 0
    capsys.readouterr()
    words = ["--prompt", "x", "--steps", "1"]
    for model in (lora_run, *(tmp_path / name for name in ("merged", "beside", "pipe", "twice"))):
        flags = [*words, "--adapter", str(tmp_path / "adapter"), "-o", str(tmp_path / "none")]
        assert main(["generate", str(model), *flags]) == 2
        assert "already contains the adapters of its run; omit --adapter" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    run = ["generate", str(lora_run), *words, "-o"]
    assert main([*run, str(tmp_path / "of_run")]) == 0
    added = ["--weights", "untrained", "--adapter", str(tmp_path / "adapter")]
    assert main([*run, str(tmp_path / "of_base"), *added]) == 0
    assert len({next((tmp_path / n).glob("*/*.mp4")).read_bytes() for n in ("of_run", "of_base")}) == 1
