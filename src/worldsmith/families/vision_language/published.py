"""Reads a backbone's config.json, and contains the sizes of released models for plans without their files.

This module does not import torch. A training run always reads the model's own config.json.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from worldsmith.files.remote import in_store
from worldsmith.files.remote_folder import fetch_folder
from worldsmith.models.model_files import cached, hub_name, is_local, local_path, read_settings

VISUAL = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""Model types with images and videos that are supported; their patches contain two frames each."""
REFUSED = {
    "cosmos3_edge": "it cuts images into patches of one frame with the color channels last; expected patches of two "
    "frames with the channels first, as in Qwen3-VL",
    "cosmos3_omni": "first create a folder with its language model and a vision tower, with `worldsmith convert "
    "--to vlm`",
}
"""Model types that transformers can build but that cannot be trained here, with the reason."""
TRAINED = (
    f"trainable with images and videos: {', '.join(VISUAL)}; and text decoders that transformers' "
    "AutoModelForCausalLM can build"
)


def _vision(large: bool, out: int) -> dict[str, Any]:
    sizes = (27, 1152, 4304, [8, 16, 24]) if large else (24, 1024, 4096, [5, 11, 17])
    names = ("depth", "hidden_size", "intermediate_size", "deepstack_visual_indexes")
    same = {"num_heads": 16, "in_channels": 3, "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2}
    return {**same, **dict(zip(names, sizes)), "num_position_embeddings": 2304, "out_hidden_size": out}


def _qwen3_vl(
    hidden: int, layers: int, intermediate: int, heads: tuple[int, int], *, large: bool = True, experts: int = 0
) -> dict[str, Any]:
    """Returns the config.json content of a released Qwen3-VL model.

    Args:
        hidden: Hidden size of the language model.
        layers: Number of decoder layers.
        intermediate: Intermediate size of a feed-forward layer, or of one expert.
        heads: Number of query heads, number of key and value heads.
        large: Whether the model has the larger vision encoder and an untied LM head.
        experts: Number of experts per layer; 0: a dense model.
    """
    mixture = {"num_experts": experts, "num_experts_per_tok": 8, "moe_intermediate_size": intermediate}
    return {
        "model_type": "qwen3_vl_moe" if experts else "qwen3_vl",
        "tie_word_embeddings": not large,
        "text_config": {
            "model_type": "qwen3_vl_moe_text" if experts else "qwen3_vl_text",
            "vocab_size": 151936, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads[0],
            "num_key_value_heads": heads[1], "head_dim": 128, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
            "attention_bias": False, "tie_word_embeddings": not large,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True,
            },
            **(mixture if experts else {"intermediate_size": intermediate}),
        },
        "vision_config": _vision(large, hidden),
    }  # fmt: skip


def _qwen2_5_vl(
    hidden: int, layers: int, intermediate: int, heads: tuple[int, int], *, vision: int = 3420, vocabulary: int = 152064
) -> dict[str, Any]:
    """Returns the config.json content of a released Qwen2.5-VL model.

    Args:
        hidden: Hidden size of the language model.
        layers: Number of decoder layers.
        intermediate: Intermediate size of a feed-forward layer.
        heads: Number of query heads, number of key and value heads.
        vision: Intermediate size of a feed-forward layer of the vision encoder.
        vocabulary: Vocabulary size.
    """
    tied = vocabulary == 151936
    return {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": tied,
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "intermediate_size": intermediate,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 128000, "tie_word_embeddings": tied, "use_sliding_window": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        "vision_config": {
            "depth": 32, "hidden_size": 1280, "intermediate_size": vision, "num_heads": 16, "in_channels": 3,
            "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": hidden,
            "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
        },
    }  # fmt: skip


