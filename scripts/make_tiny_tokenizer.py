"""Trains the tiny byte-level BPE tokenizer that ships with Worldsmith, from the captions of the moving-shapes grammar.

    python scripts/make_tiny_tokenizer.py [--out src/worldsmith/assets/tiny_tokenizer]

It has the special tokens and the chat template of the Qwen family and encodes any UTF-8 text. Running the script again
writes the same bytes.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from worldsmith.demo.moving_shapes import COMBINATIONS, WORDINGS, dense_caption, structured_caption

VOCAB_SIZE = 512
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# Words with their leading space, single digits, runs of punctuation, line breaks, spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}"
    "{%- for part in message.content %}"
    "{%- if part.type == 'image' %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' %}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- else %}{{- part.text }}{%- endif %}"
    "{%- endfor %}"
    "{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("src/worldsmith/assets/tiny_tokenizer"))
    args = parser.parse_args()
    tokenizer = make_tokenizer(texts())
    tokenizer.save_pretrained(args.out)
    pairs = list(itertools.product(COMBINATIONS, WORDINGS))
    lengths = [len(tokenizer(dense_caption(*pair)).input_ids) for pair in pairs]
    structured = [len(tokenizer(json.dumps(structured_caption(*pair))).input_ids) for pair in pairs]
    print(f"vocabulary {len(tokenizer)}")
    print(f"tokens of a dense caption: {min(lengths)} to {max(lengths)}, mean {sum(lengths) / len(lengths):.1f}")
    print(f"tokens of a structured caption: {min(structured)} to {max(structured)}")


def make_tokenizer(texts: Iterable[str]) -> Qwen2Tokenizer:
    """A tokenizer of the Qwen family, chat template included, with the merges that `texts` suggest."""
    merges, vocab = train(texts)
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=[t for t in SPECIAL_TOKENS if t not in ("<|endoftext|>", "<|im_end|>")],
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def train(texts: Iterable[str]) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Merges in order, and the ids: 256 bytes, merged pieces, then the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = model["vocab"]
    for token in SPECIAL_TOKENS:
        vocab[token] = len(vocab)
    return [tuple(merge) for merge in model["merges"]], vocab


def texts() -> Iterator[str]:
    """What the tokenizer learns from: captions, the sentences about length and size, the chat roles, plain prose."""
    for attributes, wording in itertools.product(COMBINATIONS, WORDINGS):
        yield dense_caption(attributes, wording)
        yield json.dumps(structured_caption(attributes, wording))
    for frames in range(5, 190, 4):
        for fps in (8, 16, 24, 30):
            yield f"The video is {frames / fps:.1f} seconds long and is of {fps} FPS."
            yield f"The video is not {frames / fps:.1f} seconds long and is not of {fps} FPS."
    for side in (64, 96, 128, 256, 480, 720):
        yield f"This video is of {side}x{side} resolution."
        yield f"This video is not of {side}x{side} resolution."
        yield f"This image is of {side}x{side} resolution."
    for role in ("system", "user", "assistant"):
        yield from [f"{role}\n"] * 50
    for letter in map(chr, range(32, 127)):
        yield from [letter, f" {letter}"]
    yield from PROSE * 8


PROSE = [
    "A person walks along a quiet street while the camera follows slowly from behind.",
    "The robot arm reaches for the cup on the table, lifts it and puts it into the box.",
    "Cars and bicycles pass a crossing in the rain; lights are reflected in the wet road.",
    "Two hands open the drawer, take out a white plate and close the drawer again.",
    "The sun goes down behind the mountains and the sky turns from blue to orange and red.",
    "A dog runs over the grass towards its owner, then it stops, looks back and jumps.",
    "Close view of water that flows over stones in a forest, with soft light and shallow focus.",
    "The background is dark and plain, the lighting is even, and the camera does not move.",
]


if __name__ == "__main__":
    main()
