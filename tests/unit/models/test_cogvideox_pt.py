"""SAT's `3d-vae.pt`: the same VAE as a diffusers folder of its weights, with the same fingerprint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiny_cogvideox
import torch
from diffusers import AutoencoderKLCogVideoX

from worldsmith.models.video_vae.cogvideox import CogVideoXVAE, diffusers_to_sat, sat_to_diffusers

BACKWARDS = [
    (r"mid_block\.resnets\.0\.", "mid.block_1."),
    (r"mid_block\.resnets\.1\.", "mid.block_2."),
    (r"conv_shortcut", "nin_shortcut"),
    (r"down_blocks\.(\d)", r"down.\1"),
    (r"up_blocks\.(\d)", lambda m: f"up.{3 - int(m[1])}"),
    (r"downsamplers\.0", "downsample"),
    (r"upsamplers\.0", "upsample"),
    (r"resnets", "block"),
]
"""Written after the layout of SAT's classes, and not with the map under test."""


def as_sat_calls_it(name: str) -> str:
    for pattern, replacement in BACKWARDS:
        name = re.sub(pattern, replacement, name)
    return name


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small VAE twice: in `vae/`, and in `3d-vae.pt` with its `.json`."""
    root = tmp_path_factory.mktemp("vae")
    tiny_cogvideox.make_parts(root)
    model = AutoencoderKLCogVideoX.from_pretrained(root / "vae")
    state = {as_sat_calls_it(name): tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": {**state, "loss.logvar": torch.zeros(1)}}, root / "3d-vae.pt")
    settings = json.loads((root / "vae/config.json").read_text())
    del settings["scaling_factor"]
    (root / "3d-vae.json").write_text(json.dumps(settings))
    return root


def test_every_tensor_of_the_published_vae_has_its_name() -> None:
    with torch.device("meta"):
        names = list(AutoencoderKLCogVideoX().state_dict())
    native = {as_sat_calls_it(name): name for name in names}
    assert len(native) == len(names)
    assert {name: sat_to_diffusers(name) for name in native} == native
    assert {name: diffusers_to_sat(name) for name in names} == {name: sat for sat, name in native.items()}


def test_the_file_is_the_vae_of_the_folder(small: Path) -> None:
    folder = CogVideoXVAE.Config(vae_path=str(small / "vae"), precision="float32").build()
    file = CogVideoXVAE.Config(vae_path=str(small / "3d-vae.pt"), precision="float32", scaling_factor=0.7).build()
    clip = torch.randint(0, 256, (3, 9, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    assert torch.equal(file.encode(clip), folder.encode(clip))
    assert (file.fingerprint, file.scaling_factor) == (folder.fingerprint, folder.scaling_factor)


def test_what_does_not_fit_is_said(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"3d-vae.pt' does not state the scaling factor of latents"):
        CogVideoXVAE.Config(vae_path=str(small / "3d-vae.pt")).check_files()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        CogVideoXVAE.Config(vae_path=str(tmp_path / "no.pt"), scaling_factor=0.7).check_files()
    torch.save({"state_dict": {"encoder.strange": torch.zeros(1)}}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"is not a VAE of CogVideoX: 1 of 1 tensor names .* 'encoder.strange'"):
        _ = CogVideoXVAE.Config(vae_path=str(tmp_path / "a.pt"), scaling_factor=0.7).build().model
    torch.save(torch.load(small / "3d-vae.pt", weights_only=True), tmp_path / "b.pt")
    with pytest.raises(ValueError, match="does not match its config"):
        _ = CogVideoXVAE.Config(vae_path=str(tmp_path / "b.pt"), scaling_factor=0.7).build().model
