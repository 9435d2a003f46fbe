"""Makes the folder of the tiny Qwen3-VL that ships with Worldsmith: everything of a model folder but the weights.

    python scripts/make_tiny_reasoner.py [--out src/worldsmith/assets/tiny_reasoner]

Its tokenizer has the special tokens of the Qwen family and was trained on the sentences of the falling-objects
dataset. Running the script again writes the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from make_tiny_tokenizer import make_tokenizer
from make_tiny_tokenizer import texts as common_texts
from transformers import PreTrainedTokenizerBase, Qwen3VLConfig

from worldsmith.demo.falling_objects import (
    ANSWER_HINT,
    DESCRIBE,
    QUESTIONS,
    SCORE_PROMPT,
    FallingObjects,
    describe_scene,
    draw_scenes,
)

SENTENCES = [SCORE_PROMPT, DESCRIBE, *(f"{question} {ANSWER_HINT}" for question in QUESTIONS.values())]
PATCHES = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
}
# A picture is 1 to 64 visual tokens of 32x32 pixels, and a video at most 256: sizes count over all of its frames.
IMAGE = {"size": {"shortest_edge": 32 * 32, "longest_edge": 256 * 256}, **PATCHES}
VIDEO = {"size": {"shortest_edge": 4 * 32 * 32, "longest_edge": 512 * 32 * 32}, **PATCHES}
# Wider than the 0.02 of large models: so narrow a model would begin almost as the identity.
WEIGHT_SPREAD = 0.05
SAMPLING = {"fps": 4, "min_frames": 4, "max_frames": 16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("src/worldsmith/assets/tiny_reasoner"))
    args = parser.parse_args()
    tokenizer = make_tokenizer(texts())
    tokenizer.save_pretrained(args.out)
    architecture(tokenizer).save_pretrained(args.out)
    ids = tokenizer.convert_tokens_to_ids
    write(
        args.out / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": ids(["<|im_end|>", "<|endoftext|>"]),
            "pad_token_id": ids("<|endoftext|>"),
        },
    )
    write(args.out / "preprocessor_config.json", IMAGE | {"image_processor_type": "Qwen2VLImageProcessorFast"})
    write(
        args.out / "video_preprocessor_config.json",
        VIDEO | SAMPLING | {"video_processor_type": "Qwen3VLVideoProcessor"},
    )
    print(f"vocabulary {len(tokenizer)}")
    for sentence in SENTENCES:
        print(f"{len(tokenizer(sentence).input_ids):3} tokens: {sentence}")


def architecture(tokenizer: PreTrainedTokenizerBase) -> Qwen3VLConfig:
    """A Qwen3-VL with every part of the large ones, small enough to learn from random weights on a CPU."""
    ids = tokenizer.convert_tokens_to_ids
    return Qwen3VLConfig(
        architectures=["Qwen3VLForConditionalGeneration"],
        dtype="float32",
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "initializer_range": WEIGHT_SPREAD,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "eos_token_id": ids("<|im_end|>"),
            "bos_token_id": ids("<|endoftext|>"),
            "pad_token_id": ids("<|endoftext|>"),
        },
        vision_config={
            "depth": 3,
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_heads": 3,
            "out_hidden_size": 128,
            "num_position_embeddings": 64,
            "initializer_range": WEIGHT_SPREAD,
            "deepstack_visual_indexes": [0, 1],
        },
    )


def texts() -> Iterator[str]:
    """What the tokenizer learns from: the sentences and answers of the dataset first, then what every one learns."""
    for sentence in SENTENCES:
        yield from [sentence] * 80
    for scene in draw_scenes(FallingObjects(clips=240), "train"):
        yield from [describe_scene(scene)] * 8
    for word in ("yes", "no", "user", "assistant", "system"):
        yield from [word] * 200
    for tenths in range(200):
        yield f"<{tenths / 10:.1f} seconds>"
    yield from common_texts()


def write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
