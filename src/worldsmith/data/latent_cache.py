"""Caches on disk for the outputs of frozen encoders: latents of clips and hidden states of captions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.data.content_fingerprint import file_fingerprint
from worldsmith.files.atomic import replacing
from worldsmith.files.errors import SECRETS
from worldsmith.files.lines import read_bytes
from worldsmith.files.remote import file_exists, is_remote, join_address, remote_facts
from worldsmith.files.remote_folder import write_remote

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.frame_selection import FrameSelection
    from worldsmith.data.clips.window_index import Window
    from worldsmith.data.video_decoder import FileStatus

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
STALE_SECONDS = 3600
TEXT_FOLDER = "text"
"""Name of the subfolder of the latent cache folder that contains the text cache."""


class EncodedCache:
    """Cache of encoded tensors in a folder or an object store, with one file `KEY[:2]/KEY.safetensors` per tensor.

    The key is a SHA-256 of everything that changes the tensor: a changed input gets another key, so entries are never
    invalidated. Files are written atomically. A damaged file is a cache miss: it is counted in `corrupt`, removed and
    written again. An unreadable file is a miss, and a failed write is counted in `unwritten`; the first such error is
    logged. Errors only cost time, since the encoder runs again.

    Args:
        folder: Path of the folder, which is created if it does not exist, or address of a remote folder, whose files
            are read through the cache of remote files.
        fingerprint: Checksum of the encoder's weights, config and precision.
    """

    encoder: ClassVar[str]
    """Name of the encoder, used in keys."""
    tensor: ClassVar[str]
    """Name of the tensor in its file."""
    what: ClassVar[str]
    """Name of the encoded input, for messages."""
    expects_hits: bool = False
    """Whether the run has filled the cache before the training: an input that is encoded now is late."""
    late: int = 0
    """Number of inputs that were encoded although `expects_hits` was set; the first one is logged."""

    def __init__(self, folder: Path | str, fingerprint: str) -> None:
        """Opens the cache in `folder` for an encoder with this `fingerprint`, and removes stale temporary files."""
        self.folder = str(folder).removeprefix("file://")
        self.fingerprint = fingerprint
        self.corrupt = 0
        self.unwritten = 0
        self._logged = False
        try:
            self._probe()
        except OSError as error:
            self._log_first_error(error)

    @property
    def incoming(self) -> Path:
        """Folder in which files are written before their atomic rename."""
        return Path(self.folder, "incoming")

    def key_for(self, **everything: Any) -> str:
        """Returns the cache key (SHA-256, 64 hex digits) of an input that the JSON values `everything` identify.

        The encoder's fingerprint and `FORMAT_VERSION` are hashed too.
        """
        facts = {"facts": everything, self.encoder: self.fingerprint, "format": FORMAT_VERSION}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def path_for(self, key: str) -> str:
        """Returns the path or address of the file of a key."""
        # 256 subfolders: a single folder with millions of entries is slow on most file systems.
        return join_address(self.folder, f"{key[:2]}/{key}.safetensors")

    def has(self, key: str) -> bool:
        return file_exists(self.path_for(key))

    def get(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor | None:
        """Returns the cached tensor of a key on the CPU; None if it is missing, unreadable or damaged.

        Args:
            key: Key of the entry.
            shape: Expected shape without the first dimension; another shape counts as damage. None: any shape.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self.path_for(key)
        try:
            data = read_bytes(path)
            found = load(data)[self.tensor]
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            stated = header.get("__metadata__", {}).get("crc32")
        except FileNotFoundError:
            return None
        except OSError as error:
            self._log_first_error(error)
            return None
        except (SafetensorError, KeyError) as error:
            self._remove_damaged(path, str(error))
            return None
        if stated != checksum(found):
            self._remove_damaged(path, "the checksum does not match")
            return None
        if shape is not None and tuple(found.shape[1:]) != shape:
            self._remove_damaged(path, f"expected shape {('*', *shape)}, found {tuple(found.shape)}")
            return None
        return found

    def look_up(self, key: str, shape: tuple[int, ...]) -> tuple[Tensor | None, Literal["hit", "miss", "corrupt"]]:
        """Returns (cached tensor or None, outcome): "hit", "miss", or "corrupt" for a damaged file that was removed."""
        damaged = self.corrupt
        found = self.get(key, shape)
        return found, "hit" if found is not None else "miss" if self.corrupt == damaged else "corrupt"

    def put(self, key: str, encoded: Tensor) -> None:
        """Writes a tensor to the cache in its dtype; the first failed write is logged, later ones are only counted."""
        from safetensors.torch import save

        self.late += self.expects_hits
        if self.late == 1:
            log.warning(
                "a %s is encoded next to the network, since it was not encoded before the training; the following ones "
                "are only counted (cache_late). `worldsmith encode --passes N` encodes N epochs before a run",
                self.what,
            )
        encoded = encoded.detach().cpu().contiguous()
        try:
            self._write(key, save({self.tensor: encoded}, metadata={"crc32": checksum(encoded)}))
        except OSError as error:
            self.unwritten += 1
            self._log_first_error(error)

    def _write(self, key: str, data: bytes) -> None:
        address = self.path_for(key)
        if is_remote(address):
            write_remote(address, data)
            return
        path = Path(address)
        for folder in (self.incoming, path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        # Not durable: after a power cut the file may be empty, which the next get() detects.
        with replacing(path, within=self.incoming, durable=False) as incoming:
            incoming.write_bytes(data)

    def _probe(self) -> None:
        """Raises OSError if a local folder is not writable, before the first tensor is encoded."""
        if is_remote(self.folder):
            return
        remove_stale(self.incoming)
        self.incoming.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.incoming) as file:
            file.write(b"probe")

    def _log_first_error(self, error: OSError) -> None:
        if not self._logged:
            self._logged = True
            log.warning(
                "cache %s cannot be read or written: %s. Each %s that is not cached is encoded in every epoch. "
                "Check permissions and free disk space",
                SECRETS.sub("", self.folder), error.strerror or error, self.what,
            )  # fmt: skip

    def _remove_damaged(self, path: str, why: str) -> None:
        self.corrupt += 1
        log.warning("cached %s %s are damaged (%s); the %s is encoded again", self.tensor, path, why, self.what)
        with contextlib.suppress(OSError):  # another process was quicker, or the cache is read-only
            if is_remote(path):  # replaced and not removed: another process may have replaced it already
                remote_facts.cache_clear()
            else:
                os.unlink(path)


