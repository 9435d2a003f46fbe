"""`WanVAE` gives exactly what diffusers gives, one clip at a time, and refuses what it cannot read."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest
import torch
from diffusers import AutoencoderKLWan

from worldsmith.models.video_vae.wan import WanFamilyVAE, WanVAE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=6,
        dim_mult=[1, 2, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_temporal=4,
        scale_factor_spatial=16,
        latents_mean=[0.1 * i for i in range(6)],
        latents_std=[0.5 + 0.1 * i for i in range(6)],
    )
    out = tmp_path_factory.mktemp("vae")
    vae.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def vae(folder):
    return WanVAE.Config(vae_path=str(folder), precision="float32").build()


def clip(frames=9, height=32, width=48, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, frames, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_encode_and_decode_equal_diffusers_with_the_documented_normalisation(folder, precision):
    dtype = getattr(torch, precision)
    reference = AutoencoderKLWan.from_pretrained(folder, torch_dtype=dtype).eval()
    ours = WanVAE.Config(vae_path=str(folder), precision=precision, encode_window=4).build()
    video = clip()
    mean = torch.tensor(reference.config.latents_mean, dtype=dtype).view(1, -1, 1, 1, 1)
    std = torch.tensor(reference.config.latents_std, dtype=dtype).view(1, -1, 1, 1, 1)
    with torch.no_grad():
        mu = reference.encode((video.float() / 127.5 - 1).to(dtype)[None]).latent_dist.mode()
        expected = ((mu - mean) * (1 / std))[0].float()
        pixels = reference.decode(expected.to(dtype)[None] / (1 / std) + mean).sample[0].float()
    latents = ours.encode(video)
    assert latents.dtype == torch.float32
    assert latents.shape == (6, 3, 2, 3)
    assert torch.equal(latents, expected)
    decoded = ours.decode(latents)
    assert decoded.dtype == torch.uint8
    assert decoded.shape == video.shape
    assert torch.equal(decoded, ((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8))


def test_latents_are_the_mean_and_do_not_change_from_call_to_call(vae):
    first = vae.encode(clip())
    torch.manual_seed(123)
    vae.encode(clip(frames=5, seed=1))
    assert torch.equal(vae.encode(clip()), first)


def test_the_first_latent_frames_do_not_see_later_frames(vae):
    whole, start = clip(frames=13), clip(frames=13)[:, :5]
    assert torch.allclose(vae.encode(whole)[:, :2], vae.encode(start), atol=1e-6)


def test_weights_are_frozen_and_in_the_asked_precision(folder):
    vae = WanVAE.Config(vae_path=str(folder)).build()
    assert {p.dtype for p in vae.model.parameters()} == {torch.bfloat16}
    assert not vae.model.training
    assert not any(p.requires_grad for p in vae.model.parameters())
    assert not vae.encode(clip(frames=1)).requires_grad
    assert vae.channels == 6


def test_a_vae_that_divides_clips_otherwise_is_refused(folder, tmp_path):
    """All that counts frames, pixels and tokens relies on 16 pixels and 4 frames."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "scale_factor_spatial": 8}))
    with pytest.raises(ValueError, match="8 pixels and 4 frames per latent, expected 16 and 4"):
        WanVAE.Config(vae_path=str(tmp_path)).build()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), 10**400, {}, None, "1"])
def test_deviations_of_latents_that_no_latents_can_have_are_refused(folder, tmp_path, value):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["latents_std"][3] = value
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"config\.json': latents_std: expected finite numbers above 0, found \["):
        WanVAE.Config(vae_path=str(tmp_path)).build()


def test_fingerprint_changes_with_weights_config_precision_and_window_only(folder, tmp_path):
    def fingerprint(path, precision="float32"):
        return WanVAE.Config(vae_path=str(path), precision=precision).build().fingerprint

    def changed(name, edit):
        path = tmp_path / name
        path.mkdir()
        for file in folder.iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        edit(path)
        return path

    def other_statistics(path):
        settings = json.loads((path / "config.json").read_text())
        settings["latents_mean"][0] += 1.0
        (path / "config.json").write_text(json.dumps(settings))

    def other_weights(path):
        model = AutoencoderKLWan.from_pretrained(folder)
        model.quant_conv.bias.data[0] += 1
        model.save_pretrained(path)

    base = fingerprint(folder)
    assert fingerprint(changed("same", lambda path: None)) == base
    others = [
        fingerprint(changed("statistics", other_statistics)),
        fingerprint(changed("weights", other_weights)),
        fingerprint(folder, "bfloat16"),
        WanVAE.Config(vae_path=str(folder), precision="float32", encode_window=8).build().fingerprint,
    ]
    assert len({base, *others}) == 5


