"""A VAE or an image encoder of another network is refused with what was expected, and the tiny variants are planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_ltx

from worldsmith.cli.main import main
from worldsmith.config.errors import UserError


def test_a_vae_with_other_latent_channels_is_refused(tmp_path: Path) -> None:
    config = tiny_ltx.tiny_config(tiny_ltx.make_world(tmp_path, clips=1)).model.config
    assert config.build(device="meta").vae.channels == 128
    network = replace(config.network, in_channels=16, out_channels=16)
    with pytest.raises(UserError, match=r"vae_path: expected a VAE of 16 latent channels, .* found 128 in .*pipeline"):
        replace(config, network=network).build(device="meta").vae  # noqa: B018


@pytest.fixture
def no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LTX_PATH", "WAN_PATH", "DATASET_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert main(["dataset", "moving-shapes", str(tmp_path / "clips"), "--clips", "2", "--val-clips", "0"]) == 0
    monkeypatch.setenv("DATASET_PATH", str(tmp_path / "clips"))


@pytest.mark.usefixtures("no_weights")
def test_a_tiny_variant_is_planned_with_the_released_vae() -> None:
    assert main(["plan", "ltx_video_tiny", "--gpus", "1", "--gpu", "h200"]) == 0


@pytest.mark.usefixtures("no_weights")
def test_an_image_encoder_with_other_channels_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "wan21_i2v_tiny", "--gpus", "1", "--gpu", "h200"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "image_encoder.path: expected an encoder of 16 channels" in error
    assert "found 1280. Use the pipeline that the network belongs to" in error
