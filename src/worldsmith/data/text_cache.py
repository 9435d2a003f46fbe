"""States of captions on disk, so that a text encoder reads each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worldsmith.data.encoded_cache import EncodedCache

FOLDER = "text"
"""Where they are in the folder of a latent cache."""


class TextCache(EncodedCache):
    """What text encoders make of captions, [tokens, d] in their own precision; several may share a folder."""

    encoder, tensor, what = "text_encoder", "states", "caption"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FOLDER, "")

    def key(self, fingerprint: str, ids: Sequence[int], length: int) -> str:
        """Of an encoder and the padded ids of a caption, of which `length` are text."""
        return self.key_for(by=fingerprint, ids=list(ids), length=length)
