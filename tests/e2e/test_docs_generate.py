"""The file and the commands of docs/generate.md work as they stand."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path

import command_ranks
import diffusers
import numpy as np
import pytest
import tiny_cogvideox
from generator_run import find_samples
from launch import launch
from tiny_generator import generator_config

from worldsmith.checkpoint.formats.export_folder import ExportSource
from worldsmith.cli.main import main
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.families.cogvideox.architecture import tiny
from worldsmith.families.cogvideox.model import CogVideoXDefaults
from worldsmith.families.cosmos3.model import Cosmos3Defaults, Cosmos3Generator
from worldsmith.families.cosmos3.weights.formats import export_pipeline
from worldsmith.sampling.sample_args import decide
from worldsmith.sampling.sample_files import Layer, SampleEntry
from worldsmith.sampling.sample_settings import Sample, SampleSettings

PAGE = (Path(__file__).parents[2] / "docs/generate.md").read_text(encoding="utf-8")
RANKS = Path(command_ranks.__file__)
DEFAULTS = Cosmos3Defaults(height=64, width=96, num_frames=9, fps=8.0, shift=3.0)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def save_cogvideox(folder: Path) -> None:
    """A pipeline of diffusers."""
    tiny_cogvideox.make_parts(folder)
    sizes = {"in_channels": 4, "out_channels": 4, "text_embed_dim": 32, "max_text_seq_length": 32}
    diffusers.CogVideoXTransformer3DModel(**{**asdict(tiny()), **sizes}).save_pretrained(folder / "transformer")
    CogVideoXDefaults().make_scheduler("ddim").save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text('{"_class_name": "CogVideoXPipeline"}')


def save_robot(folder: Path) -> None:
    """An export of a run on robot episodes, with images of the size of the other samples."""
    robot = {"embodiment": "pusht", "cameras": ["image"], "state": ["values state.position"]}
    statistics = {"min": [0.0, 0.0], "max": [512.0, 512.0]}
    data = {
        "dataset": {
            "robot": {**robot, "normalization": "minmax", "statistics": "statistics.json"},
            "resolution": "96x64", "steps": 8, "modes": {"wam": 1.0, "forward_dynamics": 1.0},
        },
        "fps": 10.0, "columns": {"action": 2, "state.position": 2}, "views": [["image"]], "sizes": {"image": [96, 64]},
        "statistics": statistics,
    }  # fmt: skip
    model = Cosmos3Generator(generator_config(action_gen=True), seed=0, defaults=Cosmos3Defaults(shift=3.0))
    export_pipeline(model, folder, dtype="float32", source=ExportSource(robots={"": data}))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = generator_config()
    export_pipeline(Cosmos3Generator(config, seed=0, defaults=DEFAULTS), tmp_path / "my_pipeline", dtype="float32")
    save_cogvideox(tmp_path / "my_cogvideox")
    save_robot(tmp_path / "my_robot")
    for name, samples in zip(("samples.yaml", "robot.yaml"), blocks("yaml"), strict=True):
        Path(name).write_text(samples)
    for block in blocks("bash"):
        for line in block.strip().splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "worldsmith"
            monkeypatch.setenv("WORLD_SIZE", "1")  # which the plan of a launch changes
            if words[0] != "launch":
                assert main(words) == 0, line
                continue
            assert main([*words, "--dryrun"]) == 0, line
            assert words[1:3] == ["--nproc-per-node", "2"]
            launch(RANKS, 2, words[3:])
    names = ["goes_on/0", "goes_on/1", "left", "still"]
    for folder in ("my_samples", "shared", "halved", "pool"):
        assert [str(made.folder.relative_to(folder)) for made in find_samples(Path(folder))] == names
    assert [made.args["num_frames"] for made in find_samples(Path("shared"))] == [9, 9, 9, 1]
    for name in ("push", "push_left"):
        actions = json.loads(Path("my_rollouts", name, "actions.json").read_text())["actions"]
        assert np.shape(actions) == (8, 2)
    assert np.allclose(actions, [[240 - 10 * step, 300] for step in range(8)])
    (anew,) = find_samples(Path("anew"))
    assert (anew.args["scheduler"], anew.args["strength"], anew.args["model_mode"]) == ("ddim", 0.5, "video2video")


def test_the_example_of_a_negative_prompt_is_a_structured_caption() -> None:
    """It is read as one line of JSON, and the model gets it whole."""
    path = Path(__file__).parents[2] / "examples/negative_prompt.json"
    assert str(path.relative_to(path.parents[1])) in PAGE
    sample = Sample(prompt="x", negative_prompt_file=path.name)
    entry = SampleEntry("x", sample, [Layer("here", sample, path.parent)])
    (args,) = decide(entry, Layer("flag", SampleSettings(), Path()), DEFAULTS, LatentGrid(4, 16, 2), "model")
    assert args.negative_prompt == json.dumps(json.loads(path.read_text(encoding="utf-8")))
    assert "physical_realism" in args.negative_prompt
