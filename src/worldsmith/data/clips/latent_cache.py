"""Latents on disk, so that a clip is encoded once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.data.content_mark import content_mark
from worldsmith.files.atomic import replacing

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.sample import VideoSample
    from worldsmith.data.video_file import Status

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
STALE_SECONDS = 3600


class LatentCache:
    """A folder of safetensors files, one per encoded window.

    The key is a SHA-256 over everything that changes the latents; a changed input gets another key, so that nothing is
    ever invalidated. Writing is atomic (a file appears whole or not at all). A damaged file is a miss: it is counted in
    `corrupt`, removed, and written anew. What cannot be read is a miss, what cannot be written is counted in
    `unwritten`, and either is said once: it only costs time, since the clip is encoded again.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """`fingerprint` stands for the VAE: weights, config and precision."""
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.corrupt = 0
        self.unwritten = 0
        self._said = False
        try:
            remove_stale(self.incoming)
            self._probe()
        except OSError as error:
            self._complain(error)

    @property
    def incoming(self) -> Path:
        """Where files are written before they get their name."""
        return self.folder / "incoming"

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
        try:
            if not path.exists():
                return None
            with safe_open(path, framework="pt") as file:
                latents: Tensor = file.get_tensor("latents")
                stated = (file.metadata() or {}).get("crc32")
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(error)
            return None
        except SafetensorError as error:
            self._drop(path, str(error))
            return None
        if stated != checksum(latents):
            self._drop(path, "the checksum does not match")
            return None
        if shape is not None and tuple(latents.shape[1:]) != shape:
            self._drop(path, f"found latents of shape {tuple(latents.shape)}, expected (t, h, w) = {shape}")
            return None
        return latents

    def look_up(self, key: str, shape: tuple[int, int, int]) -> tuple[Tensor | None, Literal["hit", "miss", "corrupt"]]:
        """What `get` finds, and what happened."""
        damaged = self.corrupt
        latents = self.get(key, shape)
        return latents, "hit" if latents is not None else "miss" if self.corrupt == damaged else "corrupt"

    def put(self, key: str, latents: Tensor) -> None:
        """Stores latents [C, t, h, w] as float32, if that is possible."""
        import torch
        from safetensors.torch import save

        latents = latents.detach().to("cpu", torch.float32).contiguous()
        try:
            self._write(key, save({"latents": latents}, metadata={"crc32": checksum(latents)}))
        except OSError as error:
            self.unwritten += 1
            self._complain(error)

    def _write(self, key: str, data: bytes) -> None:
        path = self.path_for(key)
        for folder in (self.incoming, path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        # Not durable: after a power cut the file may be empty, which the next get() notices.
        with replacing(path, within=self.incoming, durable=False) as incoming:
            incoming.write_bytes(data)

    def _probe(self) -> None:
        """Raises OSError when nothing can be written, before there is something to write."""
        self.incoming.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.incoming) as file:
            file.write(b"probe")

    def _complain(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            log.warning(
                "the latent cache %s cannot be read or written (%s); clips that it does not give are encoded each time",
                self.folder, error.strerror or error,
            )  # fmt: skip

    def _drop(self, path: Path, why: str) -> None:
        self.corrupt += 1
        log.warning("cached latents %s are damaged (%s); the clip is encoded again", path, why)
        with contextlib.suppress(OSError):  # another process was quicker, or the cache is read-only
            path.unlink()


def latents_of(sample: VideoSample, encode: Callable[[Tensor], Tensor], cache: LatentCache | None) -> Tensor:
    """The sample's latents [C, t, h, w], on whatever device: those that it brought, or encoded now and then kept."""
    if sample.latents is not None:
        return sample.latents
    if sample.video is None:
        raise ValueError(f"sample {sample.key} has neither latents nor a video")
    latents = encode(sample.video)
    if cache is not None and sample.cache_key is not None:
        cache.put(sample.cache_key, latents)
    return latents


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


def file_identity(status: Status, path: str, relative_path: str, mark: str = "") -> list[Any]:
    """What stands for a file in a key: relative path, size, modification time (ns) and `content_mark` or its `mark`.

    Not a hash of the whole content: it would read every clip in full at each access, which the cache is there to avoid.
    A rewritten file has a new time; a data set that is moved as a whole keeps its entries.
    """
    return [relative_path, status.st_size, status.st_mtime_ns, mark or content_mark(path)]
