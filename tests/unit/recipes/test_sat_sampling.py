"""SAT's inference.yaml over a model's file: what becomes of its keys in `worldsmith generate`."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sat_files import FILLED, write_sampling_stack, write_stack

from worldsmith.cli.action_command import choose_action
from worldsmith.cli.main import main
from worldsmith.config.errors import ConfigError
from worldsmith.dialects.sat.keys import KEYS
from worldsmith.dialects.sat.sampling import RULES, translate_sampling
from worldsmith.dialects.translation import SpecTranslation

GUIDE = (Path(__file__).parents[3] / "docs/from_cogvideo.md").read_text()
SIZE = "args.sampling_image_size"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(*words: str, name: str = "1.5_5b", lora: bool = False) -> tuple[SpecTranslation, Any]:
    translation, model = translate_sampling(write_sampling_stack(name, lora=lora), [*FILLED, *words])
    return translation, model.tree


def check_words(words: list[str]) -> dict[str, Any]:
    """What a command's words say of the folder, as the front door reads them."""
    _, _, found = choose_action(words[0], words[1:])
    assert found.spec is not None
    return {"out": found.spec.data["out"]}


def mistakes(*words: str, name: str = "1.5_5b") -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        read(*words, name=name)
    return {problem.path: f"{problem.message} -> {problem.hint}" for problem in refused.value.problems}


def test_every_key_has_one_row() -> None:
    assert Counter(key for rule in RULES for key in rule.keys) == Counter(KEYS.keys())


STACKS = [
    # file, adapters, words, height, width, frames, rate, shift; 13 latent frames of 1.0 are 49, 22 of 1.5 are 81
    ("2b", False, ("args.sampling_num_frames=13", f"{SIZE}=[480,720]", "args.sampling_fps=8"), 480, 720, 49, 8, 3.0),
    ("2b", True, ("args.sampling_num_frames=9", f"{SIZE}=[480,720]", "args.sampling_fps=8"), 480, 720, 33, 8, 3.0),
    ("5b", False, ("args.sampling_num_frames=11", f"{SIZE}=[480,720]", "args.sampling_fps=8"), 480, 720, 41, 8, 1.0),
    ("5b", True, ("args.sampling_num_frames=13", f"{SIZE}=[480,720]", "args.sampling_fps=8"), 480, 720, 49, 8, 1.0),
    ("5b_i2v", False, ("args.sampling_num_frames=13", "args.image2video=true", f"~{SIZE}"), 480, 720, 49, 16, 1.0),
    ("5b_i2v", True, ("args.sampling_num_frames=13", "args.image2video=true"), 480, 720, 49, 16, 1.0),
    ("1.5_5b", False, (), 768, 1360, 81, 16, 1.0),
    ("1.5_5b", False, ("args.sampling_num_frames=42",), 768, 1360, 161, 16, 1.0),
    ("1.5_5b_i2v", False, ("args.image2video=true", f"~{SIZE}"), 768, 1360, 81, 16, 1.0),
]


@pytest.mark.parametrize("row", STACKS, ids=lambda row: f"{row[0]}{'_lora' if row[1] else ''}-{len(row[2])}")
def test_the_published_stacks_are_requests(row: tuple[Any, ...]) -> None:
    name, lora, words, height, width, frames, rate, shift = row
    t, tree = read(*words, name=name, lora=lora)
    expected = {
        **{"height": height, "width": width, "num_frames": frames, "fps": rate, "num_outputs": 1, "seed": 1234},
        **{"input_files": ["prompts.txt"], "out": "outputs", "model": "model.yaml, inference.yaml"},
    }
    assert {key: t.data[key] for key in expected} == expected
    model = tree.model.config
    assert (model.precision, model.lora_enabled, tree.objective.shift_scale) == ("bfloat16", lora, shift)
    assert (model.sampling.scheduler, model.sampling.steps, model.sampling.guidance) == ("dpm", 50, 6)
    assert model.sampling.dynamic_guidance == "by_timestep"
    assert model.text_encoder.dropped_captions == "zeros"
    assert tree.checkpoint.load_path == "zai-org/CogVideoX-2b"
    assert any("image's aspect ratio is kept" in text for text in t.get_warnings()) is name.endswith("i2v")


