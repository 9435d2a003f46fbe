"""Makes the tiny T5 and UMT5 text encoders that ship with Worldsmith, and their tokenizer, for moving shapes.

    python scripts/make_tiny_t5.py [--kind umt5] [--out src/worldsmith/assets/tiny_t5]

The weights are random: an encoder that is never trained still tells the captions apart, because every token keeps its
word. Running the script again writes the same bytes.
"""

from __future__ import annotations

import argparse
import itertools
import re
from pathlib import Path

import torch
from transformers import T5Config, T5EncoderModel, T5Tokenizer, UMT5Config, UMT5EncoderModel

from worldsmith.demo.moving_shapes import COMBINATIONS, WORDINGS, dense_caption

CAPTIONS = [dense_caption(*pair) for pair in itertools.product(COMBINATIONS, WORDINGS)]
CONFIG = dict(
    d_model=64,
    d_kv=16,
    d_ff=128,
    num_layers=2,
    num_heads=4,
    feed_forward_proj="gated-gelu",
    relative_attention_num_buckets=16,
    relative_attention_max_distance=32,
    dropout_rate=0.0,
)
KINDS = {"t5": (T5Config, T5EncoderModel), "umt5": (UMT5Config, UMT5EncoderModel)}
SPECIAL_PIECES = ("<pad>", "</s>", "<unk>")
SPACE = "▁"
# A word of the captions is one piece; what else is written falls into characters.
WORD_SCORE, CHARACTER_SCORE = -1.0, -10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default="t5")
    parser.add_argument("--out", type=Path, help="src/worldsmith/assets/tiny_<kind>")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    out = args.out or Path("src/worldsmith/assets", f"tiny_{args.kind}")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(out)
    torch.manual_seed(args.seed)
    config_class, encoder_class = KINDS[args.kind]
    encoder = encoder_class(config_class(vocab_size=len(tokenizer), **CONFIG))
    encoder.half().save_pretrained(out)
    about = dict(name=args.kind.upper(), kind=encoder_class.__name__, vocabulary=len(tokenizer))
    (out / "README.md").write_text(CARD.format(**about, parameters=encoder.num_parameters()))
    lengths = [len(tokenizer(caption).input_ids) for caption in CAPTIONS]
    print(f"vocabulary {len(tokenizer)}, parameters {encoder.num_parameters()}")
    print(f"tokens of a caption with its end: {min(lengths)} to {max(lengths)}")


def make_tokenizer() -> T5Tokenizer:
    """Pieces: the special ones, the words of the captions with their leading space, the visible ASCII characters."""
    words = sorted({word for caption in CAPTIONS for word in re.findall(r"\w+", caption)})
    pieces = [(piece, 0.0) for piece in SPECIAL_PIECES]
    pieces += [(SPACE + word, WORD_SCORE) for word in words]
    pieces += [(character, CHARACTER_SCORE) for character in [SPACE, *map(chr, range(33, 127))]]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=512)


CARD = """# Tiny {name}

A very small `{kind}` with gated GELU, and its tokenizer with a vocabulary of {vocabulary} entries: the words of the
captions of moving shapes, and the visible characters. It has {parameters} parameters, stored as float16.

It allows the demo and the tests of Worldsmith to run the real code path on a CPU. Its weights are random and are not
trained; `scripts/make_tiny_t5.py` creates them. For real captions use the text encoder of the model that you fine-tune.

License: Apache-2.0, like Worldsmith.
"""


if __name__ == "__main__":
    main()
