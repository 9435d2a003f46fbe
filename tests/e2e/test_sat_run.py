"""A stack of SAT's files, with the sizes of the tiny twin, trains on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from sat_files import model_file, run_file
from tiny_cogvideox import make_world

from worldsmith.cli.main import main


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lora"), [("2b", False), ("2b", True), ("5b_i2v", False), ("1.5_5b_i2v", False)])
def test_a_tiny_stack_trains(name: str, lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path / "world")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    monkeypatch.setenv("WORLDSMITH_LATENT_CACHE", str(tmp_path / "latents"))
    Path("model.yaml").write_text(yaml.safe_dump(model_file(name, lora)))
    Path("sft.yaml").write_text(run_file())
    network, modules = "model.network_config.params.", "model.network_config.params.modules."
    text = "model.conditioner_config.params.emb_models.0.params."
    sizes = {
        **{f"{network}num_layers": 2, f"{network}hidden_size": 32, f"{network}num_attention_heads": 2},
        **{f"{network}in_channels": 8 if name.endswith("i2v") else 4, f"{network}out_channels": 4},
        f"{network}time_embed_dim": 8,
        **{f"{network}num_frames": 9, f"{network}latent_height": 8, f"{network}latent_width": 8},
        f"{modules}patch_embed_config.params.text_hidden_size": 32,
        f"{modules}pos_embed_config.params.text_length": 16,
        "model.first_stage_config.params.encoder_config.params.z_channels": 4,
        "model.scale_factor": 0.7,
        **{f"{text}max_length": 16, f"{text}model_dir": world / "pipeline"},
        "model.first_stage_config.params.ckpt_path": world / "pipeline",
        **{"args.load": "null", "args.train_data": f"[{world / 'data'}]", "args.valid_data": "null"},
        **{"args.num_workers": 0, "args.log_interval": 1, "args.train_iters": 3},
        **{"data.params.video_size": "[64,64]", "data.params.max_num_frames": 9},
        "deepspeed.bf16.enabled": "false",
        **({f"{modules}lora_config.params.r": 4} if lora else {}),
        **({f"{modules}pos_embed_config.params.hidden_size_head": 16} if name != "2b" else {}),
        **({f"{network}ofs_embed_dim": 8} if name.startswith("1.5") else {}),
    }
    words = [f"{key}={value}" for key, value in sizes.items()]
    ours = ["checkpoint.load_path=null", "checkpoint.init=scratch", "trainer.cpu_threads=1"]
    ours += ["model.config.tokenizer.precision=float32", "model.config.text_encoder.precision=float32"]
    assert main(["train", "--base", "model.yaml", "sft.yaml", "--seed", "7", *words, "--", *ours]) == 0
    (run,) = (tmp_path / "out").rglob("metrics.jsonl")
    losses = [record["loss"] for record in map(json.loads, run.read_text().splitlines()) if "loss" in record]
    assert len(losses) == 3
    assert all(0 < loss < 10 for loss in losses)
