from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from worldsmith.data.latent_cache import LatentCache, file_identity


@pytest.fixture
def cache(tmp_path: Path) -> LatentCache:
    return LatentCache(tmp_path / "cache", "vae-1")


def test_what_is_stored_comes_back_bit_for_bit(cache: LatentCache) -> None:
    latents = torch.randn(48, 5, 4, 4)
    latents[0, 0, 0, 0] = float("nan")
    key = cache.key_for(a=1)
    assert cache.get(key) is None
    cache.put(key, latents)
    assert torch.equal(cache.get(key, (5, 4, 4)).view(torch.int32), latents.view(torch.int32))
    assert cache.corrupt == 0
    assert cache.path_for(key).parent.name == key[:2]


def test_each_fact_and_the_vae_change_the_key(tmp_path: Path, cache: LatentCache) -> None:
    base = {"file": ["a.mp4", 10, 20], "window": [0, 16, 1], "frames": [0, 1, 17], "size": [64, 64]}
    variants = [
        {}, {"file": ["b.mp4", 10, 20]}, {"file": ["a.mp4", 11, 20]}, {"file": ["a.mp4", 10, 21]},
        {"window": [0, 15, 1]},
        {"frames": [0, 2, 17]}, {"frames": [1, 1, 17]}, {"frames": [0, 1, 13]}, {"size": [64, 96]},
    ]  # fmt: skip
    keys = [cache.key_for(**{**base, **v}) for v in variants] + [LatentCache(tmp_path, "vae-2").key_for(**base)]
    assert len(set(keys)) == len(keys)
    assert cache.key_for(**base) == LatentCache(tmp_path / "elsewhere", "vae-1").key_for(**dict(reversed(base.items())))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_a_damaged_file_is_a_miss_that_is_counted_and_can_be_written_anew(cache: LatentCache, damage: str) -> None:
    """A flipped bit in the values included, which the file format itself does not notice."""
    latents = torch.randn(48, 2, 4, 4)
    key = cache.key_for(a=1)
    cache.put(key, latents)
    path = cache.path_for(key)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-100]), "empty": b"", "text": b"hello"}[damage])
    assert cache.get(key) is None
    assert cache.corrupt == 1
    cache.put(key, latents)
    assert torch.equal(cache.get(key), latents)


def test_another_shape_than_expected_is_damage(cache: LatentCache) -> None:
    key = cache.key_for(a=1)
    cache.put(key, torch.zeros(48, 2, 4, 4))
    assert cache.get(key, (2, 4, 6)) is None
    assert cache.corrupt == 1


def test_a_write_that_fails_leaves_nothing_visible(cache: LatentCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between writing and renaming: no file under the key, and old leftovers are swept later."""
    key = cache.key_for(a=1)

    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        cache.put(key, torch.zeros(48, 1, 2, 2))
    assert cache.get(key) is None
    (left,) = (cache.folder / "incoming").iterdir()
    LatentCache(cache.folder, "vae-1")
    assert left.exists()
    os.utime(left, (time.time() - 7200,) * 2)
    LatentCache(cache.folder, "vae-1")
    assert not left.exists()


def test_a_rewritten_file_has_another_identity_a_moved_one_has_not(tmp_path: Path) -> None:
    file = tmp_path / "a.mp4"
    file.write_bytes(b"1")
    before = file_identity(str(file), "a.mp4")
    moved = file.rename(tmp_path / "b.mp4")
    assert file_identity(str(moved), "a.mp4") == before
    os.utime(moved, ns=(1, 1))
    assert file_identity(str(moved), "a.mp4") != before
