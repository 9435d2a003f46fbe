"""Latents on disk, so that a clip is encoded once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
STALE_SECONDS = 3600


class LatentCache:
    """A folder of safetensors files, one per encoded window.

    The key is a SHA-256 over everything that changes the latents; a changed input gets another key, so that nothing is
    ever invalidated. Writing is atomic (a file appears whole or not at all). A damaged file is a miss: it is counted in
    `corrupt`, removed, and written anew.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """`fingerprint` stands for the VAE: weights, config and precision."""
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.corrupt = 0
        remove_stale(self.folder / "incoming")

    def key_for(self, **everything: Any) -> str:
        """Key over the given JSON-able facts, the VAE's fingerprint and the format version."""
        facts = {"facts": everything, "vae": self.fingerprint, "format": FORMAT_VERSION}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def path_for(self, key: str) -> Path:
        # 256 sub-folders: a single folder with millions of entries is slow on most file systems.
        return self.folder / key[:2] / f"{key}.safetensors"

    def get(self, key: str, shape: tuple[int, int, int] | None = None) -> Tensor | None:
        """The latents, float32 [C, t, h, w], or None. With `shape` = (t, h, w) another shape counts as damage."""
        from safetensors import SafetensorError, safe_open

        path = self.path_for(key)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                latents: Tensor = file.get_tensor("latents")
                stated = (file.metadata() or {}).get("crc32")
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError) as error:
            self._drop(path, str(error))
            return None
        if stated != checksum(latents):
            self._drop(path, "the checksum does not match")
            return None
        if shape is not None and tuple(latents.shape[1:]) != shape:
            self._drop(path, f"found latents of shape {tuple(latents.shape)}, expected (t, h, w) = {shape}")
            return None
        return latents

    def put(self, key: str, latents: Tensor) -> None:
        """Stores latents [C, t, h, w] as float32."""
        import torch
        from safetensors.torch import save

        latents = latents.detach().to("cpu", torch.float32).contiguous()
        # No fsync: after a power cut the file may be empty, which the next get() notices.
        incoming = self.folder / "incoming" / f"{key}.{os.getpid()}.{time.monotonic_ns()}"
        incoming.parent.mkdir(parents=True, exist_ok=True)
        incoming.write_bytes(save({"latents": latents}, metadata={"crc32": checksum(latents)}))
        path = self.path_for(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        incoming.replace(path)

    def _drop(self, path: Path, why: str) -> None:
        self.corrupt += 1
        log.warning("cached latents %s are damaged (%s); the clip is encoded again", path, why)
        path.unlink(missing_ok=True)


def checksum(latents: Tensor) -> str:
    """CRC-32 of the values; safetensors files have no checksum of their own."""
    return f"{zlib.crc32(latents.contiguous().numpy().tobytes()):08x}"


def remove_stale(incoming: Path) -> None:
    """Removes what killed processes left half-written."""
    if incoming.is_dir():
        for path in incoming.iterdir():
            try:
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink()
            except FileNotFoundError:  # another process was quicker
                continue


def file_identity(path: str, relative_path: str) -> list[Any]:
    """What stands for a file in a key: relative path, size and modification time (ns).

    Not a hash of the content: it would read every clip in full at each access, which the cache is there to avoid. A
    rewritten file has a new time; a data set that is moved as a whole keeps its entries. Raises OSError.
    """
    stat = os.stat(path)
    return [relative_path, stat.st_size, stat.st_mtime_ns]