def test_paths_that_hold_no_such_vae_are_refused_with_the_way_out(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"vae_path .*missing: no such folder"):
        WanVAE.Config(vae_path=str(tmp_path / "missing")).build()
    with pytest.raises(FileNotFoundError, match=r"vae_path: no config\.json in .*folder of a diffusers"):
        WanVAE.Config(vae_path=str(tmp_path)).build()
    settings = json.loads((folder / "config.json").read_text())
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings | {"_class_name": "AutoencoderKL"}))
    with pytest.raises(ValueError, match="contains a AutoencoderKL, expected AutoencoderKLWan"):
        WanVAE.Config(vae_path=str(tmp_path)).build()
    config.write_text(json.dumps(settings | {"latents_std": [1.0]}))
    with pytest.raises(ValueError, match=r"1 values in latents_std, expected z_dim = 6"):
        WanVAE.Config(vae_path=str(tmp_path)).build()
    config.write_text(json.dumps(settings))
    with pytest.raises(FileNotFoundError, match="no diffusion_pytorch_model"):
        WanVAE.Config(vae_path=str(tmp_path)).build()


def test_clips_and_latents_of_a_wrong_form_are_refused(vae):
    with pytest.raises(ValueError, match=r"uint8 video \[3, T, H, W\], found torch.float32"):
        vae.encode(clip().float())
    with pytest.raises(ValueError, match=r"4k\+1 frames, found 8; shorten to 5"):
        vae.encode(clip(frames=8))
    with pytest.raises(ValueError, match="multiples of 16, found 40x48"):
        vae.encode(clip(height=40))
    with pytest.raises(ValueError, match=r"expected latents \[6, t, h, w\], found \[48, 1, 2, 2\]"):
        vae.decode(torch.zeros(48, 1, 2, 2))


def test_config_compares_by_value_and_its_module_does_not_import_torch():
    config = WanVAE.Config(vae_path="x")
    assert copy.deepcopy(config) == config
    code = "import sys, worldsmith.models.video_vae.wan; print('torch' in sys.modules, 'diffusers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_vae_of_wan_2_1_has_cells_of_8_pixels_and_equals_diffusers(tmp_path):
    torch.manual_seed(0)
    statistics = {"latents_mean": [0.1, -0.2, 0.3, 0.0], "latents_std": [0.5, 1.5, 2.0, 1.0]}
    reference = AutoencoderKLWan(base_dim=8, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, **statistics)
    reference.save_pretrained(tmp_path / "vae")
    vae = WanFamilyVAE.Config(vae_path=str(tmp_path), precision="float32").build()
    video = clip(frames=9, height=24, width=40)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in statistics.values())
    with torch.no_grad():
        mu = reference.encode((video.float() / 127.5 - 1)[None]).latent_dist.mode()
    latents = vae.encode(video)
    assert latents.shape == (4, 3, 3, 5)
    torch.testing.assert_close(latents, ((mu - mean) / std)[0], atol=1e-5, rtol=1e-5)
    assert vae.decode(latents).shape == video.shape
    with pytest.raises(ValueError, match="8 pixels and 4 frames per latent, expected 16 and 4"):
        WanFamilyVAE.Config(vae_path=str(tmp_path), spatial_factor=16).check_files()


def test_memory_of_weights_is_freed_and_comes_back_with_the_same_latents(folder):
    vae = WanVAE.Config(vae_path=str(folder), precision="float32").build()
    before, vae.idle = vae.encode(clip()), 7
    assert vae.release()
    assert not vae.release()
    assert torch.equal(vae.encode(clip()), before)
    assert vae.idle == 0