class LatentCache(EncodedCache):
    """Cache of the latents [C, t, h, w] of clip windows in float32, with one file `KEY[:2]/KEY.safetensors` per clip.

    KEY is the result of `clip_key`. `fingerprint` is a checksum of the weights, config and precision of the VAE.
    """

    encoder, tensor, what = "vae", "latents", "clip"

    def clip_key(
        self, window: Window, status: FileStatus, selection: FrameSelection, size: tuple[int, int], *counts: int
    ) -> str:
        """Returns the key of the latents of a clip window, or of its first frames.

        The key changes with the clip's file (`file_identity`), the window in the dataset, the first used frame and the
        interval, the number of frames, the size, the VAE (`fingerprint`) and `FORMAT_VERSION`. The caption is not part
        of the key.

        Args:
            window: Window of the dataset.
            status: Size and modification time of the clip's file.
            selection: Used frames; `counts` replaces their number.
            size: (H, W) in pixels after scaling and cropping.
            counts: Number of encoded frames. With a second number: one frame, followed by frames of zeros up to this
                total number.
        """
        return self.key_for(
            file=file_identity(status, window.path, window.relative_path, window.mark),
            window=[window.start_frame, window.end_frame, window.temporal_interval],
            frames=[selection.start, selection.interval, *counts],
            size=list(size),
        )

    def put(self, key: str, encoded: Tensor) -> None:
        """Writes latents [C, t, h, w] to the cache as float32."""
        super().put(key, encoded.float())


class TextCache(EncodedCache):
    """Cache of text-encoder hidden states [tokens, d] of captions, in the precision of the encoder.

    The files are in the subfolder `text` of the latent cache folder. Several text encoders may share it, since the
    key of a caption contains the fingerprint of its encoder.
    """

    encoder, tensor, what = "text_encoder", "states", "caption"

    def __init__(self, folder: str) -> None:
        super().__init__(join_address(folder, TEXT_FOLDER), "")

    def key(self, fingerprint: str, ids: Sequence[int], length: int) -> str:
        """Returns the cache key of a caption.

        Args:
            fingerprint: Fingerprint of the text encoder.
            ids: Padded token IDs.
            length: Number of IDs that are text; the others are padding.
        """
        return self.key_for(by=fingerprint, ids=list(ids), length=length)


def file_identity(status: FileStatus, path: str, relative_path: str, mark: str = "") -> list[Any]:
    """Returns what identifies a file in a cache key: [relative path, bytes, modification time (ns), fingerprint].

    The full content is not hashed: that would read every clip at each access, which the cache avoids. A rewritten file
    has a new time; a dataset that is moved as a whole keeps its entries.

    Args:
        status: Size and modification time of the file.
        path: Path of the file.
        relative_path: Path of the file in the dataset.
        mark: Fingerprint of the content; "" = computed by `file_fingerprint`.
    """
    return [relative_path, status.st_size, status.st_mtime_ns, mark or file_fingerprint(path)]


def checksum(tensor: Tensor) -> str:
    """Returns the CRC-32 of the tensor's bytes as hex digits, since safetensors files have no checksum."""
    import torch

    return f"{zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data):08x}"


def remove_stale(incoming: Path) -> None:
    """Removes files older than `STALE_SECONDS` from the folder `incoming`, which killed processes left."""
    if incoming.is_dir():
        for path in incoming.iterdir():
            try:
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink()
            except FileNotFoundError:  # another process was quicker
                continue
