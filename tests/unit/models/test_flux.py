"""FLUX's component: texts of both encoders against the pipeline's, the schedule of its sizes, what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_flux
import torch

from worldsmith.config import WrongValueError
from worldsmith.families.flux.architecture import NetworkConfig, tiny
from worldsmith.families.flux.model import FluxDefaults, FluxGenerator
from worldsmith.families.flux.text_encoder import CLIP_TOKENS, PLACES, FluxTextEncoder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    tiny_flux.make_parts(folder)
    return folder


def test_a_caption_is_read_by_both_encoders_as_in_the_pipeline(parts: Path) -> None:
    from diffusers import FluxPipeline

    config = FluxTextEncoder.Config(path=str(parts), max_length=16, precision="float32")
    encoder = FluxTextEncoder(config)
    captions = ("a clip", "", "a caption that is far longer than sixteen letters " * 3)
    ids = [encoder.reader(caption) for caption in captions]
    found = encoder.states([*ids, ids[2][: config.caption_ids], ()], "cpu")
    judge = FluxPipeline(
        None, None, encoder.clip, encoder.clip_tokenizer, encoder.encoder, encoder.tokenizer, transformer=None
    )
    states, pooled, _ = judge.encode_prompt(list(captions), max_sequence_length=16)
    for own, wanted, first in zip(found, (*states, states[2], states[1]), (*pooled, pooled[2], pooled[1]), strict=True):
        torch.testing.assert_close(own[0], first)
        torch.testing.assert_close(own[1:], wanted)
    assert len(ids[2]) > config.caption_ids == CLIP_TOKENS + 16
    before = encoder.fingerprint
    assert encoder.release()
    assert encoder.clip is None
    with (parts / "text_encoder/config.json").open("a") as file:
        file.write("\n")
    assert FluxTextEncoder(config).fingerprint != before


def test_a_pipeline_with_one_encoder_is_refused_by_name(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "text_encoder").symlink_to(parts / "text_encoder")
    (tmp_path / "tokenizer").symlink_to(parts / "tokenizer")
    with pytest.raises(FileNotFoundError, match="text_encoder_2/ and tokenizer_2/"):
        FluxTextEncoder.Config(path=str(tmp_path)).check_files()


@pytest.mark.parametrize("tokens", [16, 256, 1024, 4096, 5000])
def test_the_shift_grows_with_the_size_as_in_the_pipeline(tokens: int) -> None:
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    assert FluxDefaults().log_shift(tokens) == calculate_shift(tokens)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"in_channels": 6}, "in_channels"),
        ({"axes_dims_rope": [4, 6, 8]}, "axes_dims_rope"),
        ({"axes_dims_rope": [16]}, "axes_dims_rope"),
        ({"axes_dims_rope": [5, 5, 6]}, "axes_dims_rope"),
        ({"pooled_projection_dim": 65}, "pooled_projection_dim"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], named: str) -> None:
    network = tiny()
    for name, value in changes.items():
        setattr(network, name, value)
    with pytest.raises(WrongValueError, match=named):
        network.check()


def test_guidance_for_a_network_without_it_is_refused() -> None:
    config = FluxGenerator.Config(network=NetworkConfig(guidance_embeds=False), training_guidance=3.5)
    with pytest.raises(WrongValueError, match="training_guidance"):
        config.check()


def test_the_files_of_both_text_encoders_are_downloaded() -> None:
    (patterns,) = PLACES
    for encoder, tokenizer in (("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2")):
        assert {f"{encoder}/config.json", f"{encoder}/*.safetensors", f"{tokenizer}/tokenizer_config.json"} < {
            *patterns
        }
    assert patterns[0] == "text_encoder/config.json"
