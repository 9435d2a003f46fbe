"""A LoRA run from start to export: one switch, adapters-only checkpoints, exact resume, adapter and merged exports."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import tiny_runs
import torch
from diffusers import Cosmos3OmniTransformer
from generator_run import find_samples
from peft import PeftModel

from worldsmith.checkpoint.formats.find_model import find_model, load_model
from worldsmith.cli.main import main
from worldsmith.models.lora import adapter_state
from worldsmith.models.parameter_names import native_parameters
from worldsmith.training.trainer import Trainer

STEPS = 4


def base_config(world: Path) -> Trainer.Config:
    config = tiny_runs.tiny_config(world, steps=2, save_iter=2, layers=2)
    config.scheduler.warm_up_steps = [0]
    return config


def lora_config(folder: Path, *, steps: int = STEPS) -> Trainer.Config:
    """What a user adds to a full fine-tune: the switch. The rest keeps checkpoints small."""
    config = tiny_runs.tiny_config(folder / "world", steps=steps, save_iter=2, layers=2)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha, model.lora_dropout = True, 4, 6, 0.2
    model.ema.trainable_only = True
    config.optimizer.lr, config.scheduler.cycle_lengths, config.scheduler.warm_up_steps = 3e-2, [STEPS], [0]
    config.checkpoint.init, config.checkpoint.load_path = "pretrained", str(folder / "base")
    config.checkpoint.keys_to_skip_loading = ["net_ema."]
    config.checkpoint.save_weights = "trained"
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base`, a full fine-tune; `whole`, a LoRA run from it; `resumed`, the same in two parts."""
    folder = tmp_path_factory.mktemp("lora")
    Trainer(base_config(tiny_runs.make_world(folder / "world")), run_folder=folder / "base").train()
    Trainer(lora_config(folder), run_folder=folder / "whole").train()
    Trainer(lora_config(folder, steps=2), run_folder=folder / "resumed").train()
    Trainer(lora_config(folder), run_folder=folder / "resumed", resume_changed=True).train()
    return folder


def test_checkpoints_hold_the_adapters_and_their_average_only(folder: Path) -> None:
    tensors = tiny_runs.read_checkpoint(folder / "whole/checkpoints/iter_000000004")
    weights = sorted(name.removeprefix("model/") for name in tensors if name.startswith("model/"))
    layer, leaves = "language_model.model.layers", ("q", "k", "v", "o")
    assert weights == sorted(
        f"{net}.{layer}.{index}.self_attn.{leaf}_proj_moe_gen.lora_{side}.weight"
        for net in ("net", "net_ema")
        for index in range(2)
        for leaf in leaves
        for side in "AB"
    )


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(folder: Path) -> None:
    assert tiny_runs.read_losses(folder / "resumed") == tiny_runs.read_losses(folder / "whole")
    expected, found = (
        tiny_runs.read_checkpoint(folder / name / "checkpoints/iter_000000004") for name in ("whole", "resumed")
    )
    assert not [name for name in expected if not torch.equal(expected[name], found[name])]


def test_everything_but_the_adapters_is_the_base_to_the_bit(folder: Path) -> None:
    base = native_parameters(find_model(folder / "base", weights="live").load(full_precision=True).network)
    trained = native_parameters(
        find_model(folder / "whole", weights="live").load(full_precision=True, keep_adapters=True).network
    )
    plain = {name: tensor for name, tensor in trained.items() if "lora_" not in name}
    assert plain.keys() == base.keys()
    assert not [name for name in base if not torch.equal(base[name], plain[name])]
    assert sum("lora_" in name for name in trained) == 16


