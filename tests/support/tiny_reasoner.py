"""Tiny random backbones as model folders, and chat samples made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import IGNORED, ChatSample
from worldsmith.distributed.world import World
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.policy import BackboneConfig, PolicyConfig
from worldsmith.families.vision_language.task import VisionLanguageTask
from worldsmith.objectives.next_token import NextToken

IMAGE, VIDEO, VISION_START, VISION_END = 316, 317, 318, 319
VOCABULARY = 320


def qwen3_vl(*, tied: bool = False, model_type: str = "qwen3_vl", **text: Any) -> PreTrainedConfig:
    settings = {
        "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2]}, **text,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64,
    }  # fmt: skip
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO}
    ids |= {"vision_start_token_id": VISION_START, "vision_end_token_id": VISION_END}
    return AutoConfig.for_model(model_type, text_config=settings, vision_config=vision, tie_word_embeddings=tied, **ids)


def qwen2_5_vl(*, tied: bool = False, **text: Any) -> PreTrainedConfig:
    """Windows of 2 x 2 tokens, in the first of two vision layers."""
    settings = {
        "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_window_layers": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}, **text,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64,
        "window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2,
    }  # fmt: skip
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO}
    ids |= {"vision_start_token_id": VISION_START, "vision_end_token_id": VISION_END}
    return AutoConfig.for_model(
        "qwen2_5_vl", text_config=settings, vision_config=vision, tie_word_embeddings=tied, **ids
    )


CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""What Qwen2.5-VL takes from and divides pixels by; Qwen3-VL has 0.5."""


