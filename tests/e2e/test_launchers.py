"""The launch scripts start the right program with the right words, and plan a 64 B run on a laptop."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from reasoners import write_reasoner
from tiny_runs import make_long_clips

from worldsmith.cli.main import main
from worldsmith.config.load import load

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ASSETS = ROOT / "src/worldsmith/assets"
REASONER = ("VIDEOPHYSICS_ROOT", "VLM_SAFETENSORS_PATH")
READ = ("DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH", "COGVIDEOX_PATH", "FLUX_PATH", "WORLD_SIZE", *REASONER,
        "LIBERO_ROOT", "DROID_ROOT", "ROBOT_STATISTICS")  # fmt: skip
RECORDER = r"""#!/usr/bin/env bash
printf '%s\n' "$(basename "$0")" "$@"
for name in DATASET_PATH BASE_CHECKPOINT_PATH WAN_VAE_PATH WORLD_SIZE VIDEOPHYSICS_ROOT VLM_SAFETENSORS_PATH \
    COGVIDEOX_PATH FLUX_PATH LIBERO_ROOT DROID_ROOT ROBOT_STATISTICS; do
    echo "$name=${!name:-}"
done
"""


def launch(
    script: str, *words: str, path: Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in READ and not k.startswith(("NPROC", "NNODES", "MASTER"))}
    kept["PATH"] = f"{path}:{kept['PATH']}"
    command = ["bash", str(EXAMPLES / script), *words]
    return subprocess.run(command, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True)


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


LAUNCHED = {
    "action_fd_droid_posttrain": "action_fd_droid_posttrain",
    "action_policy_droid_nano": "action_policy_droid_nano",
    "action_policy_libero_10_nano": "action_policy_libero_10_nano",
    "action_policy_libero_all_nano": "action_policy_libero_all_nano",
    "llava_ov": "llava_ov",
    "llava_ov_mapstyle_dataloader": "llava_ov_mapstyle_dataloader",
    "videophy2_edge": "videophy2_sft_edge",
    "videophy2_nano": "videophy2_sft_nano",
    "videophy2_super": "videophy2_sft_super",
    "vision_edge": "vision_sft_edge",
    "vision_nano": "vision_sft_nano",
    "vision_nano_cosmosdataloader": "vision_sft_nano_mapstyle_dataloader",
    "vision_super": "vision_sft_super",
}
"""Published launch scripts, and the recipe file that each starts."""


@pytest.mark.parametrize(("script", "toml"), LAUNCHED.items())
def test_every_published_launch_script_starts_its_recipe_file(script: str, toml: str, recorders: Path) -> None:
    said = launch(f"launch_sft_{script}.sh", path=recorders).stdout.splitlines()
    file = EXAMPLES / f"toml/sft_config/{toml}.toml"
    assert file.is_file()
    assert f"--sft-toml={file}" in said


def test_robots_have_their_own_paths(recorders: Path) -> None:
    said = launch("launch_sft_action_policy_libero_10_nano.sh", path=recorders).stdout.splitlines()
    assert f"LIBERO_ROOT={EXAMPLES}/data/LIBERO_LeRobot_v3/libero_10" in said
    assert f"ROBOT_STATISTICS={EXAMPLES}/data/libero_statistics.json" in said
    said = launch("launch_sft_action_policy_droid_nano.sh", path=recorders, DATASET_PATH="mine").stdout.splitlines()
    assert "DROID_ROOT=mine" in said
    said = launch("launch_sft_action_policy_droid_nano.sh", path=recorders, DROID_ROOT="other").stdout.splitlines()
    assert "DROID_ROOT=other" in said


def test_the_map_style_script_runs_60_steps_unless_arguments_say_otherwise(recorders: Path) -> None:
    own = ["--trainer.max_iter", "60", "--checkpoint.save_iter", "50"]
    words = launch("launch_sft_llava_ov_mapstyle_dataloader.sh", "--", "a=b", path=recorders).stdout.splitlines()
    assert words[8:14] == [*own, "--", "a=b"]
    loaded = load("pre_exp012_llava_ov_mapstyle_dataloader", ["trainer.max_iter=60"])
    assert "still in warm-up at step 60, where it reaches 10.7% of optimizer.lr" in loaded.warnings[0]


def test_reasoners_have_their_own_paths(recorders: Path) -> None:
    said = launch("launch_sft_videophy2_super.sh", path=recorders).stdout.splitlines()
    assert f"VLM_SAFETENSORS_PATH={EXAMPLES}/checkpoints/Cosmos3-Super-VLM" in said
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


@pytest.mark.parametrize(
    "script",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("llava_ov", "llava_ov_mapstyle_dataloader")),
        "videophy2_super",
    ],
)
def test_a_reasoners_script_plans_with_a_tiny_backbone_and_local_data(
    script: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders with the names of the hub's repositories are what the unchanged recipe files read."""
    done = launch(
        *(f"launch_sft_{script}.sh", "--dryrun"),
        **{"path": Path(sys.executable).parent, "cwd": folder, "VIDEOPHYSICS_ROOT": str(folder / "clips")},
        **{"VLM_SAFETENSORS_PATH": "Qwen/Qwen3-VL-8B-Instruct", "WORLDSMITH_OUTPUT_ROOT": str(folder / "runs")},
        **{"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "processes    8 (replicate 1 × shard 8)" in done.stdout
    assert "model        vision_language: 1.5M parameters" in done.stdout
    assert ("vision       378,048 in 39 tensors frozen" in done.stdout) == script.startswith("videophy2")
    steps = 60 if "mapstyle" in script else 500 if "llava" in script else 50
    assert f"run          {steps} steps" in done.stdout
    assert done.stderr.count("still in warm-up") == script.startswith("llava")


def test_the_script_of_edges_reasoner_says_why_it_is_not_trained(folder: Path) -> None:
    words = {"VIDEOPHYSICS_ROOT": str(folder / "clips"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = launch("launch_sft_videophy2_edge.sh", "--dryrun", path=Path(sys.executable).parent, cwd=folder, **words)
    assert done.returncode == 2
    assert "model_type 'cosmos3_edge' cannot be trained" in done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the names of hub repositories: tiny reasoners, a data set of one image, made clips."""
    datasets = pytest.importorskip("datasets")
    place = tmp_path_factory.mktemp("hub")
    model = place / "Qwen/Qwen3-VL-8B-Instruct"
    write_reasoner(model)
    for name in ("Qwen/Qwen3-VL-32B-Instruct", "nvidia/Cosmos3-Edge"):
        shutil.copytree(model, place / name)
    edge = place / "nvidia/Cosmos3-Edge/config.json"
    edge.write_text(edge.read_text().replace('"qwen3_vl"', '"cosmos3_edge"'))
    picture = io.BytesIO()
    Image.new("RGB", (64, 48)).save(picture, "PNG")
    turns = [{"from": "human", "value": "<image> What is it?"}, {"from": "gpt", "value": "Black."}]
    record = {"id": "a", "image": {"bytes": picture.getvalue(), "path": None}, "conversations": turns}
    data = place / "lmms-lab/LLaVA-OneVision-Data"
    (data / "ai2d").mkdir(parents=True)
    datasets.Dataset.from_list([record] * 16).to_parquet(data / "ai2d/train-0.parquet")
    subset = "config_name: ai2d(gpt4v)"
    (data / "README.md").write_text(
        f"---\nconfigs:\n- {subset}\n  data_files:\n  - {{split: train, path: ai2d/train-*}}\n"
        f"dataset_info:\n- {subset}\n  splits:\n  - {{name: train, num_bytes: 1, num_examples: 16}}\n---\n"
    )
    assert main(["dataset", "falling-objects", str(place / "clips"), "--clips", "4", "--val-clips", "2"]) == 0
    return place


@pytest.mark.slow
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
    assert "optimizer state 38.0 MiB), before activations" in plan
    # 456.1 MiB of adapters and their optimizer's states, float32, and about what the files of many small pieces take
    assert "478.5 MiB each" in plan
    assert "first pack   45 samples, 44" in plan
    assert "latents [48, 16, 12, 20]" in plan