@pytest.mark.parametrize("weights", ["ema", "live"])
def test_the_two_exports_agree_in_diffusers_and_differ_from_the_base(folder: Path, weights: str) -> None:
    """PEFT's adapter on the exported base == the exported merged pipeline, weight for weight and in the output."""
    for run, form, out in (("base", "diffusers", "base"), ("whole", "diffusers", "merged"), ("whole", "adapter", "a")):
        chosen = weights if run == "whole" else "live"
        words = ["export", str(folder / run), "-o", str(folder / f"{out}_{weights}"), "--format", form]
        words += ["--shift", "3"] if form == "diffusers" else []
        assert main([*words, "--dtype", "float32", "--weights", chosen]) == 0
    base, merged = (
        Cosmos3OmniTransformer.from_pretrained(folder / f"{name}_{weights}", subfolder="transformer")
        for name in ("base", "merged")
    )
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    adapted = PeftModel.from_pretrained(base, folder / f"a_{weights}").merge_and_unload().state_dict()
    changed = []
    for name, tensor in merged.state_dict().items():
        assert (tensor - adapted[name]).abs().max() <= 1e-6, name
        changed += [name] if not torch.equal(tensor, before[name]) else []
    assert len(changed) == 8
    assert all(".add_" in name or ".to_add_out." in name for name in changed)


def test_the_adapter_folder_says_where_it_comes_from(folder: Path) -> None:
    assert main(["export", str(folder / "whole"), "-o", str(folder / "adapter"), "--format", "adapter"]) == 0
    manifest = json.loads((folder / "adapter/worldsmith.json").read_text())
    assert manifest["source"] == {"run": "tests/tiny/run", "iteration": STEPS, "weights": "ema", "merged": False}
    assert (manifest["rank"], manifest["alpha"], manifest["layers"]) == (4, 6, 8)
    assert manifest["base_model"] == str(folder / "base")
    card = (folder / "adapter/README.md").read_text()
    assert "rank 4, alpha 6, 8 layers" in card
    assert str(folder / "base") in card
    assert main(["export", str(folder / "whole"), "-o", str(folder / "adapter"), "--format", "adapter"]) == 0


def test_sampling_from_the_run_uses_the_merged_weights(folder: Path) -> None:
    """The network for sampling has no adapters, and other weights than the base."""
    merged, base = (load_model(folder / name).network for name in ("whole", "base"))
    assert not adapter_state(merged)
    changed = [n for n, p in merged.named_parameters() if not torch.equal(p, dict(base.named_parameters())[n])]
    assert len([name for name in changed if "proj_moe_gen" in name]) == 8


def test_generating_with_the_base_and_the_adapter_gives_the_videos_of_the_run(folder: Path) -> None:
    words = ["--prompt", "a clip", "--steps", "2", "--num-frames", "5", "--shift", "3", "--device", "cpu"]
    assert (
        main(["export", str(folder / "whole"), "-o", str(folder / "b"), "--format", "adapter", "--dtype", "float32"])
        == 0
    )
    base = ["generate", str(folder / "base"), "--weights", "live", *words]
    assert main(["generate", str(folder / "whole"), *words, "-o", str(folder / "of_run")]) == 0
    assert main([*base, "--adapter", str(folder / "b"), "-o", str(folder / "of_adapter")]) == 0
    assert main([*base, "-o", str(folder / "of_base")]) == 0
    assert main(["generate", str(folder / "b"), *words, "-o", str(folder / "alone")]) == 0  # which names its base
    names = ("of_run", "of_adapter", "of_base", "alone")
    videos = {name: next((folder / name).glob("*/*.mp4")).read_bytes() for name in names}
    assert videos["of_run"] == videos["of_adapter"] == videos["alone"]
    assert videos["of_run"] != videos["of_base"]
    for name in ("of_adapter", "alone"):
        (made,) = find_samples(folder / name)
        assert made.args["model"]["adapter"] == str(folder / "b")
    assert main([*base, "--adapter", str(folder / "base"), "-o", str(folder / "none")]) == 2