@pytest.mark.parametrize(
    ("words", "key", "told"),
    [
        (["args.sampling_num_frames=21"], "args.sampling_num_frames", "expected 22 or 42, found 21"),
        ([f"{SIZE}=[770,1360]"], SIZE, "multiples of 16, found [770, 1360]"),
        (["args.image2video=true"], "args.image2video", "trained without image conditioning"),
        (["args.only_save_latents=true"], "args.only_save_latents", "latents are decoded"),
        (["args.latent_channels=32"], "args.latent_channels", "the VAE has 16 channels, found 32"),
        (["args.fp16=true"], "args.fp16", "bf16 and fp16 are both enabled"),
        (["args.input_type=json"], "args.input_type", "expected txt or cli, found 'json'"),
        (["args.load=nowhere/x/y"], "args.load", "'nowhere/x/y' does not exist"),
        (["args.sampling_fps=0.0"], "args.sampling_fps", "expected a frame rate (fps), found 0"),
        (["args.samplng_fps=8"], "args.samplng_fps", "did you mean 'args.sampling_fps'"),
        (
            ["model.sampler_config.params.sdedit=true"],
            "model.sampler_config.params.sdedit",
            "sampling starts from noise",
        ),
    ],
)
def test_what_cannot_be_had_is_a_mistake_with_the_way_out(words: list[str], key: str, told: str) -> None:
    found = mistakes(*words)
    assert list(found) == [key]
    assert told in found[key]


def test_a_model_of_images_needs_them() -> None:
    (text,) = mistakes("args.sampling_num_frames=13", name="5b_i2v").values()
    assert "args.image2video=true ~args.sampling_image_size, and lines such as prompt@@image.png" in text


def test_defaults_are_those_of_the_command_line_there() -> None:
    words = ["args.input_type=cli", *(f"~args.{name}" for name in ("batch_size", "sampling_fps", "output_dir", "bf16"))]
    t, tree = read(*words)
    assert (t.data["num_outputs"], t.data["fps"], t.data["out"]) == (4, 8, "samples")
    assert "input_files" not in t.data
    assert tree.model.config.precision == "float32"
    assert any("use --prompt TEXT" in text for text in t.get_warnings())


def test_the_commands_of_the_guide_are_requests() -> None:
    part = GUIDE.partition("## Making videos")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```bash\n(.*?)^```", part, flags=re.M | re.S)
    lines = [shlex.split(line)[1:] for line in block.splitlines()]
    assert len(lines) == 3
    for command, spec, model, _, *words in lines:
        assert (command, spec) == ("generate", "--spec")
        files = write_sampling_stack(model.removeprefix("configs/cogvideox").removesuffix(".yaml"))
        words = [word for word in words if not word.startswith("args.load")]
        assert check_words([command, spec, *files, *words, *FILLED]) == {"out": "outputs"}


def test_a_training_names_the_command_and_lacks_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    files = write_sampling_stack()
    for words in (["train", "--base", *files], ["config", "convert", *files, "--to", "yaml"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "1 mistake" in said
        assert "-> worldsmith generate --spec model.yaml inference.yaml" in said


def test_a_stack_without_its_data_is_no_crash(capsys: pytest.CaptureFixture[str]) -> None:
    """A run's file that only has `args` and `deepspeed`, as when the data are in a third file."""
    model, _ = write_stack()
    Path("run.yaml").write_text("args: {mode: finetune}\ndeepspeed: {}\n")
    assert main(["config", "check", "--base", model, "run.yaml"]) == 2
    said = capsys.readouterr().err
    assert "data: the files have no such section" in said
    assert "args.train_data: the value is missing" in said


def test_other_files_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("samples.yaml").write_text("prompt: a clip\n")
    assert main(["generate", "--spec", "samples.yaml", "--dryrun"]) == 2
    assert "expected config files of CogVideo's SAT" in capsys.readouterr().err
