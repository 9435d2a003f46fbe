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


def hub_variable_advice(variable: str, repository: str) -> dict[str, str]:
    """Returns {`variable`: shell commands that set it to a hub repository or to a local copy of the repository}."""
    return {
        variable: f"`export {variable}={repository}` downloads it when the run starts; or first "
        f"`hf download {repository} --local-dir DIR`, then `export {variable}=DIR`"
    }


def merged_reasoner(size: str, public: str) -> dict[str, str]:
    """Returns {"VLM_SAFETENSORS_PATH": how to get vision-language weights}, shown if the variable is not set.

    The text names two kinds of weights: the language model of a Cosmos3 generator, combined with the vision encoder of
    Qwen3-VL, or the public Qwen3-VL model.

    Args:
        size: Size in the name of the Cosmos3 generator, such as "Nano".
        public: Size in the name of the Qwen3-VL model, such as "8B".
    """
    return {
        "VLM_SAFETENSORS_PATH": f"`worldsmith convert --checkpoint-path nvidia/Cosmos3-{size} --to vlm -o DIR`, then "
        "`export VLM_SAFETENSORS_PATH=DIR`; for the public model: "
        f"`export VLM_SAFETENSORS_PATH=Qwen/Qwen3-VL-{public}-Instruct`; for random weights: "
        "`export VLM_SAFETENSORS_PATH=none`"
    }
