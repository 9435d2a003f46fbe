"""A BERT of the smallest size, the same on every machine: its weights are a formula."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer

WORDS = (
    *("the", "a", "car", "ball", "cat", "red", "it", "is", "turning", "turns", "left", "right", "falls", "down"),
    *("at", "and", "road", "stops"),
)


def write_text_encoder(folder: Path) -> None:
    """Two layers, and a tokenizer of a few words."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    config = BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48
    )
    model = BertModel(config)
    for number, parameter in enumerate(parameter for parameter in model.parameters() if parameter.ndim > 1):
        steps = torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
        parameter.data = ((43758.5453 * torch.sin(12.9898 * steps + number)).frac() / 4).float()
    model.save_pretrained(folder)
