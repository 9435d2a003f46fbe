"""SAT's model file and inference.yaml make the videos that a pipeline of the same weights makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sat_network
import tiny_cogvideox
import torch
import yaml
from diffusers import CogVideoXPipeline
from sat_files import INFERENCE, model_file

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.dialects.sat.keys import SHIFTS
from worldsmith.tools.export.convert import Convert
from worldsmith.tools.export.export import Export
from worldsmith.tools.generate.generate import GenerateVideos, model_of_stack
from worldsmith.training.trainer import Trainer

SIZES = [
    "args.sampling_num_frames=3",
    "args.sampling_image_size=[64,64]",
    "args.sampling_fps=8",
    "args.latent_channels=4",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with its pipeline of diffusers, its folder of SAT, and the files of SAT."""
    folder = tmp_path_factory.mktemp("sat")
    parts = tiny_cogvideox.make_world(folder / "world")
    config = tiny_cogvideox.tiny_config(parts, "cogvideox_5b_tiny", steps=2)
    Trainer(config, run_folder=folder / "run").train()
    Export.Config(model=str(folder / "run"), dtype="float32", out=str(folder / "export")).build().run()
    CogVideoXPipeline.from_pretrained(folder / "export").save_pretrained(folder / "theirs")
    Convert.Config(source=str(folder / "export"), out=str(folder / "sat"), to="sat").build().run()
    (folder / "model.yaml").write_text(yaml.safe_dump(model_file("5b", lora=False)))
    (folder / "inference.yaml").write_text(INFERENCE.replace("prompts.txt", str(folder / "prompts.txt")))
    (folder / "prompts.txt").write_text("a clip.\n")
    return folder


def stack(world: Path, *more: str) -> list[str]:
    network = find_model(world / "theirs").config.network
    params, modules = "model.network_config.params.", "model.network_config.params.modules."
    text = "model.conditioner_config.params.emb_models.0.params."
    head = network.attention_head_dim
    sizes = {
        **{f"{params}num_layers": network.num_layers, f"{params}hidden_size": head * network.num_attention_heads},
        f"{params}num_attention_heads": network.num_attention_heads,
        **{f"{params}in_channels": 4, f"{params}out_channels": 4, f"{params}time_embed_dim": network.time_embed_dim},
        **{f"{params}num_frames": network.sample_frames, f"{params}latent_height": 8, f"{params}latent_width": 8},
        f"{modules}patch_embed_config.params.text_hidden_size": 32,
        f"{modules}pos_embed_config.params.text_length": network.max_text_seq_length,
        f"{modules}pos_embed_config.params.hidden_size_head": head,
        "model.first_stage_config.params.encoder_config.params.z_channels": 4,
        "model.first_stage_config.params.ckpt_path": world / "theirs",
        **{f"{text}max_length": network.max_text_seq_length, f"{text}model_dir": world / "world/pipeline"},
        **{"args.load": world / "sat", "args.bf16": "false", "args.output_dir": world / "videos"},
    }
    words = [f"{key}={value}" for key, value in sizes.items()]
    return [str(world / "model.yaml"), str(world / "inference.yaml"), *words, *SIZES, *more]


def test_the_model_of_a_stack_has_the_weights_and_answers_of_the_pipeline(world: Path) -> None:
    ours, theirs = model_of_stack(stack(world)), find_model(world / "theirs")
    assert (ours.defaults.scheduler, ours.defaults.shift_scale) == ("dpm", theirs.defaults.shift_scale)
    assert (ours.defaults.steps, ours.defaults.dynamic_guidance) == (50, "by_timestep")
    sampler = "model.sampler_config.params."
    words = [f"{sampler}num_steps=7", *(f"{sampler}guider_config.params.{word}" for word in ("num_steps=7", "scale=3"))]
    words += [f"{shift}=2.0" for shift in SHIFTS]
    said = model_of_stack(stack(world, *words)).defaults
    assert (said.steps, said.guidance, said.shift_scale) == (7, 3, 2)
    mine, other = ours.load().network.state_dict(), theirs.load(full_precision=True).network.state_dict()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("variant", ["2b", "5b", "5b_i2v", "1.5", "1.5_i2v"])
