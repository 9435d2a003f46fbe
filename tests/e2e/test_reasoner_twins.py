"""The tiny twin of videophy2_sft_nano on made clips trains, validates, resumes bit for bit; full sizes are planned."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from metrics_files import read_metrics
from tiny_runs import read_checkpoint, read_losses
from transformers import AutoConfig

from worldsmith.assets import asset_path
from worldsmith.cli.main import main
from worldsmith.demo.falling_objects import FallingObjects

ROOT = Path(__file__).parents[2]
STEPS = ["--trainer.max_iter", "4", "--trainer.grad_accum_iter", "2", "--trainer.cpu_threads", "1"]
SIZES = {"8B": (4096, 36, 12288, 32, 8_767_123_696), "32B": (5120, 64, 25600, 64, 33_357_390_064)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with a few clips, their scores, and questions about them."""
    folder = tmp_path_factory.mktemp("reasoner")
    FallingObjects(clips=20, val_clips=5, num_frames=8).make(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("VIDEOPHYSICS_ROOT", str(folder / "data"))
        patch.setenv("VLM_SAFETENSORS_PATH", "none")
        for name in ("WORLD_SIZE", "WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT"):
            patch.delenv(name, raising=False)
        yield folder


def train(name: str, *words: str) -> Path:
    toml = ROOT / "examples/toml/sft_config/videophy2_nano_tiny.toml"
    assert main(["train", f"--sft-toml={toml}", *STEPS, "--job.name", name, *words]) == 0
    return Path("outputs/train/worldsmith/sft") / name


def test_a_run_trains_all_but_the_vision_encoder_and_resumes_bit_for_bit(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    words = ("--optimizer.lr", "1e-3", "--checkpoint.save_iter", "2", "--trainer.validation_iter", "2")
    run = train("whole", *words, "--trainer.max_val_iter", "2")
    said = caplog.text
    assert [step for step, *_ in read_losses(run)] == [1, 2, 3, 4]
    assert "vision       378,048 in 39 tensors frozen" in said
    assert "projector    593,088 in 18 tensors at learning rate 0.001" in said
    assert "in both the validation data and the training data" not in said
    validated = [line["step"] for line in read_metrics(run / "metrics.jsonl") if "val/loss" in line]
    assert validated == [2, 4]
    first, last = (read_checkpoint(run / f"checkpoints/iter_00000000{step}") for step in (2, 4))
    changed = {name for name, tensor in last.items() if name.startswith("model/") and not tensor.equal(first[name])}
    assert changed
    assert not [name for name in changed if name.startswith("model/net.model.visual.") and "merger" not in name]
    assert {"model/net.lm_head.weight", "model/net.model.visual.merger.linear_fc1.weight"} <= changed

    shutil.rmtree(run / "checkpoints/iter_000000004")
    train("whole", *words, "--trainer.max_val_iter", "2")
    again = read_checkpoint(run / "checkpoints/iter_000000004")
    assert again.keys() == last.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in last.items())


def test_the_guide_shows_what_a_dry_run_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs/reasoner.md").read_text(), re.DOTALL)
    assert main(["train", "videophy2_nano_tiny", "--dryrun"]) == 0
    assert table in capsys.readouterr().out


def test_packs_of_two_and_adapters_train_in_bfloat16(folder: Path) -> None:
    run = train(
        "adapters",
        *("--model.config.lora_enabled", "true", "--model.config.lora_target_modules", "q_proj,v_proj,linear_fc1"),
        *("--model.config.precision", "bfloat16", "--dataloader_train.max_samples_per_batch", "2"),
        *("--checkpoint.save_weights", "trained", "--optimizer.lr_multipliers", "{}"),
        *("--model.config.policy.freeze.freeze_vision_encoder", "false", "--model.config.ema.enabled", "true"),
    )
    saved = [name for name in read_checkpoint(run / "checkpoints/iter_000000004") if name.startswith("model/net.")]
    assert saved
    assert all(".lora_" in name for name in saved)


@pytest.mark.parametrize(
    ("recipe", "size"), [("pre_exp012_llava_ov", "8B"), ("videophy2_sft_nano", "8B"), ("videophy2_sft_super", "32B")]
)
def test_a_dry_run_plans_full_sizes_for_eight_processes(
    recipe: str, size: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The network on the meta device; tokenizer, template, limits and data for real, and a large disk."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**42))
    backbone = folder / f"Qwen3-VL-{size}"
    shutil.copytree(asset_path("tiny_reasoner"), backbone, dirs_exist_ok=True)
    tiny = json.loads((backbone / "config.json").read_text())
    hidden, layers, ffn, heads, total = SIZES[size]
    text = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": ffn, "head_dim": 128}
    text |= {"num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 151936}
    vision = {"hidden_size": 1152, "depth": 27, "num_heads": 16, "intermediate_size": 4304, "out_hidden_size": hidden}
    vision |= {"deepstack_visual_indexes": [8, 16, 24], "num_position_embeddings": 2304}
    ids = {name: value for name, value in tiny.items() if name.endswith("_token_id")}
    AutoConfig.for_model("qwen3_vl", text_config=text, vision_config=vision, **ids).save_pretrained(backbone)
    monkeypatch.setenv("WORLD_SIZE", "8")
    kind = "worldsmith.data.conversations.datasets.llava.LlavaDataset"
    local = [f"dataloader_train.dataset={{type: {kind}, path: {folder / 'data/videophy2_train'}}}"]
    words = ["--model.config.policy.backbone.model_name", str(backbone), "--checkpoint.init", "scratch"]
    assert (
        main(["train", recipe, "--dryrun", *words, *(["--", *local] if recipe == "pre_exp012_llava_ov" else [])]) == 0
    )
    plan = capsys.readouterr().out
    assert "processes    8 (replicate 1 × shard 8)" in plan
    assert f"model        vision_language: {total / 1e9:.1f}B parameters" in plan
    assert "language     " in plan
    assert f"step         {8 if recipe == 'pre_exp012_llava_ov' else 64} packs" in plan
    assert "first pack   1 sample," in plan
    assert ("vision       415,891,440 in 327 tensors frozen" in plan) == (recipe != "pre_exp012_llava_ov")
    share = 4 * total / 8 / 2**30
    assert f"(weights {share:.2f} GiB, gradients " in plan
