"""The places that the shipped recipes read from the environment."""

PLACES = (
    "DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH", "VLM_SAFETENSORS_PATH",
    "COGVIDEOX_PATH", "FLUX_PATH", "WAN_PATH",
)  # fmt: skip