@torch.no_grad()
def test_the_model_of_a_stack_computes_what_sat_computes(world: Path, tmp_path: Path, variant: str, lora: int) -> None:
    """Of every published kind, and with adapters at lora_alpha / r."""
    state = sat_network.sat_state(variant, lora=lora)
    load = sat_network.save_sat(tmp_path / "sat", state)
    (load / "config.json").write_text(json.dumps({**sat_network.TINY, **sat_network.VARIANTS[variant]}))
    name = variant.replace("1.5", "1.5_5b")
    model = tmp_path / "model.yaml"
    model.write_text(yaml.safe_dump(model_file(name, lora=bool(lora) and "1.5" not in name)))
    params = "model.network_config.params."
    kind = sat_network.VARIANTS[variant]
    adapters = {"target": "sat.model.finetune.lora2.LoraMixin", "params": {"r": lora, "lora_alpha": 2}}
    words = [
        *(f"{params}in_channels={kind.get('in_channels', 4)}", f"{params}num_frames={kind.get('sample_frames', 9)}"),
        *([f"{params}ofs_embed_dim=8"] if "ofs_embed_dim" in kind else []),
        *(["args.image2video=true", "~args.sampling_image_size"] if "i2v" in variant else []),
        *([f"{params}modules.lora_config={json.dumps(adapters)}"] if lora else []),
        *([f"~{params}modules.pos_embed_config.params.hidden_size_head"] if variant == "2b" else []),
        *([f"{params}latent_height=8", f"{params}latent_width=8"]),
        *("args.sampling_num_frames=4" if "1.5" in variant else "args.sampling_num_frames=3", f"args.load={load}"),
    ]
    network = model_of_stack([str(model), *stack(world)[1:], *words]).load().network
    video, text, steps = sat_network.draw_inputs(variant)
    angles = sat_network.rotary_angles(2 if "1.5" in variant else 3)
    rotary = None if variant == "2b" else (angles.cos(), angles.sin())
    ofs = torch.full((1,), 2.0) if variant == "1.5_i2v" else None
    told = network(video, text, steps, ofs=ofs, image_rotary_emb=rotary).sample
    wanted = sat_network.sat_answer(sat_network.merged(state, 2 / 4), video, text, steps, eps=1e-5)
    torch.testing.assert_close(told, wanted, atol=1e-5, rtol=1e-5)


def test_the_command_makes_the_same_video_as_with_the_export(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--num-steps", "2", "--device", "cpu"]
    assert main(["generate", "--spec", *stack(world), *given, "--dryrun"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "9 frames of 64×64, 8 fps, seed 1234: a clip." in said
    assert "args.sampling_num_frames" in said
    assert main(["generate", "--spec", *stack(world), *given]) == 0, capsys.readouterr().err
    (made,) = (world / "videos").glob("*/vision.mp4")
    facts = json.loads((made.parent / "sample_args.json").read_text())
    names = ("height", "width", "num_frames", "fps", "seed", "num_steps", "guidance", "scheduler", "dynamic_guidance")
    same = {name: facts[name]["value"] if isinstance(facts[name], dict) else facts[name] for name in names}
    out = world / "by_export"
    GenerateVideos.Config(
        model=str(world / "export"), prompt=["a clip."], out=str(out), device="cpu", **same
    ).build().run()
    (other,) = out.glob("*/vision.mp4")
    assert made.read_bytes() == other.read_bytes()


def test_adapters_must_be_those_of_the_file(world: Path) -> None:
    lora = "model.network_config.params.modules.lora_config="
    words = f"{lora}{{target: sat.model.finetune.lora2.LoraMixin, params: {{r: 4}}}}"
    with pytest.raises(UserError, match="expected adapters of rank 4, as in lora_config, found none"):
        model_of_stack(stack(world, words))
