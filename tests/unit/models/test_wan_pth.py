"""`Wan2.2_VAE.pth`: right names, no code run, and the same VAE as a diffusers folder of its weights."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan

from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.models.video_vae.wan_files import RELEASED, find_vae, released_to_diffusers

# The map backwards, in an order in which earlier rules cannot spoil later ones; written against the layout of both
# classes and not with the map under test.
BACKWARDS = [
    (r"^quant_conv\.", "conv1."),
    (r"^post_quant_conv\.", "conv2."),
    (r"\.conv_in\.", ".conv1."),
    (r"\.norm_out\.", ".head.0."),
    (r"\.conv_out\.", ".head.2."),
    (r"\.mid_block\.resnets\.0\.", ".middle.0."),
    (r"\.mid_block\.attentions\.0\.", ".middle.1."),
    (r"\.mid_block\.resnets\.1\.", ".middle.2."),
    (r"\.down_blocks\.(\d)\.resnets\.(\d)\.", r".downsamples.\1.downsamples.\2."),
    (r"\.down_blocks\.(\d)\.downsampler\.", r".downsamples.\1.downsamples.RESAMPLE."),
    (r"\.up_blocks\.(\d)\.resnets\.(\d)\.", r".upsamples.\1.upsamples.\2."),
    (r"\.up_blocks\.(\d)\.upsampler\.", r".upsamples.\1.upsamples.RESAMPLE."),
    (r"(samples\.\d|middle\.[02])\.norm1\.", r"\1.residual.0."),
    (r"(samples\.\d|middle\.[02])\.conv1\.", r"\1.residual.2."),
    (r"(samples\.\d|middle\.[02])\.norm2\.", r"\1.residual.3."),
    (r"(samples\.\d|middle\.[02])\.conv2\.", r"\1.residual.6."),
    (r"\.conv_shortcut\.", ".shortcut."),
]
SMALL = RELEASED | {"base_dim": 8, "decoder_base_dim": 8, "z_dim": 6, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1}
SMALL |= {"latents_mean": [0.1 * i for i in range(6)], "latents_std": [0.5 + 0.1 * i for i in range(6)]}


def native_name(name: str, blocks: int) -> str:
    """The released file's name of a diffusers parameter, for a VAE with so many residual blocks per stage."""
    for pattern, replacement in BACKWARDS:
        name = re.sub(pattern, replacement, name)
    resampler = blocks if name.startswith("encoder") else blocks + 1  # the decoder has one residual block more
    return name.replace("RESAMPLE", str(resampler))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A folder with a small VAE twice: `diffusers/`, and `Wan2.2_VAE.pth` in native names with its `.json`."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("vae")
    vae = AutoencoderKLWan.from_config(SMALL)
    with torch.no_grad():
        for p in vae.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    vae.save_pretrained(root / "diffusers")
    torch.save({native_name(k, 1): v for k, v in vae.state_dict().items()}, root / "Wan2.2_VAE.pth")
    (root / "Wan2.2_VAE.json").write_text(json.dumps(SMALL))
    return root


def test_every_tensor_of_the_released_vae_has_its_name_and_704_million_parameters_are_there():
    with torch.device("meta"):
        vae = AutoencoderKLWan.from_config(RELEASED)
    names = list(vae.state_dict())
    assert sum(p.numel() for p in vae.parameters()) == pytest.approx(704.69e6, abs=0.01e6)
    native = {native_name(name, 2): name for name in names}
    assert len(native) == len(names)
    assert {name: released_to_diffusers(name) for name in native} == native


