"""Names of models: local folders, the Hugging Face cache, and the hub, in that order."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
from hub_server import COMMIT, serving_hub
from huggingface_hub import constants
from huggingface_hub.utils import HFValidationError, validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer, find_tokenizer
from worldsmith.models.model_files import SCHEME, HubName, hub_name, local_folder
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.models.video_vae.wan_files import find_vae

FILES = ("*.safetensors", "*.json")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test, and a hub that refuses every connection."""
    folder = tmp_path / "hub_cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return folder


def add_to_cache(
    cache: Path, repo: str, files: dict[str, str], *, revision: str = "main", commit: str = COMMIT
) -> Path:
    """The layout that huggingface_hub writes: blobs, links to them, and a ref."""
    home = cache / f"models--{repo.replace('/', '--')}"
    (home / "refs").mkdir(parents=True, exist_ok=True)
    (home / "blobs").mkdir(exist_ok=True)
    (home / "refs" / revision).write_text(commit)
    for index, (name, text) in enumerate(files.items()):
        blob = home / "blobs" / f"{commit[:8]}{index}"
        blob.write_text(text)
        path = home / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(blob)
    return home / "snapshots" / commit


def test_local_paths_come_first_and_need_no_network(tmp_path: Path) -> None:
    """A folder and a file, absolute or relative, also one that looks like a repository's name."""
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "vae.pth").write_bytes(b"")
    assert local_folder(str(tmp_path / "org")) == tmp_path / "org"
    assert local_folder("org/name") == Path("org/name")
    assert local_folder("vae.pth") == Path("vae.pth")


def test_the_cache_is_used_without_a_network(cache: Path) -> None:
    """By name, by revision, by folder and by file in the repository; the path leads to the files."""
    snapshot = add_to_cache(cache, "org/name", {"model.safetensors": "m", "vae/config.json": "{}", "vae.pth": "v"})
    other = add_to_cache(cache, "org/name", {"model.safetensors": "old"}, revision="v1", commit="f" * 40)
    assert local_folder("org/name", file_patterns=FILES) == snapshot
    assert local_folder("hf://org/name", file_patterns=FILES) == snapshot
    assert local_folder(str(Path("hf://org/name")), file_patterns=FILES) == snapshot
    assert (local_folder("org/name@v1", file_patterns=FILES) / "model.safetensors").read_text() == "old"
    assert local_folder(f"org/name@{'f' * 40}", file_patterns=FILES) == other
    assert local_folder("hf://org/name/vae", file_patterns=("config.json",)) == snapshot / "vae"
    assert local_folder("hf://org/name/vae.pth").read_text() == "v"


def test_a_cache_entry_that_lacks_files_is_not_taken(cache: Path) -> None:
    """Without weights, or with an index whose shards are missing, the hub is asked (and here cannot be reached)."""
    add_to_cache(cache, "org/text", {"tokenizer.json": "{}"})
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    part = {"model.safetensors.index.json": index, "model-1.safetensors": ""}
    add_to_cache(cache, "org/part", part)
    for name in ("org/text", "org/part"):
        with pytest.raises(FileNotFoundError, match="cannot be reached"):
            local_folder(name, file_patterns=FILES)
    snapshot = add_to_cache(cache, "org/whole", {**part, "model-2.safetensors": ""})
    assert local_folder("org/whole", file_patterns=FILES) == snapshot


