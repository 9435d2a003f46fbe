"""The launch scripts start the right program with the right words, and plan a 64 B run on a laptop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import make_long_clips

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ASSETS = ROOT / "src/worldsmith/assets"
REASONER = ("VIDEOPHYSICS_ROOT", "VLM_SAFETENSORS_PATH")
READ = ("DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH", "COGVIDEOX_PATH", "FLUX_PATH", "WORLD_SIZE", *REASONER)
RECORDER = r"""#!/usr/bin/env bash
printf '%s\n' "$(basename "$0")" "$@"
for name in DATASET_PATH BASE_CHECKPOINT_PATH WAN_VAE_PATH WORLD_SIZE VIDEOPHYSICS_ROOT VLM_SAFETENSORS_PATH \
    COGVIDEOX_PATH FLUX_PATH; do
    echo "$name=${!name:-}"
done
"""


def launch(script: str, *words: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in READ and not k.startswith(("NPROC", "NNODES", "MASTER"))}
    kept["PATH"] = f"{path}:{kept['PATH']}"
    command = ["bash", str(EXAMPLES / script), *words]
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True)


@pytest.fixture
def recorders(tmp_path: Path) -> Path:
    """A program named worldsmith that prints how it was called."""
    (tmp_path / "worldsmith").write_text(RECORDER)
    (tmp_path / "worldsmith").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("tier", ["nano", "super", "edge"])
def test_eight_processes_on_one_machine_with_the_scripts_own_paths(tier: str, recorders: Path) -> None:
    said = launch(f"launch_sft_vision_{tier}.sh", "--trainer.max_iter", "10", path=recorders).stdout.splitlines()
    toml = EXAMPLES / f"toml/sft_config/vision_sft_{tier}.toml"
    assert toml.is_file()
    assert said[:6] == ["worldsmith", "launch", "--nnodes", "1", "--nproc-per-node", "8"]
    assert said[6:10] == ["train", f"--sft-toml={toml}", "--trainer.max_iter", "10"]
    assert f"BASE_CHECKPOINT_PATH={EXAMPLES}/checkpoints/Cosmos3-{tier.capitalize()}" in said
    assert f"WAN_VAE_PATH={EXAMPLES}/checkpoints/wan22_vae/Wan2.2_VAE.pth" in said


def test_reasoners_have_their_own_paths(recorders: Path) -> None:
    said = launch("launch_sft_videophy2_nano.sh", "--dryrun", path=recorders).stdout.splitlines()
    toml = EXAMPLES / "toml/sft_config/videophy2_sft_nano.toml"
    assert said[:9] == ["worldsmith", "launch", "--nnodes", "1", "--nproc-per-node", "8", "train", f"--sft-toml={toml}",
                        "--dryrun"]  # fmt: skip
    assert f"VIDEOPHYSICS_ROOT={EXAMPLES}/data/videophysics" in said
    assert f"VLM_SAFETENSORS_PATH={EXAMPLES}/checkpoints/Cosmos3-Nano-VLM" in said
    said = launch("launch_sft_llava_ov.sh", path=recorders, VLM_SAFETENSORS_PATH="mine").stdout.splitlines()
    assert f"--sft-toml={EXAMPLES / 'toml/sft_config/llava_ov.toml'}" in said
    assert "VLM_SAFETENSORS_PATH=mine" in said
    assert "VIDEOPHYSICS_ROOT=" in said


@pytest.mark.parametrize(
    ("recipe", "model"),
    [("cogvideox_2b_lora", "2b"), ("cogvideox_5b_i2v_lora", "5b-I2V"), ("cogvideox1_5_5b_i2v", "1.5-5B-I2V")],
)
def test_one_script_starts_every_cogvideox(recipe: str, model: str, recorders: Path) -> None:
    named = {} if recipe == "cogvideox_2b_lora" else {"RECIPE": recipe}
    said = launch("launch_sft_cogvideox.sh", path=recorders, **named).stdout.splitlines()
    toml = EXAMPLES / f"toml/sft_config/{recipe}.toml"
    assert toml.is_file()
    assert f"--sft-toml={toml}" in said
    assert f"COGVIDEOX_PATH=zai-org/CogVideoX{'' if model[0] == '1' else '-'}{model}" in said


@pytest.mark.parametrize(("recipe", "model"), [("flux_dev_lora", "dev"), ("flux_schnell_lora", "schnell")])
def test_one_script_starts_every_flux(recipe: str, model: str, recorders: Path) -> None:
    said = launch("launch_sft_flux.sh", path=recorders, RECIPE=recipe).stdout.splitlines()
    assert f"--sft-toml={EXAMPLES / f'toml/sft_config/{recipe}.toml'}" in said
    assert f"FLUX_PATH=black-forest-labs/FLUX.1-{model}" in said


def test_one_process_needs_no_launch_and_variables_win(recorders: Path) -> None:
    said = launch(
        *("launch_sft_vision_edge.sh", "--", "a=b c"),
        **{"path": recorders, "NPROC_PER_NODE": "1", "DATASET_PATH": "my clips", "TOML_FILE": "x.toml"},  # type: ignore[arg-type]
    ).stdout.splitlines()
    assert said[:5] == ["worldsmith", "train", "--sft-toml=x.toml", "--", "a=b c"]
    assert "DATASET_PATH=my clips" in said
    assert "WORLD_SIZE=" in said


def test_several_machines_need_the_address_of_the_first(recorders: Path) -> None:
    several = {"NNODES": "2", "NODE_RANK": "1"}
    failed = launch("launch_sft_vision_nano.sh", path=recorders, **several)
    assert failed.returncode != 0
    assert "several nodes need MASTER_ADDR" in failed.stderr
    said = launch("launch_sft_vision_nano.sh", path=recorders, MASTER_ADDR="node0", **several).stdout.splitlines()
    rendezvous = ["--nnodes", "2", "--node-rank", "1", "--master-port", "29500", "--master-addr", "node0"]
    assert said[1:12] == ["launch", *rendezvous, "--nproc-per-node", "8"]


def test_a_dry_run_plans_the_whole_super_for_eight_processes(tmp_path: Path) -> None:
    """The real program: network on the meta device, data, tokenizer and VAE for real."""
    make_long_clips(tmp_path / "data")
    done = launch(
        *("launch_sft_vision_super.sh", "--dryrun", "--checkpoint.load_path", "null", "--checkpoint.init", "scratch"),
        path=Path(sys.executable).parent,
        DATASET_PATH=str(tmp_path / "data"),
        WAN_VAE_PATH=str(ASSETS / "tiny_vae"),
        TOKENIZER_PATH=str(ASSETS / "tiny_tokenizer"),
        WORLDSMITH_OUTPUT_ROOT=str(tmp_path / "runs"),
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr
    plan = done.stdout
    assert "processes    8 (replicate 1 × shard 4 × context 2)" in plan
    assert "model        cosmos3: 64.0B parameters, 39.8M trained, 64.0B frozen\n" in plan
    # 64.02e9 x 4 / 8 bytes of weights; whole gradients, since two packs make a step; eighths of two moments
    assert "weights 29.8" in plan
    assert "gradients 152.0 MiB" in plan
    assert "moments 38.0 MiB), before activations" in plan
    # 456.1 MiB of adapters and their optimizer's states, float32, and about what the files of many small pieces take
    assert "478.5 MiB each" in plan
    assert "first pack   45 samples, 44" in plan
    assert "latents [48, 16, 12, 20]" in plan
