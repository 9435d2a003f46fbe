"""The shipped VAE and tokenizer, measured from their files and read by the libraries that define the formats."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import Cosmos3OmniPipeline
from transformers import AutoTokenizer

from worldsmith.assets import asset_path
from worldsmith.data.moving_shapes import render, sample_scene
from worldsmith.data.shape_captions import COMBINATIONS, all_captions
from worldsmith.evaluation.shape_detector import detect
from worldsmith.models.video_vae.wan import WanVAE

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(asset_path("tiny_tokenizer"))


@pytest.fixture(scope="module")
def vae():
    return WanVAE.Config(vae_path=str(asset_path("tiny_vae")), precision="float32").build()


@pytest.fixture(scope="module")
def reconstructions(vae):
    """(attributes, clip, reconstruction) of one unseen scene for every combination."""
    rng = np.random.default_rng(20_000)
    found = []
    for attributes in COMBINATIONS:
        clip = render(sample_scene(rng, attributes))
        output = vae.decode(vae.encode(torch.from_numpy(clip).permute(3, 0, 1, 2)))
        found.append((attributes, clip, output.permute(1, 2, 3, 0).numpy()))
    return found


def psnr(a, b):
    return 10 * math.log10(255**2 / np.mean((a.astype(np.float64) - b) ** 2))


def test_vae_reconstructs_held_out_clips_with_26_db(reconstructions):
    values = [psnr(clip, output) for _, clip, output in reconstructions]
    assert np.mean(values) >= 26, f"mean {np.mean(values):.2f} dB, worst {min(values):.2f} dB"


def test_detector_reads_98_percent_of_the_reconstructions_right(reconstructions):
    wrong = [
        (attributes, detect(output))
        for attributes, _, output in reconstructions
        if detect(output).attributes != attributes
    ]
    assert 1 - len(wrong) / len(reconstructions) >= 0.98, wrong


def test_vae_latents_have_about_zero_mean_and_unit_deviation(vae):
    rng = np.random.default_rng(20_001)
    clips = [torch.from_numpy(render(sample_scene(rng, c))).permute(3, 0, 1, 2) for c in COMBINATIONS[::2]]
    latents = torch.stack([vae.encode(clip) for clip in clips])
    assert latents.shape[1:] == (48, 5, 4, 4)
    assert abs(latents.mean()) < 0.1
    assert 0.85 < latents.std() < 1.15
    assert (latents.transpose(0, 1).flatten(1).std(1) > 0.3).all(), "every channel carries something"


def test_vae_is_a_wan_2_2_autoencoder_that_loads_in_float32_and_is_small():
    folder = asset_path("tiny_vae")
    model = AutoencoderKLWan.from_pretrained(folder)
    config = model.config
    assert (config.z_dim, config.scale_factor_spatial, config.scale_factor_temporal) == (48, 16, 4)
    assert (config.is_residual, config.patch_size, config.temperal_downsample) == (True, 2, [False, True, True])
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.stat().st_size for p in folder.parent.rglob("*") if p.is_file()) < 8 * 2**20


def test_model_card_states_the_psnr_that_is_measured(reconstructions):
    card = (asset_path("tiny_vae") / "README.md").read_text()
    stated = float(re.search(r"PSNR, mean \| ([\d.]+) dB", card).group(1))
    measured = np.mean([psnr(clip, output) for _, clip, output in reconstructions])
    assert abs(stated - measured) < 1.0


def test_tokenizer_is_of_the_class_that_the_pipeline_expects_and_has_the_qwen_tokens(tokenizer):
    assert type(tokenizer).__name__.startswith("Qwen2Tokenizer")
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    for token in ("im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad", "endoftext"):
        (only,) = tokenizer(f"<|{token}|>").input_ids
        assert only == tokenizer.convert_tokens_to_ids(f"<|{token}|>")
    assert sorted(tokenizer.get_vocab().values()) == list(range(512))


def test_chat_template_renders_user_and_system_turns_in_the_qwen_way(tokenizer):
    user = [{"role": "user", "content": "A red square moves left."}]
    options = dict(add_generation_prompt=True, add_vision_id=False)
    text = tokenizer.apply_chat_template(user, tokenize=False, **options)
    assert text == "<|im_start|>user\nA red square moves left.<|im_end|>\n<|im_start|>assistant\n"
    system = [{"role": "system", "content": "Be brief."}, *user]
    assert tokenizer.apply_chat_template(system, tokenize=False, **options).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    )
    parts = [{"role": "user", "content": [{"type": "text", "text": "A red square moves left."}]}]
    assert tokenizer.apply_chat_template(parts, tokenize=False, **options) == text
    assert tokenizer.apply_chat_template(user, tokenize=False, add_generation_prompt=False).endswith("<|im_end|>\n")


@pytest.mark.parametrize("use_system_prompt", [False, True])
def test_diffusers_own_prompt_function_works_with_it(tokenizer, use_system_prompt):
    stand_in = SimpleNamespace(
        text_tokenizer=tokenizer,
        config=SimpleNamespace(default_use_system_prompt=use_system_prompt),
        llm_special_tokens={
            "start_of_generation": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
            "eos_token_id": tokenizer.eos_token_id,
        },
        duration_template="The video is {duration:.1f} seconds long and is of {fps:.0f} FPS.",
        inverse_duration_template="",
        video_resolution_template="This video is of {height}x{width} resolution.",
        inverse_video_resolution_template="",
        image_resolution_template="",
        inverse_image_resolution_template="",
    )
    ids, empty = Cosmos3OmniPipeline.tokenize_prompt(
        stand_in, "A red square moves left.", num_frames=17, height=64, width=64, fps=8.0
    )
    text = tokenizer.decode(ids)
    assert text.startswith(
        "<|im_start|>system\n" if use_system_prompt else "<|im_start|>user\nA red square moves left."
    )
    assert text.endswith(
        "This video is of 64x64 resolution.<|im_end|>\n<|im_start|>assistant\n<|im_end|><|vision_start|>"
    )
    assert tokenizer.decode(empty).endswith("<|im_start|>assistant\n<|im_end|><|vision_start|>")


@pytest.mark.parametrize(
    "text",
    [
        "plain ASCII 0123456789 ~!@#$%^&*()",
        "tabs\tand\n\nlines  ",
        "çédille, Grüße",
        "日本語と한국어",
        "🟥➡️",
        "\x00\x7f",
    ],
)
def test_any_text_survives_encoding_and_decoding(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_captions_are_short_in_tokens(tokenizer):
    lengths = [len(tokenizer(dense).input_ids) for dense, _ in all_captions()]
    assert max(lengths) <= 14
    assert sum(lengths) / len(lengths) < 11


def test_the_tokenizer_script_writes_the_shipped_bytes_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["make_tiny_tokenizer.py", "--out", str(tmp_path)])
    runpy.run_path(str(SCRIPTS / "make_tiny_tokenizer.py"), run_name="__main__")
    shipped = asset_path("tiny_tokenizer")
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (shipped / name).read_bytes()
    again, before = (json.loads((p / "tokenizer_config.json").read_text()) for p in (tmp_path, shipped))
    assert again == before