def test_a_folder_named_like_a_cached_repository_is_said(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is used, and hf:// names the other one; without a namesake nothing is said."""
    (tmp_path / "org" / "name").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        local_folder("org/name", file_patterns=FILES)
        assert not caplog.records
        snapshot = add_to_cache(cache, "org/name", {"model.safetensors": ""})
        assert local_folder("org/name", file_patterns=FILES) == Path("org/name")
    assert "Write hf://org/name for the repository" in caplog.text
    assert local_folder("hf://org/name", file_patterns=FILES) == snapshot


def test_what_is_nowhere_says_the_three_places_within_seconds(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable hub, offline mode, and paths that no repository can have."""
    start = time.monotonic()
    with pytest.raises(FileNotFoundError) as caught:
        local_folder("org/name", field="checkpoint.load_path")
    assert time.monotonic() - start < 10
    message = str(caught.value)
    assert message.startswith("checkpoint.load_path org/name: looked for a local folder 'org/name'")
    assert str(cache) in message
    assert "http://127.0.0.1:9 cannot be reached" in message
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE is set"):
        local_folder("org/name")
    for path in ("/no/where", "./org/name", "a/b/c", "name", "org/na--me"):
        with pytest.raises(FileNotFoundError, match="no such folder"):
            local_folder(path)


def test_files_come_from_the_hub_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a server that speaks the hub's protocol: only the patterns are fetched, and then the cache serves."""
    content = {"config.json": b"{}", "model.safetensors": b"weights", "extra.bin": b"no"}
    with serving_hub({"org/name": content}, monkeypatch, cache) as hub:
        folder = local_folder("org/name", file_patterns=FILES)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    count = len(hub.asked)
    assert local_folder("org/name", file_patterns=FILES) == folder
    assert len(hub.asked) == count


parts = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_]{0,6}", fullmatch=True)


@given(org=parts, name=parts, revision=st.none() | parts, inner=st.lists(parts, max_size=2))
def test_every_hub_name_reads_back(org: str, name: str, revision: str | None, inner: list[str]) -> None:
    """The text of a hub name is read back as that name; only hf:// reaches into a repository."""
    hub = HubName(f"{org}/{name}", revision, "/".join(inner))
    assert hub_name(f"{SCHEME}{hub}") == hub
    assert hub_name(str(hub)) == (None if inner else hub)


@given(st.text(max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = hub_name(text)
    assert found is None or found.repo.count("/") == 1


@pytest.mark.parametrize("name", ["org/name.git", "org/name.", "org/name-", "org/a--b", "org/a..b"])
def test_names_that_the_hub_rejects_are_no_hub_names(name: str) -> None:
    with pytest.raises(HFValidationError):
        validate_repo_id(name)
    assert hub_name(name) is None


@pytest.mark.parametrize(
    ("name", "repo"),
    [
        ("Cosmos3-Edge", "nvidia/Cosmos3-Edge"),
        ("CogVideoX1.5-5B-I2V", "zai-org/CogVideoX1.5-5B-I2V"),
        ("FLUX.1-schnell", "black-forest-labs/FLUX.1-schnell"),
        ("LTX-Video", "Lightricks/LTX-Video"),
        ("Wan2.2-TI2V-5B", "Wan-AI/Wan2.2-TI2V-5B-Diffusers"),
        ("Wan2.2-TI2V", None),
        ("", None),
    ],
)
def test_short_names_are_declared_by_the_families(name: str, repo: str | None) -> None:
    """They are known before a model of the family is imported."""
    assert hub_name(name) == (None if repo is None else HubName(repo, None, ""))


def test_a_short_name_leads_to_the_parts_of_a_pipeline(cache: Path, tmp_path: Path) -> None:
    """Of a released model's repository the VAE and the tokenizer are found in their subfolders."""
    vae = {"_class_name": "AutoencoderKLWan", "scale_factor_spatial": 16, "scale_factor_temporal": 4}
    settings = json.dumps({**vae, "z_dim": 1, "latents_mean": [0.0], "latents_std": [1.0]})
    files = {"vae/config.json": settings, "vae/diffusion_pytorch_model.safetensors": "x"}
    snapshot = add_to_cache(cache, "nvidia/Cosmos3-Nano", {**files, "text_tokenizer/tokenizer_config.json": "{}"})
    assert find_vae("Cosmos3-Nano") == snapshot / "vae"
    assert find_tokenizer("Cosmos3-Nano") == snapshot / "text_tokenizer"
    WanVAE.Config(vae_path="Cosmos3-Nano").check_files()
    TextTokenizer.Config(path="Cosmos3-Nano").check_files()
    (tmp_path / "Cosmos3-Nano").mkdir()  # a folder of that name comes first
    with pytest.raises(FileNotFoundError, match=r"no tokenizer_config.json in .Cosmos3-Nano.; use a folder"):
        TextTokenizer.Config(path="Cosmos3-Nano").check_files()


def test_a_tokenizer_beside_a_repositorys_weights_is_found_too(cache: Path) -> None:
    snapshot = add_to_cache(cache, "org/model", {"tokenizer_config.json": "{}", "model.safetensors": "x"})
    assert find_tokenizer("org/model") == snapshot


def test_the_home_of_nobody_is_a_path_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="~nobody_of_this_name/model"):
        local_folder("~nobody_of_this_name/model", file_patterns=["*"], field="model")
