"""Tiny twins of the vision fine-tuning recipes: the same run on a CPU, other in sizes and paths only."""

from __future__ import annotations

from typing import cast

from worldsmith.config import recipe
from worldsmith.models.cosmos3.generator import Cosmos3Generator
from worldsmith.training.trainer import Trainer


@recipe("vision_sft_nano_tiny", starts_from="vision_sft_nano")
def vision_sft_nano_tiny(config: Trainer.Config) -> Trainer.Config:
    """The tiny twin of vision_sft_nano: a network of 9.9M parameters, on a CPU."""
    return make_tiny(config, "vision_sft_nano_tiny")


@recipe("vision_sft_super_tiny", starts_from="vision_sft_super")
def vision_sft_super_tiny(config: Trainer.Config) -> Trainer.Config:
    """The tiny twin of vision_sft_super: a network of 10.7M parameters, on a CPU."""
    make_tiny(config, "vision_sft_super_tiny")
    # As in Super, the heads together are wider than the residual stream.
    cast(Cosmos3Generator.Config, config.model.config).network.num_attention_heads = 6
    return config


@recipe("vision_sft_edge_tiny", starts_from="vision_sft_edge")
def vision_sft_edge_tiny(config: Trainer.Config) -> Trainer.Config:
    """The tiny twin of vision_sft_edge: a network of 7.6M parameters, on a CPU."""
    return make_tiny(config, "vision_sft_edge_tiny")


def make_tiny(config: Trainer.Config, name: str) -> Trainer.Config:
    """Changes the sizes of `config` to those of a CPU and its paths to what is shipped; weights and data stay paths.

    Numbers that say how the run trains (schedule, learning rate, conditioning, loss, what is trained) stay.
    """
    config.job.experiment = config.job.name = name
    config.job.project = "worldsmith"
    model = cast(Cosmos3Generator.Config, config.model.config)
    model.precision = "float32"
    model.max_num_tokens_after_packing = 4096

    network = model.network
    network.vocab_size, network.hidden_size, network.intermediate_size = 512, 256, 768
    network.num_hidden_layers, network.num_attention_heads, network.num_key_value_heads = 6, 4, 2
    network.head_dim, network.mrope_section = 64, [12, 10, 10]

    model.tokenizer.vae_path, model.tokenizer.precision = "${asset:tiny_vae}", "float32"
    model.text_tokenizer.path = "${asset:tiny_tokenizer}"
    model.parallelism.data_parallel_shard_degree = -1
    model.parallelism.context_parallel_shard_degree = 1

    config.dataloader_train.num_workers = 0
    return config
