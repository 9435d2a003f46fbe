"""A tiny video generator with the shipped VAE and tokenizer."""

from __future__ import annotations

from worldsmith.assets import asset_path
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.video_vae.wan import WanVAE

WIDER = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "mrope_section": [6, 5, 5],
}  # fmt: skip
"""Large enough for samples to differ by their texts."""


def generator_config(**network: object) -> Cosmos3Generator.Config:
    """One layer of width 32, unless `network` says otherwise; float32."""
    smallest = {
        "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "mrope_section": [4, 2, 2],
    }  # fmt: skip
    return Cosmos3Generator.Config(
        precision="float32",
        network=NetworkConfig(**{**smallest, **network}),
        tokenizer=WanVAE.Config(vae_path=str(asset_path("tiny_vae")), precision="float32"),
        text_tokenizer=TextTokenizer.Config(path=str(asset_path("tiny_tokenizer"))),
    )
