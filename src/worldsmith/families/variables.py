"""Advice for the environment variables of the shipped recipes: where the files are published, and how to get them."""

from __future__ import annotations

CLIPS = {
    "DATASET_PATH": "create a dataset of videos and captions with `worldsmith dataset import VIDEOS -o my_clips`, "
    "then `export DATASET_PATH=my_clips`",
}
WAN22_VAE = {
    "WAN_VAE_PATH": "`hf download Wan-AI/Wan2.2-TI2V-5B Wan2.2_VAE.pth --local-dir wan22_vae`, then "
    "`export WAN_VAE_PATH=wan22_vae/Wan2.2_VAE.pth`",
}


def hub_repository(variable: str, repository: str) -> dict[str, str]:
    """Returns advice for a variable that names a Hugging Face repository or a folder with its files."""
    return {
        variable: f"`export {variable}={repository}` downloads it when the run starts; or first "
        f"`hf download {repository} --local-dir DIR`, then `export {variable}=DIR`"
    }


def merged_reasoner(size: str, public: str) -> dict[str, str]:
    """Returns advice for reasoner weights: the language model of a generator with the vision encoder of Qwen3-VL."""
    return {
        "VLM_SAFETENSORS_PATH": f"`worldsmith convert --checkpoint-path nvidia/Cosmos3-{size} --to vlm -o DIR`, then "
        f"`export VLM_SAFETENSORS_PATH=DIR`; or Qwen/Qwen3-VL-{public}-Instruct, the public reasoner, or none, random "
        "weights"
    }
