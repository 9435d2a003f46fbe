"""TextTokenizer: Qwen-style rendering, special ids, and the errors of unusable folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>"]


def write_tokenizer(folder: Path, *, special=SPECIAL, template=TEMPLATE, eos="<|im_end|>") -> str:
    """A byte-level tokenizer without merges: every byte is one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def build(path: str) -> TextTokenizer:
    return TextTokenizer.Config(path=path).build()


def test_caption_is_one_user_turn_that_opens_the_assistant_turn(tmp_path):
    tokenizer = build(write_tokenizer(tmp_path))
    ids = tokenizer.encode("a red circle")
    expected = "<|im_start|>user\na red circle<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.tokenizer.decode(ids) == expected
    assert all(type(token) is int for token in ids)
    assert tokenizer.encode("") != []
    assert (tokenizer.eos_id, tokenizer.vision_start_id, tokenizer.vocab_size) == (258, 259, 260)


def test_a_network_with_too_few_rows_is_refused(tmp_path):
    tokenizer = build(write_tokenizer(tmp_path))
    tokenizer.check_vocab_size(260)
    with pytest.raises(ValueError, match=r"ids up to 259, but model.config.network.vocab_size is 259"):
        tokenizer.check_vocab_size(259)


def test_folders_that_cannot_serve_are_refused_with_the_fix(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"text_tokenizer.path .*nowhere: no such folder"):
        build(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no tokenizer_config.json in .*empty"):
        build(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"has no token '<\|vision_start\|>'.*use a Qwen3-VL tokenizer"):
        build(write_tokenizer(tmp_path / "a", special=SPECIAL[:3]))
    with pytest.raises(ValueError, match="no chat template"):
        build(write_tokenizer(tmp_path / "b", template=None))
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        build(write_tokenizer(tmp_path / "c", eos=None))
