"""A small Qwen3-VL with random weights, and conversations of mixed length, with images or without."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText

from worldsmith.assets import asset_path

WORDS = (
    "a",
    "ball",
    "falls",
    "bounces",
    "stops",
    "red",
    "green",
    "left",
    "of",
    "the",
    "is",
    "it",
    "plausible",
    "because",
)


def make_model(folder: Path, *, layers: int) -> None:
    """Hidden size 256, with a head that has, at 4 layers, about the share of the weights that Qwen3-VL-2B gives it."""
    source = asset_path("tiny_reasoner")
    config = AutoConfig.from_pretrained(source)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.num_hidden_layers, text.intermediate_size, text.vocab_size = 256, layers, 768, 3072
    text.num_attention_heads, text.num_key_value_heads, text.head_dim = 4, 2, 64
    text.rope_parameters["mrope_section"], text.initializer_range = [12, 10, 10], 0.02
    vision.hidden_size, vision.depth, vision.intermediate_size, vision.num_heads = 128, 3, 384, 4
    vision.out_hidden_size, vision.deepstack_visual_indexes = 256, [0, 1]
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for file in source.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)


def make_chats(folder: Path, count: int, *, images: bool) -> list[dict[str, Any]]:
    """annotations.json of questions of 10 to 700 words, each length as likely as its double, and shorter answers."""
    draw, pixels = random.Random(0), np.random.default_rng(0)

    def words(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS, k=round(least * math.exp(draw.random() * math.log(most / least)))))

    records = []
    for number in range(count):
        record: dict[str, Any] = {"id": str(number)}
        if images and number % 3:
            small = pixels.integers(0, 256, (6, 8, 3), np.uint8)
            size = draw.choice(((320, 240), (256, 256), (192, 128), (480, 360)))
            Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
            record["image"] = f"{number}.jpg"
        question = words(10, 150 if images else 700)  # an image without a tag comes before it
        turns = [("human", question), ("gpt", words(2, 80))]
        records.append({**record, "conversations": [{"from": who, "value": said} for who, said in turns]})
    (folder / "annotations.json").write_text(json.dumps(records))
    return records
