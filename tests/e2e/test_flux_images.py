"""Images of a trained FLUX: drawn in its run, made with run, export and a folder of diffusers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_flux
import torch
from diffusers import FluxPipeline
from PIL import Image

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.config.errors import UserError
from worldsmith.sampling.generate_videos import generate_latents
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.tools.export.export import Export
from worldsmith.tools.generate.generate import GenerateVideos
from worldsmith.training.callbacks.samples.draw_videos import DrawVideos
from worldsmith.training.trainer import Trainer

PROMPT = "a clip."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("flux")
    config = tiny_flux.tiny_config(tiny_flux.make_world(folder / "world"), steps=2)
    config.trainer.callbacks["samples"] = DrawVideos.Config(
        enabled=True, every=2, steps=2, guidance=[3.5], prompts=[PROMPT]
    )
    Trainer(config, run_folder=folder / "run").train()
    Export.Config(model=str(folder / "run"), dtype="float32", out=str(folder / "export")).build().run()
    FluxPipeline.from_pretrained(folder / "export").save_pretrained(folder / "theirs")
    return {name: folder / name for name in ("run", "export", "theirs")}


def generate(model: Path, out: Path, **settings: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"prompt": [PROMPT], "num_steps": 2, "height": 64, "width": 96, "device": "cpu", **settings}
    found = GenerateVideos.Config(model=str(model), out=str(out), **given).build().run().facts["samples"]
    args: dict[str, Any] = json.loads((Path(found[0]["file"]).parent / "sample_args.json").read_text())
    return args


def in_float32(folder: Path) -> Any:
    model = find_model(folder)
    for part in (model.config, model.config.tokenizer, model.config.text_encoder):
        part.precision, model.config.text_encoder.max_length = "float32", 16
    return model.load()


def test_run_export_and_a_folder_of_diffusers_make_the_same(models: dict[str, Path], tmp_path: Path) -> None:
    """The folder of diffusers, which tells nothing of training, is sampled as its scheduler says."""
    pictures = {}
    for name, folder in models.items():
        args = generate(folder, tmp_path / name)
        assert (args["model_mode"], args["num_frames"], args["guidance"], args["shift"]) == ("text2image", 1, 3.5, None)
        (pictures[name],) = (tmp_path / name).rglob("vision.jpg")
        assert Image.open(pictures[name]).size == (96, 64)
    assert pictures["run"].read_bytes() == pictures["export"].read_bytes()
    request = GenerationRequest(prompt=PROMPT, height=64, width=64, num_frames=1, fps=8.0)
    latents = [generate_latents(in_float32(models[name]), [request], steps=2)[0] for name in ("export", "theirs")]
    assert torch.equal(*latents)
    published = find_model(models["theirs"]).defaults
    assert (published.height, published.steps, published.max_shift) == (1024, 28, 1.15)


def test_images_are_drawn_while_it_trains(models: dict[str, Path]) -> None:
    drawn = models["run"] / "samples" / "step_000000002"
    assert {file.name for file in drawn.iterdir()} == {"00_live_guidance_3.5.jpg", "sheet.png"}


def test_what_it_does_not_make_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "picture.png")
    cases = {
        "this model does not support text2video; supported: text2image": {"num_frames": 9},
        "this model does not support image2video; supported: text2image": {
            "vision_path": str(tmp_path / "picture.png")
        },
        "dynamic_guidance: its guidance scale is the same at every step": {"dynamic_guidance": "by_step"},
    }
    for words, settings in cases.items():
        with pytest.raises(UserError, match=words):
            generate(models["run"], tmp_path / "out", **settings)
