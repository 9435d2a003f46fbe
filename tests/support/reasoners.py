"""Vision-language models and text decoders as transformers writes them, runs that train them, and their logits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from stored_models import randomize
from torch import Tensor

from worldsmith.assets import asset_path
from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.yaml.yaml_text import dump_yaml
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.policy import BackboneConfig, PolicyConfig
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.spec import ModelSpec

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
GRID = (1, 4, 6)
VISUAL = ("qwen2_5_vl", "qwen3_vl")
SMALL = {
    "vocab_size": 512, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "pad_token_id": 505, "bos_token_id": 505, "eos_token_id": 507,
}  # fmt: skip


def write_reasoner(folder: Path, *, tied: bool = False, dtype: str = "float32", shard: str = "5GB") -> Any:
    """The shipped tiny Qwen3-VL with random weights, as a whole model folder; returns the model."""
    from transformers import AutoConfig, Qwen3VLForConditionalGeneration

    source = asset_path("tiny_reasoner")
    config = AutoConfig.from_pretrained(source)
    config.tie_word_embeddings = tied
    model: Any = Qwen3VLForConditionalGeneration(config)
    return save(model, folder, source, dtype, shard)


TEMPLATE_2_5 = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'video') %}<|vision_start|><|{{ part['type'] }}_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What the released template writes: a system prompt of its own, and one pair of vision tokens around each medium."""
LIMITS_2_5 = {
    "min_pixels": 28 * 28, "max_pixels": 28 * 28 * 64, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
}  # fmt: skip
"""The released file, with smaller images; there is none for videos."""
VIDEOS_2_5 = {
    **{key: value for key, value in LIMITS_2_5.items() if not key.endswith("pixels")},
    "size": {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 16},
    "video_processor_type": "Qwen2VLVideoProcessor",
}


def qwen2_5_config(*, tied: bool = False) -> Any:
    """A tiny Qwen2.5-VL with the ids of the shipped tokenizer; windows of 2 x 2 tokens in the first vision layer."""
    from transformers import AutoConfig

    return AutoConfig.for_model(
        "qwen2_5_vl",
        text_config={
            "vocab_size": 512, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_window_layers": 2, "pad_token_id": 505,
            "bos_token_id": 505, "eos_token_id": 507,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 2, 2]},
        },
        vision_config={
            "hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 48,
            "window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2,
        },
        image_token_id=510, video_token_id=511, vision_start_token_id=508, vision_end_token_id=509,
        tie_word_embeddings=tied,
    )  # fmt: skip


def write_qwen2_5(folder: Path, *, tied: bool = False, videos: bool = True) -> Any:
    """A tiny Qwen2.5-VL with random weights as a whole model folder; `videos`: with a file of their limits."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    model: Any = Qwen2_5_VLForConditionalGeneration(qwen2_5_config(tied=tied))
    save(model, folder, asset_path("tiny_reasoner"), "float32", "5GB", TOKENIZER)
    (folder / "chat_template.jinja").write_text(TEMPLATE_2_5)
    (folder / "preprocessor_config.json").write_text(json.dumps(LIMITS_2_5))
    if videos:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEOS_2_5))
    return model


def write_decoder(folder: Path, kind: str = "llama", *, dtype: str = "float32", **settings: Any) -> Any:
    """A text decoder of this model type with random weights, as a whole model folder; returns the model."""
    from transformers import AutoConfig

    return write_model(folder, AutoConfig.for_model(kind, **{**SMALL, **settings}), dtype=dtype)


def write_model(folder: Path, config: Any, *, dtype: str = "float32") -> Any:
    """The model of this config with random weights, as a whole model folder without preprocessors; returns it."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind: Any = AutoModelForImageTextToText if config.model_type in VISUAL else AutoModelForCausalLM
    model = kind.from_config(config)
    return save(model, folder, asset_path("tiny_reasoner"), dtype, "5GB", TOKENIZER)


def save(
    model: Any, folder: Path, source: Path, dtype: str, shard: str, companions: tuple[str, ...] | None = None
) -> Any:
    randomize(model)
    model.tie_weights()
    model = model.to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder, max_shard_size=shard)
    for file in source.iterdir():
        if file.name in (companions or [file.name]) and file.name != "config.json":
            shutil.copy(file, folder)
    return model


def model_config(folder: Path, **settings: Any) -> VisionLanguageModel.Config:
    """The family's config for a model folder."""
    policy = PolicyConfig(backbone=BackboneConfig(model_name=str(folder)))
    return VisionLanguageModel.Config(precision="float32", policy=policy, **settings)


def write_run(
    folder: Path,
    config: VisionLanguageModel.Config,
    network: Any,
    average: dict[str, Tensor] | None = None,
    **start: Any,
) -> Path:
    """A run folder with one checkpoint of a network's weights, and perhaps an average of them."""
    checkpoint = Checkpointer.Config(**start)
    tree = {
        "job": {"project": "demo", "group": "questions", "name": "tiny"},
        "model": to_dict(ModelSpec(name="vision_language", config=config)),
        "objective": {},
        "trainer": {"seed": 3},
        "checkpoint": to_dict(checkpoint),
        "dataloader_train": {},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_yaml(tree), encoding="utf-8")
    weights = {f"net.{name}": p.detach() for name, p in native_parameters(network).items()}
    weights |= {f"net_ema.{name}": value for name, value in (average or {}).items()}
    checkpoint.build(folder=folder / "checkpoints").save(7, {"model": weights})
    return folder


def question(model: Any) -> dict[str, Tensor]:
    """A sequence of text, and for a model that sees, of a picture too."""
    ids = torch.arange(20, 44)
    if model.config.model_type not in VISUAL:
        return {"input_ids": ids[None]}
    count = GRID[0] * GRID[1] * GRID[2]
    picture = torch.full((count // 4,), model.config.image_token_id)
    start, end = model.config.vision_start_token_id, model.config.vision_end_token_id
    ids = torch.cat((ids[:5], torch.tensor([start]), picture, torch.tensor([end]), ids[5:]))
    stream = torch.Generator().manual_seed(8)
    return {
        "input_ids": ids[None],
        "mm_token_type_ids": (ids == model.config.image_token_id).int()[None],
        "pixel_values": torch.randn(count, 3 * 2 * model.config.vision_config.patch_size**2, generator=stream),
        "image_grid_thw": torch.tensor([GRID]),
    }


@torch.no_grad()
def logits(model: Any) -> Tensor:
    """float32 [tokens, vocabulary] of `question`, computed in float32."""
    found: Tensor = model.float().eval()(**question(model)).logits[0]
    return found


def from_pretrained(folder: Path, **settings: Any) -> Any:
    """The model of a folder, if transformers misses no weight and finds none too many."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    visual = json.loads((folder / "config.json").read_text())["model_type"] in VISUAL
    kind: Any = AutoModelForImageTextToText if visual else AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, output_loading_info=True, **settings)
    assert all(not found for found in info.values()), info
    return model


def edit_config(folder: Path, **changes: Any) -> None:
    """Changes settings in the config.json of a folder."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
