"""`PublishedPart`: what a frozen part of a model is made of as it was published, for plans where its files are absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsmith.assets import asset_path

Contents = Mapping[str, Mapping[str, Any] | Path | None]


@dataclass(frozen=True, slots=True)
class PublishedPart:
    """A section of a model's config that names a folder, and what that folder would hold."""

    field: str
    """The field of the section."""
    what: str
    """For people: "the VAE of Wan 2.2"."""
    places: Sequence[Sequence[str]]
    """Files of a repository of the hub, in the layouts that it may have."""
    contents: Contents
    """By name: settings of a JSON file, a shipped file or folder that stands for it, or None for an empty file."""


def tokenizer_files(asset: str, folder: str = "") -> Contents:
    """A shipped tokenizer, whose ids are those of a small vocabulary: a plan does not read them."""
    home = asset_path(asset)
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    return {f"{folder}/{name}" if folder else name: home / name for name in names if (home / name).is_file()}