SIZES = {
    "2B": _qwen3_vl(2048, 28, 6144, (16, 8), large=False),
    "4B": _qwen3_vl(2560, 36, 9728, (32, 8), large=False),
    "8B": _qwen3_vl(4096, 36, 12288, (32, 8)),
    "32B": _qwen3_vl(5120, 64, 25600, (64, 8)),
    "30B-A3B": _qwen3_vl(2048, 48, 768, (32, 4), experts=128),
    "235B-A22B": _qwen3_vl(4096, 94, 1536, (64, 4), experts=128),
}
PUBLISHED = {f"Qwen/Qwen3-VL-{size}-{kind}": size for size in SIZES for kind in ("Instruct", "Thinking")}
PUBLISHED |= {f"nvidia/Cosmos-Reason2-{size}": size for size in ("2B", "8B")}  # trained on from those of Qwen
SIZES |= {
    "2.5 3B": _qwen2_5_vl(2048, 36, 11008, (16, 2), vocabulary=151936),
    "2.5 7B": _qwen2_5_vl(3584, 28, 18944, (28, 4)),
    "2.5 32B": _qwen2_5_vl(5120, 64, 27648, (40, 8), vision=3456),
    "2.5 72B": _qwen2_5_vl(8192, 80, 29568, (64, 8), vision=3456),
}
PUBLISHED |= {f"Qwen/Qwen2.5-VL-{size}-Instruct": f"2.5 {size}" for size in ("3B", "7B", "32B", "72B")}
PUBLISHED |= {"nvidia/Cosmos-Reason1-7B": "2.5 7B"}

_PATCHES = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
PICTURES: dict[str, dict[str, Any]] = {
    "preprocessor_config.json": {**_PATCHES, "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
    "video_preprocessor_config.json": {**_PATCHES, "size": {"shortest_edge": 4096, "longest_edge": 25165824}},
}
"""Preprocessor settings of Qwen3-VL by file name."""
PICTURES_2_5: dict[str, dict[str, Any]] = {
    "preprocessor_config.json": {
        "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
}  # fmt: skip
"""Preprocessor settings of Qwen2.5-VL by file name; it has no file for videos."""


def preprocessor_files(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns preprocessor files (name → content) of the released model whose config.json content is `settings`."""
    return PICTURES_2_5 if settings["model_type"] == "qwen2_5_vl" else PICTURES


def published_config(name: str) -> dict[str, Any] | None:
    """Returns the config.json content of the released model with the hub name `name`; None if the name is unknown."""
    hub = hub_name(name)
    size = None if hub is None or hub.inner else PUBLISHED.get(hub.repo)
    return None if size is None else copy.deepcopy(SIZES[size])


def find_config(name: str) -> dict[str, Any] | None:
    """Returns the config.json content of a model folder or hub repository; only that of a store is downloaded.

    Args:
        name: Folder, address of a folder in a store, or hub name; a repository that is not in the Hugging Face cache
            is looked up in the table of released models.

    Returns:
        The content; None if there is no config.json, or the repository is neither cached nor in the table.

    Raises:
        UserError: If config.json cannot be read or has implausible sizes.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    hub, folder = hub_name(name), local_path(name) if is_local(name) else None
    if folder is None and hub is not None and Path(HF_HUB_CACHE, f"models--{hub.repo.replace('/', '--')}").is_dir():
        folder = cached(hub, ("config.json",))
    folder = find_stored(name) if in_store(name) else folder
    file = None if folder is None else folder / "config.json"
    return published_config(name) if file is None else read_settings(file.parent) if file.is_file() else None


@lru_cache
def find_stored(address: str) -> Path | None:
    """Returns a folder with the config.json of the model in a store; None if it cannot be read, now or earlier."""
    with suppress(OSError):  # reported by `check_files`
        return fetch_folder(address, (("config.json",),), field="model_name")
    return None


def find_training_obstacle(config: Mapping[str, Any]) -> str | None:
    """Returns why the network that a config.json content describes cannot be trained; None if it can.

    Only networks with a vision encoder are checked; text decoders always return None.
    """
    kind = config.get("model_type")
    if kind in REFUSED:
        return f"model_type {kind!r} cannot be trained: {REFUSED[kind]}"
    return None if kind in VISUAL or "vision_config" not in config else f"model_type is {kind!r}; {TRAINED}"