def test_a_base_that_has_moved_is_named_on_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it the error says which flag helps; adapters alone need none; other weights than the base are refused."""
    run, native = ["export", str(folder / "whole")], ["--format", "native", "-o"]
    assert main([*run, *native, str(tmp_path / "before")]) == 0
    assert main([*run, "--base", str(tmp_path / "before"), *native, str(tmp_path / "other")]) == 2
    assert "the frozen ones have changed" in capsys.readouterr().err
    prompts = tmp_path / "prompts.jsonl"
    asked = {"prompt": "x", "seed": 1, "colour": "red", "shape": "square", "direction": "left", "held_out": False}
    prompts.write_text(json.dumps({**asked, "height": 64, "width": 64, "num_frames": 5, "fps": 8.0}))
    sampling = [str(folder / "whole"), "--shift", "3", "--steps", "2"]
    (folder / "base").rename(folder / "moved")
    try:
        assert main([*run, "--format", "adapter", "-o", str(tmp_path / "adapter")]) == 0
        for words in (
            [*run, *native],
            ["generate", *sampling, "--prompt", "x", "-o"],
            ["evaluate", *sampling, "--prompts", str(prompts), "-o"],
        ):
            words += [str(tmp_path / words[0])]
            assert main(words) == 2
            assert "--base DIR" in capsys.readouterr().err
            assert main([*words, "--base", str(folder / "moved")]) == 0
        words = [*run, "--base", str(folder / "moved"), "--format", "adapter"]
        assert main([*words, "-o", str(tmp_path / "none")]) == 2
        assert "--base has no effect" in capsys.readouterr().err
    finally:
        (folder / "moved").rename(folder / "base")
    digests = [
        json.loads((tmp_path / n / "worldsmith.json").read_text())["weights_sha256"] for n in ("before", "export")
    ]
    assert digests[0] == digests[1]


def test_a_base_without_adapters_needs_no_rule_and_is_reported(folder: Path, tmp_path: Path) -> None:
    Trainer(lora_config(folder), run_folder=tmp_path / "run")
    report = json.loads((tmp_path / "run/load_report.json").read_text())
    assert len([name for name in report["initialised"] if name.startswith("net.")]) == 16
    assert not report["missing"]


def test_a_filter_for_other_parameters_is_refused_before_a_step(folder: Path, tmp_path: Path) -> None:
    config = lora_config(folder)
    config.optimizer.keys_to_select = ["lora_", "vae2llm"]
    with pytest.raises(ValueError, match="selects none of the adapters, and only adapters are trained"):
        Trainer(config, run_folder=tmp_path / "run")
    for patterns in (["lora_"], ["lora_A"]):
        config.optimizer.keys_to_select = patterns
        trainer = Trainer(config, run_folder=tmp_path / patterns[0])
        assert len(trainer.state.parameters) == (16 if patterns == ["lora_"] else 8)


def test_frozen_weights_kept_in_bfloat16_give_the_same_steps(folder: Path) -> None:
    """They are computed with in bfloat16 anyway; adapters and their gradients are float32 either way."""
    losses = []
    for kind in ("float32", "bfloat16"):
        config = lora_config(folder, steps=2)
        config.model.config.precision, config.model.config.parallelism.fsdp_master_dtype = "bfloat16", kind
        trainer = Trainer(config, run_folder=folder / kind)
        kinds = {
            (p.dtype, p.requires_grad)
            for name, p in native_parameters(trainer.model.network).items()
            if "time" not in name
        }
        assert kinds == {(getattr(torch, kind), False), (torch.float32, True)}
        trainer.train()
        losses.append(tiny_runs.read_losses(folder / kind))
        words = ["export", str(folder / kind), "--format", "adapter", "--weights", "live", "--dtype", "float32"]
        assert main([*words, "-o", str(folder / f"adapter_{kind}")]) == 0
    assert losses[0] == losses[1]
    files = [folder / f"adapter_{kind}/adapter_model.safetensors" for kind in ("float32", "bfloat16")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_adapters_that_learned_nothing_are_not_exported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a rate of 0 all B stay zero: both exports say so instead of writing a copy of the base."""
    config = lora_config(folder, steps=2)
    config.optimizer.lr = 0.0
    Trainer(config, run_folder=folder / "idle").train()
    for form in ("adapter", "diffusers", "native"):
        with caplog.at_level(logging.ERROR):
            assert main(["export", str(folder / "idle"), "-o", str(folder / "none"), "--format", form]) == 2
        assert not (folder / "none").exists()