def write_folder(folder: Path, config: PreTrainedConfig | None = None) -> Path:
    """A model folder without weights and tokenizer."""
    config = config or qwen3_vl()
    config.save_pretrained(folder)
    patch = config.vision_config.patch_size if hasattr(config, "vision_config") else 16
    sizes = {"patch_size": patch, "merge_size": 2, "temporal_patch_size": 2, "size": {"shortest_edge": 1024}}
    sizes["size"]["longest_edge"] = 2**20
    values = CLIP if config.model_type == "qwen2_5_vl" else {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text(json.dumps({**sizes, **values}))
    return folder


def model_config(folder: Path, **settings: Any) -> VisionLanguageModel.Config:
    policy = {
        name: settings.pop(name) for name in ("attn_implementation", "sequence_packing", "freeze") if name in settings
    }
    return VisionLanguageModel.Config(
        precision=settings.pop("precision", "float32"),
        policy=PolicyConfig(backbone=BackboneConfig(model_name=str(folder)), **policy),
        **settings,
    )


def make_task(model: Any, world: World | None = None, **objective: Any) -> VisionLanguageTask:
    return VisionLanguageTask(
        model=model,
        objective=NextToken.Config(**objective),
        data=ChatLoader.Config(max_samples_per_batch=1),
        world=world,
    )


def conversation(
    position: int,
    media: Sequence[tuple[str, tuple[int, int, int]]] = (),
    *,
    text: int = 6,
    backbone: str = "qwen3_vl",
) -> ChatSample:
    """Random text, a span for each of the media (kind and grid in patches), text, and an answer that is supervised.

    A video has one span for each of its frames (temporal patches), with two tokens before each; of a Qwen2.5-VL one
    span for all of them, at 1.5 times a second.
    """
    timed = not backbone.startswith("qwen2_5_vl")
    stream = torch.Generator().manual_seed(position)
    ids, types = [words(text, stream)], [torch.zeros(text, dtype=torch.long)]
    patches: dict[str, list[Tensor]] = {"image": [], "video": []}
    grids: dict[str, list[Tensor]] = {"image": [], "video": []}
    for kind, grid in media:
        frames, rows, columns = grid
        token, number = (IMAGE, 1) if kind == "image" else (VIDEO, 2)
        for _ in range(frames if timed else 1):
            span = torch.full((rows * columns // 4 * (1 if timed else frames),), token)
            ids += [words(2, stream), torch.tensor([VISION_START]), span, torch.tensor([VISION_END])]
            types += [torch.zeros(3).long(), torch.full_like(span, number), torch.zeros(1).long()]
        patches[kind].append(
            torch.randint(
                0, 256, (frames * rows * columns, 1536 if timed else 1176), generator=stream, dtype=torch.uint8
            )
        )
        grids[kind].append(torch.tensor(grid))
    answer = words(1 + position % 4, stream)
    input_ids = torch.cat((*ids, words(3, stream), answer, words(1, stream)))
    labels = torch.full_like(input_ids, IGNORED)
    labels[-len(answer) - 1 : -1] = answer
    token_types = torch.cat((*types, torch.zeros(len(answer) + 4, dtype=torch.long)))
    return ChatSample(
        key=f"sample_{position}",
        position=position,
        num_tokens=len(input_ids),
        input_ids=input_ids,
        labels=labels,
        token_types=token_types,
        image_patches=torch.cat(patches["image"]) if patches["image"] else None,
        image_grids=torch.stack(grids["image"]) if grids["image"] else None,
        video_patches=torch.cat(patches["video"]) if patches["video"] else None,
        video_grids=torch.stack(grids["video"]) if grids["video"] else None,
        video_seconds=torch.full((len(grids["video"]),), 2 / 3) if grids["video"] else None,
    )


DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
RANKS = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
DECODERS: dict[str, dict[str, Any]] = {
    "llama": DECODER,
    "qwen2": DECODER,
    "qwen3": {**DECODER, "tie_word_embeddings": True},
    "mistral": {**DECODER, "sliding_window": 8},
    "qwen3_moe": {**DECODER, **EXPERTS, "num_experts": 4},
    "deepseek_v3": {
        **DECODER, **EXPERTS, **RANKS, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "gpt_oss": {
        **DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "llama4_text": {
        **DECODER, "intermediate_size_mlp": 96, "num_local_experts": 2, "num_experts_per_tok": 1,
        "attention_chunk_size": 8, "pad_token_id": 0,
    },
}  # fmt: skip
"""Tiny text decoders by model type."""


def decoder(model_type: str) -> PreTrainedConfig:
    return AutoConfig.for_model(model_type, **{**DECODERS[model_type]})


def words(count: int, stream: torch.Generator) -> Tensor:
    return torch.randint(0, 300, (count,), generator=stream)


def mixed_batch(backbone: str = "qwen3_vl") -> list[ChatSample]:
    """Text alone, an image, a video, two images, and a video beside an image."""
    return [
        conversation(1, backbone=backbone),
        conversation(2, [("image", (1, 4, 6))], backbone=backbone),
        conversation(3, [("video", (2, 4, 4))], backbone=backbone),
        conversation(4, [("image", (1, 2, 4)), ("image", (1, 6, 4))], text=3, backbone=backbone),
        conversation(5, [("video", (3, 2, 4)), ("image", (1, 4, 4))], backbone=backbone),
    ]


def plain_losses(network: Any, samples: Sequence[ChatSample]) -> Tensor:
    """Plain transformers, each sample on its own: the mean over all supervised tokens of cross-entropy, full logits."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for sample in samples:
        logits = network(**plain_inputs(sample, network.config.model_type)).logits[0, :-1].float()
        labels = sample.labels[1:]
        total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum").double()
        count += int((labels != IGNORED).sum())
    return total / count


def plain_inputs(sample: ChatSample, backbone: str = "qwen3_vl") -> dict[str, Tensor]:
    given = {"input_ids": sample.input_ids[None], "attention_mask": torch.ones_like(sample.input_ids)[None]}
    if sample.image_patches is not None or sample.video_patches is not None:
        given["mm_token_type_ids"] = sample.token_types[None]
    for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        patches = getattr(sample, f"{kind}_patches")
        if patches is not None:
            given[name] = (patches.float() / 255 - 0.5) / 0.5
            if backbone == "qwen2_5_vl":
                mean, std = (torch.tensor(values)[:, None] for values in CLIP.values())
                given[name] = ((patches.float() / 255).view(len(patches), 3, -1) - mean).div(std).flatten(1)
            given[f"{kind}_grid_thw"] = getattr(sample, f"{kind}_grids")
    if backbone == "qwen2_5_vl" and sample.video_seconds is not None:
        given["second_per_grid_ts"] = sample.video_seconds
    return given
