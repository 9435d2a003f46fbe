"""Folders of tiny networks with random weights that metrics read, as transformers saves them."""

from __future__ import annotations

from pathlib import Path

import torch


def make_clip(folder: Path) -> Path:
    """A CLIP model of 32-pixel images and texts of up to 16 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, PreTrainedTokenizerFast

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    text = {**sizes, **ids, "vocab_size": 40, "max_position_embeddings": 16}
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    torch.manual_seed(4)  # whose similarities are positive
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(folder)
    letters = {letter: place for place, letter in enumerate(["<s>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )
    fast.model_max_length = 16
    fast.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def make_videomae(folder: Path) -> Path:
    """A VideoMAE classifier of 4 frames of 32 pixels."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification, VideoMAEImageProcessorPil

    torch.manual_seed(1)
    config = VideoMAEConfig(
        image_size=32, patch_size=16, num_frames=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, num_labels=3,
    )  # fmt: skip
    VideoMAEForVideoClassification(config).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    VideoMAEImageProcessorPil(**sizes).save_pretrained(folder)
    return folder
