"""The shipped folder of the tiny Qwen3-VL, read by the library that defines its format."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, Qwen3VLForConditionalGeneration

from worldsmith.assets import asset_path
from worldsmith.demo.falling_objects import ANSWER_HINT, DESCRIBE, QUESTIONS, SCORE_PROMPT

SCRIPTS = Path(__file__).parents[2] / "scripts"
FOLDER = asset_path("tiny_reasoner")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


def test_the_script_writes_the_shipped_files_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["make_tiny_reasoner.py", "--out", str(tmp_path)])
    monkeypatch.syspath_prepend(SCRIPTS)
    runpy.run_path(str(SCRIPTS / "make_tiny_reasoner.py"), run_name="__main__")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in FOLDER.iterdir())
    for made in tmp_path.iterdir():
        shipped = FOLDER / made.name
        if made.name in ("config.json", "tokenizer_config.json"):
            again, before = (json.loads(path.read_text()) for path in (made, shipped))
            assert again | {"transformers_version": None} == before | {"transformers_version": None}
        else:
            assert made.read_bytes() == shipped.read_bytes(), made.name


def test_the_config_is_a_qwen3_vl_of_a_million_parameters_with_the_ids_of_the_tokenizer(tokenizer):
    config = AutoConfig.from_pretrained(FOLDER)
    model = Qwen3VLForConditionalGeneration(config)
    assert 1e6 < model.num_parameters() < 3e6
    assert len(model.model.visual.deepstack_merger_list) == len(config.vision_config.deepstack_visual_indexes) > 0
    assert config.text_config.vocab_size == len(tokenizer)
    for name, token in (("image_token_id", "<|image_pad|>"), ("video_token_id", "<|video_pad|>")):
        assert getattr(config, name) == tokenizer.convert_tokens_to_ids(token)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end == tokenizer.eos_token_id
    assert end in GenerationConfig.from_pretrained(FOLDER).eos_token_id


@pytest.mark.parametrize("answer", ["yes", "no", "1", "2", "3", "4", "5"])
def test_every_answer_is_one_token(tokenizer, answer):
    ids = tokenizer(f"<|im_start|>assistant\n{answer}<|im_end|>\n").input_ids
    assert [tokenizer.decode([i]) for i in ids] == ["<|im_start|>", "assistant", "\n", answer, "<|im_end|>", "\n"]


def test_every_sentence_of_the_dataset_is_short_and_comes_back(tokenizer):
    for sentence in (SCORE_PROMPT, DESCRIBE, *(f"{question} {ANSWER_HINT}" for question in QUESTIONS.values())):
        ids = tokenizer(sentence).input_ids
        assert tokenizer.decode(ids) == sentence
        assert len(ids) < 40


def test_the_chat_template_writes_chatml(tokenizer):
    user = {"role": "user", "content": [{"type": "video"}, {"type": "image"}, {"type": "text", "text": "Rate it."}]}
    messages = [{"role": "system", "content": "Look."}, user, {"role": "assistant", "content": "4"}]
    video, image = (f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("video", "image"))
    expected = f"<|im_start|>system\nLook.<|im_end|>\n<|im_start|>user\n{video}{image}Rate it.<|im_end|>\n"
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == expected + "<|im_start|>assistant\n4<|im_end|>\n"
    prompt = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert prompt == expected + "<|im_start|>assistant\n"
