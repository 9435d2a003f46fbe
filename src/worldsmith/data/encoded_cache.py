"""Tensors on disk that a frozen encoder made, so that it makes each of them once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.files.atomic import replacing

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
STALE_SECONDS = 3600


class EncodedCache:
    """A folder of safetensors files of one tensor each.

    The key is a SHA-256 over everything that changes the tensor; a changed input gets another key, so that nothing is
    ever invalidated. Writing is atomic (a file appears whole or not at all). A damaged file is a miss: it is counted in
    `corrupt`, removed, and written anew. What cannot be read is a miss, what cannot be written is counted in
    `unwritten`, and either is said once: it only costs time, since the encoder runs again.
    """

    encoder: ClassVar[str]
    """What the fingerprint stands for, in keys."""
    tensor: ClassVar[str]
    """The tensor's name in its file."""
    what: ClassVar[str]
    """What is encoded, for people."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """`fingerprint` stands for the encoder: weights, config and precision."""
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
        """Key over the given JSON-able facts, the encoder's fingerprint and the format version."""
        facts = {"facts": everything, self.encoder: self.fingerprint, "format": FORMAT_VERSION}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def path_for(self, key: str) -> Path:
        # 256 sub-folders: a single folder with millions of entries is slow on most file systems.
        return self.folder / key[:2] / f"{key}.safetensors"

    def get(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor | None:
        """What was stored, or None. With `shape`, another one behind the first axis counts as damage."""
        from safetensors import SafetensorError, safe_open

        path = self.path_for(key)
        try:
            if not path.exists():
                return None
            with safe_open(path, framework="pt") as file:
                found: Tensor = file.get_tensor(self.tensor)
                stated = (file.metadata() or {}).get("crc32")
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(error)
            return None
        except SafetensorError as error:
            self._drop(path, str(error))
            return None
        if stated != checksum(found):
            self._drop(path, "the checksum does not match")
            return None
        if shape is not None and tuple(found.shape[1:]) != shape:
            self._drop(path, f"found the shape {tuple(found.shape)}, expected {shape} behind the first axis")
            return None
        return found

    def look_up(self, key: str, shape: tuple[int, ...]) -> tuple[Tensor | None, Literal["hit", "miss", "corrupt"]]:
        """What `get` finds, and what happened."""
        damaged = self.corrupt
        found = self.get(key, shape)
        return found, "hit" if found is not None else "miss" if self.corrupt == damaged else "corrupt"

    def put(self, key: str, encoded: Tensor) -> None:
        """Stores a tensor, if that is possible."""
        from safetensors.torch import save

        encoded = encoded.detach().cpu().contiguous()
        try:
            self._write(key, save({self.tensor: encoded}, metadata={"crc32": checksum(encoded)}))
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
                "the cache %s cannot be read or written (%s); %ss that it does not give are encoded each time",
                self.folder, error.strerror or error, self.what,
            )  # fmt: skip

    def _drop(self, path: Path, why: str) -> None:
        self.corrupt += 1
        log.warning("cached %s %s are damaged (%s); the %s is encoded again", self.tensor, path, why, self.what)
        with contextlib.suppress(OSError):  # another process was quicker, or the cache is read-only
            path.unlink()


def checksum(tensor: Tensor) -> str:
    """CRC-32 of the values; safetensors files have no checksum of their own."""
    import torch

    return f"{zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data):08x}"


def remove_stale(incoming: Path) -> None:
    """Removes what killed processes left half-written."""
    if incoming.is_dir():
        for path in incoming.iterdir():
            try:
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink()
            except FileNotFoundError:  # another process was quicker
                continue
