"""Videos of a trained CogVideoX: drawn in its run, made with run, export and a folder of diffusers, and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_cogvideox
import torch
import toy_runs
from diffusers import CogVideoXPipeline

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.config import WrongValueError
from worldsmith.config.errors import UserError
from worldsmith.demo.measure_adherence import MeasureAdherence
from worldsmith.models.ema import PowerEMA
from worldsmith.sampling.generate_videos import generate_latents
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.sampling.write_media import write_jpeg, write_mp4
from worldsmith.tools.evaluate.evaluate_videos import EvaluateVideos
from worldsmith.tools.export.export import Export
from worldsmith.tools.generate.generate import GenerateVideos
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.trainer import Trainer

PROMPT = "a clip."
SHAPES = {
    "prompt": "a red square.", "colour": "red", "shape": "square", "direction": "left", "held_out": False, "seed": 1,
    "height": 64, "width": 64, "num_frames": 9, "fps": 8.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("cogvideox")
    world = tiny_cogvideox.make_world(folder / "world")
    config = tiny_cogvideox.tiny_config(world, "cogvideox_5b_tiny", steps=2)
    config.trainer.callbacks["samples"] = DrawVideos.Config(
        enabled=True, every=2, steps=2, guidance=[3.0], weights=["ema"], prompts=[PROMPT]
    )
    Trainer(config, run_folder=folder / "run").train()
    Export.Config(model=str(folder / "run"), dtype="float32", out=str(folder / "export")).build().run()
    CogVideoXPipeline.from_pretrained(folder / "export").save_pretrained(folder / "theirs")
    return {name: folder / name for name in ("run", "export", "theirs")}


def generate(model: Path, out: Path, **settings: Any) -> list[dict[str, Any]]:
    given = {"prompt": [PROMPT], "num_steps": 2, **settings}
    result = GenerateVideos.Config(model=str(model), out=str(out), device="cpu", **given).build().run()
    return [json.loads((Path(one["file"]).parent / "sample_args.json").read_text()) for one in result.facts["samples"]]


def in_float32(folder: Path) -> Any:
    model = find_model(folder)
    for part in (model.config, model.config.tokenizer, model.config.text_encoder):
        part.precision = "float32"
    return model.load()


def test_run_export_and_a_folder_of_diffusers_make_the_same(models: dict[str, Path], tmp_path: Path) -> None:
    """The folder of diffusers, which tells nothing of training, is sampled as its scheduler says, in bfloat16."""
    found = {name: generate(folder, tmp_path / name)[0] for name, folder in models.items()}
    for name, args in found.items():
        assert (args["num_frames"], args["height"], args["fps"], args["shift"]) == (9, 64, 8.0, None), name
        assert (args["scheduler"], args["dynamic_guidance"], args["guidance"]) == ("dpm", "by_timestep", 6.0), name
    videos = [next((tmp_path / name).rglob("vision.mp4")).read_bytes() for name in ("run", "export")]
    assert videos[0] == videos[1]
    request = GenerationRequest(prompt=PROMPT, height=64, width=64, num_frames=9, fps=8.0)
    latents = [generate_latents(in_float32(models[name]), [request], steps=2)[0] for name in ("export", "theirs")]
    assert torch.equal(*latents)


def test_offloaded_weights_change_no_sample_and_no_export(tmp_path: Path) -> None:
    """A run with 8-bit optimizer state and EMA weights, from which samples and export are made."""
    world, files = tiny_cogvideox.make_world(tmp_path / "world"), []
    for offload in ("none", "all"):
        config = tiny_cogvideox.tiny_config(world, "cogvideox_5b_tiny", steps=3)
        config.model.config.precision, config.model.config.ema = "bfloat16", PowerEMA.Config(max_decay=0.5)
        config.model.config.parallelism.offload, config.optimizer.name = offload, "AdamW8bit"
        config.trainer.callbacks["samples"] = DrawVideos.Config(every=2, steps=2, guidance=[3.0], prompts=[PROMPT])
        folder = tmp_path / offload
        Trainer(config, run_folder=folder / "run").train()
        Export.Config(model=str(folder / "run"), dtype="float32", out=str(folder / "export")).build().run()
        found = [*(folder / "run").rglob("*.mp4"), *(folder / "export").rglob("*.safetensors")]
        files.append({str(path.relative_to(folder)): path.read_bytes() for path in found})
    assert files[0] == files[1]
    assert len(files[0]) == 5
    assert toy_runs.read_losses(tmp_path / "none/run") == toy_runs.read_losses(tmp_path / "all/run")


def test_settings_that_the_family_has_not_are_refused_with_the_reason(models: dict[str, Path], tmp_path: Path) -> None:
    write_mp4(tmp_path / "clip.mp4", torch.zeros(3, 9, 64, 64, dtype=torch.uint8), 8)
    cases = {
        "shift: the noise schedule of training": {"shift": 3.0},
        "scheduler: expected ddim or dpm, found unipc": {"scheduler": "unipc"},
        "strength requires a vision_path of a video": {"strength": 0.5},
        "this model does not support image2video; supported: text2image": {
            "vision_path": str(tmp_path / "picture.png")
        },
        "condition_video_keep: video-to-video regenerates a video": {
            "vision_path": "clip.mp4",
            "condition_video_keep": "last",
        },
    }
    for words, settings in cases.items():
        with pytest.raises(UserError, match=words):
            generate(models["run"], tmp_path / "out", **settings)


def test_a_video_is_made_anew_and_frames_are_rounded_up(models: dict[str, Path], tmp_path: Path) -> None:
    """Of its own frames as many as asked for; 5 frames would not come out of the decoder as 5."""
    write_mp4(tmp_path / "clip.mp4", torch.full((3, 12, 64, 64), 99, dtype=torch.uint8), 8)
    args = generate(models["run"], tmp_path / "out", vision_path=str(tmp_path / "clip.mp4"), num_frames=5)[0]
    assert (args["model_mode"], args["strength"], args["num_frames"]) == ("video2video", 0.8, 9)
    assert args["condition_frame_indexes_vision"] == []
    assert "rounded up from 5 to complete latent frames" in args["sources"]["num_frames"]


def test_videos_are_drawn_while_it_trains_and_measured_afterwards(models: dict[str, Path], tmp_path: Path) -> None:
    drawn = models["run"] / "samples" / "step_000000002"
    assert {file.name for file in drawn.iterdir()} == {"00_ema_guidance_3.mp4", "sheet.png"}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(SHAPES) + "\n")
    common: dict[str, Any] = {"model": str(models["run"]), "steps": 2, "device": "cpu"}
    prompts = str(tmp_path / "prompts.jsonl")
    result = MeasureAdherence.Config(**common, prompts=prompts, out=str(tmp_path / "adherence")).build().run()
    assert result.lines[-1].startswith("adherence 0.00 over 1 prompts")
    (tmp_path / "samples.jsonl").write_text(json.dumps({"prompt": PROMPT, "name": "one"}) + "\n")
    files = [str(tmp_path / "samples.jsonl")]
    measured = EvaluateVideos.Config(**common, input_files=files, out=str(tmp_path / "measured")).build().run()
    assert "one" in json.dumps(measured.facts["samples"]["trained"])


def test_an_image_goes_on_in_runs_and_commands(tmp_path: Path) -> None:
    """Drawn with the first frames of the data; a prompt alone is refused wherever it is given."""
    world = tiny_cogvideox.make_world(tmp_path / "world")
    config = tiny_cogvideox.tiny_config(world, "cogvideox_5b_i2v_tiny", steps=1)
    config.trainer.callbacks["samples"] = DrawVideos.Config(
        enabled=True, every=1, steps=2, guidance=[3.0], weights=["live"], samples=2
    )
    Trainer(config, run_folder=tmp_path / "run").train()
    drawn = tmp_path / "run" / "samples" / "step_000000001"
    assert len(list(drawn.glob("*.mp4"))) == 2
    config.trainer.callbacks["samples"].prompts = [PROMPT]
    with pytest.raises(WrongValueError, match="this model generates image2video"):
        config.check()
    write_jpeg(tmp_path / "picture.jpg", torch.full((3, 80, 64), 99, dtype=torch.uint8), 95)
    args = generate(tmp_path / "run", tmp_path / "out", vision_path=str(tmp_path / "picture.jpg"))[0]
    assert (args["model_mode"], args["condition_frame_indexes_vision"], args["strength"]) == ("image2video", [0], None)
    with pytest.raises(UserError, match="this model does not support text2video; supported: image2video"):
        generate(tmp_path / "run", tmp_path / "out")
    (tmp_path / "prompts.jsonl").write_text(json.dumps(SHAPES) + "\n")
    prompts, asked = str(tmp_path / "prompts.jsonl"), str(tmp_path / "adherence")
    with pytest.raises(UserError, match="generates image2video, but these prompts need text-to-video"):
        MeasureAdherence.Config(model=str(tmp_path / "run"), prompts=prompts, out=asked, device="cpu").build().run()
