"""Configs of released text and image encoders, as transformers' config.json."""

from __future__ import annotations

from typing import Any

T5_XXL: dict[str, Any] = {
    "model_type": "t5",
    "architectures": ["T5EncoderModel"],
    "vocab_size": 32128,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": True,
}
"""Text encoder of T5 v1.1 XXL (4.76 B parameters)."""

UMT5_XXL: dict[str, Any] = {
    **T5_XXL,
    "model_type": "umt5",
    "architectures": ["UMT5EncoderModel"],
    "vocab_size": 256384,
}
"""Text encoder of UMT5 XXL (5.68 B parameters)."""

CLIP_L: dict[str, Any] = {
    "model_type": "clip_text_model",
    "architectures": ["CLIPTextModel"],
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "projection_dim": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
}
"""Text encoder of CLIP ViT-L/14 (123 M parameters)."""

CLIP_H_VISION: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "architectures": ["CLIPVisionModel"],
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "projection_dim": 1024,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 14,
    "hidden_act": "gelu",
}
"""Image encoder of CLIP ViT-H/14 (631 M parameters)."""

CLIP_PICTURES: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""Preprocessor config of the CLIP ViT-H/14 image encoder."""