@pytest.mark.parametrize(
    ("native", "diffusers"),
    [
        ("encoder.conv1.weight", "encoder.conv_in.weight"),
        ("encoder.downsamples.0.downsamples.1.residual.6.bias", "encoder.down_blocks.0.resnets.1.conv2.bias"),
        ("encoder.downsamples.2.downsamples.2.time_conv.weight", "encoder.down_blocks.2.downsampler.time_conv.weight"),
        ("encoder.downsamples.1.downsamples.0.shortcut.weight", "encoder.down_blocks.1.resnets.0.conv_shortcut.weight"),
        ("encoder.middle.1.norm.gamma", "encoder.mid_block.attentions.0.norm.gamma"),
        ("encoder.middle.2.residual.3.gamma", "encoder.mid_block.resnets.1.norm2.gamma"),
        ("encoder.head.0.gamma", "encoder.norm_out.gamma"),
        ("conv1.weight", "quant_conv.weight"),
        ("conv2.bias", "post_quant_conv.bias"),
        ("decoder.upsamples.0.upsamples.2.residual.0.gamma", "decoder.up_blocks.0.resnets.2.norm1.gamma"),
        ("decoder.upsamples.1.upsamples.3.resample.1.weight", "decoder.up_blocks.1.upsampler.resample.1.weight"),
        ("decoder.head.2.weight", "decoder.conv_out.weight"),
        ("encoder.downsamples.0.residual.0.gamma", None),
        ("encoder.upsamples.0.upsamples.0.residual.0.gamma", None),
        ("encoder.middle.1.residual.0.gamma", None),
        ("model.conv1.weight", None),
        ("encoder.conv1.weight.extra", None),
    ],
)
def test_names_of_the_published_table(native, diffusers):
    assert released_to_diffusers(native) == diffusers


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_file_and_folder_of_the_same_weights_are_the_same_vae(small, precision):
    """Equal bits of latents and pixels, and one fingerprint: a latent cache serves both."""
    from_file = WanVAE.Config(vae_path=str(small / "Wan2.2_VAE.pth"), precision=precision).build()
    from_folder = WanVAE.Config(vae_path=str(small / "diffusers"), precision=precision).build()
    video = torch.randint(0, 256, (3, 9, 32, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    latents = from_file.encode(video)
    assert latents.abs().mean() > 0.1
    assert torch.equal(latents, from_folder.encode(video))
    assert torch.equal(from_file.decode(latents), from_folder.decode(latents))
    assert from_file.fingerprint == from_folder.fingerprint
    assert {p.dtype for p in from_file.model.parameters()} == {getattr(torch, precision)}


def test_a_folder_with_the_file_or_with_a_pipeline_is_enough(small, tmp_path):
    assert find_vae(str(small)) == small / "Wan2.2_VAE.pth"
    (tmp_path / "config.json").write_text('{"_class_name": "WanModel"}')
    (tmp_path / "vae").symlink_to(small / "diffusers")
    assert find_vae(str(tmp_path)) == tmp_path / "vae"


def cache_repository(home: Path, name: str, files: dict[str, Path]) -> None:
    """A repository in the layout of the Hugging Face cache."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("a" * 40)
    for inner, file in files.items():
        place = repository / "snapshots" / ("a" * 40) / inner
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file)


def test_repositories_in_the_cache_are_found_in_their_three_layouts(small, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = {file.name: file for file in (small / "diffusers").iterdir()}
    cache_repository(tmp_path, "org/pipeline", {f"vae/{name}": file for name, file in folder.items()})
    cache_repository(tmp_path, "org/file", {"Wan2.2_VAE.pth": small / "Wan2.2_VAE.pth"})
    cache_repository(tmp_path, "org/alone", folder)
    assert find_vae("org/pipeline").name == "vae"
    assert find_vae("hf://org/pipeline/vae").name == "vae"
    assert find_vae("org/file").name == "Wan2.2_VAE.pth"
    assert find_vae("hf://org/file/Wan2.2_VAE.pth").name == "Wan2.2_VAE.pth"
    assert (find_vae("org/alone") / "config.json").is_file()
    with pytest.raises(FileNotFoundError, match="vae_path org/nothing"):
        find_vae("org/nothing")


class Bomb:
    """A pickled object that makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("archive", [True, False])
def test_a_file_with_code_is_refused_and_the_code_does_not_run(small, tmp_path, archive):
    path, exploded = tmp_path / "Wan2.2_VAE.pth", tmp_path / "exploded"
    torch.save({"conv1.weight": torch.zeros(1), "x": Bomb(exploded)}, path, _use_new_zipfile_serialization=archive)
    with pytest.raises(ValueError, match=r"Wan2\.2_VAE\.pth' (contains more than tensors|cannot be read)"):
        WanVAE.Config(vae_path=str(path)).build()
    assert not exploded.exists()


def damaged(small: Path) -> dict[str, tuple[bytes, str]]:
    """Files that are no such VAE, and what is said about them."""

    def saved(content) -> bytes:
        file = io.BytesIO()
        torch.save(content, file)
        return file.getvalue()

    state = torch.load(small / "Wan2.2_VAE.pth", weights_only=True)
    first = next(iter(state))
    renamed = {("other" if name == first else name): value for name, value in state.items()}
    return {
        "cut": ((small / "Wan2.2_VAE.pth").read_bytes()[:5000], "cannot be read as PyTorch weights"),
        "empty": (b"", "cannot be read as PyTorch weights"),
        "text": (b"not weights", "cannot be read as PyTorch weights"),
        "list": (saved([torch.zeros(1)]), "no mapping of names to tensors"),
        "nested": (saved({"weights": state}), "no mapping of names to tensors"),
        "other names": (saved(renamed), "1 of .* names are unknown, such as 'other'"),
        "missing": (saved({k: v for k, v in state.items() if k != first}), "1 tensors missing, 0 unexpected"),
        "shape": (saved(state | {first: torch.zeros(2)}), r"1 with another shape .*\[2\] instead of"),
    }


def test_files_that_do_not_hold_the_vae_are_refused_with_what_is_wrong(small, tmp_path):
    (tmp_path / "vae.json").write_text(json.dumps(SMALL))
    path = tmp_path / "vae.pth"
    for content, message in damaged(small).values():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            WanVAE.Config(vae_path=str(path)).build()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        WanVAE.Config(vae_path="some/Wan2.2_VAE.pth").build()


def test_a_file_without_its_json_is_read_with_the_released_config(small, tmp_path):
    (tmp_path / "Wan2.2_VAE.pth").symlink_to(small / "Wan2.2_VAE.pth")
    with pytest.raises(ValueError, match=r"does not match its config.*config of the released VAE"):
        WanVAE.Config(vae_path=str(tmp_path / "Wan2.2_VAE.pth")).build()
