"""Videos of a trained Wan: drawn in its run, and made with run, export and a folder of diffusers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_wan
import torch
from diffusers import WanPipeline
from tiny_wan import I2V, TI2V

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.config.errors import UserError
from worldsmith.sampling.generate_videos import generate_latents
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.sampling.write_media import write_jpeg
from worldsmith.tools.export.export import Export
from worldsmith.tools.generate.generate import GenerateVideos
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.trainer import Trainer

PROMPT = "a clip."


def generate(model: Path, out: Path, **settings: Any) -> dict[str, Any]:
    given = {"prompt": [PROMPT], "num_steps": 2, **settings}
    result = GenerateVideos.Config(model=str(model), out=str(out), device="cpu", **given).build().run()
    args: dict[str, Any] = json.loads(
        (Path(result.facts["samples"][0]["file"]).parent / "sample_args.json").read_text()
    )
    return args


def in_float32(folder: Path) -> Any:
    model = find_model(folder)
    for part in (model.config, model.config.tokenizer, model.config.text_encoder):
        part.precision = "float32"
    model.config.text_encoder.max_length = 16  # a folder of diffusers does not say it
    return model.load()


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("picture") / "picture.jpg"
    write_jpeg(file, torch.full((3, 80, 64), 99, dtype=torch.uint8), 95)
    return str(file)


@pytest.mark.slow
def test_run_export_and_a_folder_of_diffusers_make_the_same(tmp_path: Path, picture: str) -> None:
    world = tiny_wan.make_world(tmp_path / "world")
    config = tiny_wan.tiny_config(world, TI2V, steps=2)
    config.trainer.callbacks["samples"] = DrawVideos.Config(
        enabled=True, every=2, steps=2, guidance=[3.0], weights=["live"], prompts=[PROMPT]
    )
    models = {name: tmp_path / name for name in ("run", "export", "theirs")}
    Trainer(config, run_folder=models["run"]).train()
    drawn = {file.name for file in (models["run"] / "samples" / "step_000000002").iterdir()}
    assert drawn == {"00_live_guidance_3.mp4", "sheet.png"}
    Export.Config(model=str(models["run"]), dtype="float32", out=str(models["export"])).build().run()
    WanPipeline.from_pretrained(models["export"]).save_pretrained(models["theirs"])
    videos = []
    for name in ("run", "export"):
        args = generate(models[name], tmp_path / f"out_{name}")
        assert (args["num_frames"], args["height"], args["fps"], args["shift"], args["guidance"]) == (9, 64, 8, 1, 5)
        videos.append(next((tmp_path / f"out_{name}").rglob("vision.mp4")).read_bytes())
    assert videos[0] == videos[1]
    request = GenerationRequest(prompt=PROMPT, height=64, width=64, num_frames=9, fps=8.0)
    latents = [generate_latents(in_float32(models[name]), [request], steps=2)[0] for name in ("export", "theirs")]
    assert torch.equal(*latents)
    args = generate(models["run"], tmp_path / "image", vision_path=picture)
    assert (args["model_mode"], args["condition_frame_indexes_vision"]) == ("image2video", [0])
    with pytest.raises(UserError, match="dynamic_guidance: each expert has a constant guidance scale"):
        generate(models["run"], tmp_path / "image", dynamic_guidance="by_step")


def test_two_experts_make_a_video_of_an_image(tmp_path: Path, picture: str) -> None:
    world = tiny_wan.make_world(tmp_path / "world")
    config: Any = tiny_wan.tiny_config(world, I2V, steps=1)
    for where, seed in (("transformer", 1), ("transformer_2", 2)):
        tiny_wan.make_expert(world / I2V, config, where, seed)
    config.model.config.expert, config.checkpoint.init = "low_noise", "pretrained"
    Trainer(config, run_folder=tmp_path / "run").train()
    args = generate(tmp_path / "run", tmp_path / "out", vision_path=picture)
    assert (args["model_mode"], args["num_frames"]) == ("image2video", 9)
    with pytest.raises(UserError, match="this model does not support text2video; supported: image2video"):
        generate(tmp_path / "run", tmp_path / "none")
