"""The variables that the shipped recipes read."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def recipe_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH", "VLM_SAFETENSORS_PATH", "COGVIDEOX_PATH",
                 "FLUX_PATH", "WAN_PATH"):  # fmt: skip
        monkeypatch.setenv(name, name.lower())
    for name in ("TOKENIZER_PATH", "VIDEOPHYSICS_ROOT", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
