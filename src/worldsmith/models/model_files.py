"""Locates a model's files: in a local folder, the Hugging Face cache, a hub repository or an object store."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from worldsmith.assets import asset_path
from worldsmith.config.tree.suggest import did_you_mean_folder
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import json_type, read_json_object
from worldsmith.files.remote import in_store
from worldsmith.files.remote_folder import fetch_folder
from worldsmith.files.untrusted_folder import listed_files
from worldsmith.models.families import find_released
from worldsmith.models.hub import (
    SECONDS,
    HubName,
    MissingPartError,
    ask_hub,
    explain_errors,
    matches_pattern,
    patterns_from_root,
)

logger = logging.getLogger(__name__)

SCHEME = "hf://"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_NAME = re.compile(
    rf"(?!.*(?:--|\.\.))(?P<repo>{_PART}/{_PART}(?<![.-])(?<!\.git))(?:@(?P<revision>[^/@\s]+))?(?:/(?P<inner>[^@\s]+?))?/?"
)


def local_folder(name: str, *, file_patterns: Sequence[str] = ("*",), field: str = "model") -> Path:
    """Returns the local path of a model; downloads its files if they are not on this machine.

    Existing local paths come first, then the Hugging Face cache, then the hub.

    Args:
        name: A path, `org/name`, `org/name@revision`, the short name of a released model,
            `hf://org/name[@revision][/folder or file]`, which is never treated as a local path, or the address of a
            folder or file in an object store, such as `s3://bucket/folder`.
        file_patterns: Required files of the repository, as shell patterns relative to the named folder. The cache
            is used if it has a file of the first pattern, and every matching file that a weight index there lists.
        field: Config field or argument that `name` comes from, such as "checkpoint.load_path"; begins error
            messages.

    Returns:
        The folder, or the file if `name` is that of a file.

    Raises:
        FileNotFoundError: If the files are neither local, nor in the cache, nor on the hub or in the store.
        RemoteError: If the store cannot be reached or denies access.
        UserError: If the disk has too little free space for a model of a store.
    """
    if in_store(name):
        return find_layout(name, (file_patterns,), field=field)
    found = find_local(name, file_patterns=file_patterns, field=field)
    return found if isinstance(found, Path) else download(found, file_patterns, field)


def find_without_download(name: str, *, file_patterns: Sequence[str] = ("*",), field: str = "model") -> Path | None:
    """Returns the local path of a model if its files are on this machine; None if they can be downloaded.

    Args:
        name: Path, hub name or short name of a released model; `local_folder` lists the formats.
        file_patterns: Required files, as shell patterns relative to the named folder.
        field: Config field or argument that contains `name`; begins error messages.

    Raises:
        FileNotFoundError: If the files are neither on this machine nor available on the hub or in the store.
    """
    if in_store(name):
        return fetch_folder(name, (file_patterns,), field=field, download=False)
    found = find_local(name, file_patterns=file_patterns, field=field)
    if isinstance(found, Path):
        return found
    with explain_errors(found, field):
        ask_hub(found, file_patterns)
    return None


def find_layout(name: str, layouts: Sequence[Sequence[str]], *, field: str) -> Path:
    """Returns the local path of a model whose repository may have one of several layouts; downloads it if needed.

    Args:
        name: Path, hub name or short name of a released model; `local_folder` lists the formats.
        layouts: File patterns of each layout, the one in the repository's root last. A cached layout is preferred;
            only the last one applies to local paths and to names with an inner folder.
        field: Config field or argument that contains `name`; begins error messages.

    Raises:
        FileNotFoundError: If no layout is found.
    """
    stored = fetch_folder(name, layouts, field=field) if in_store(name) else None
    if stored is not None:
        return stored
    hub = hub_name(name)
    if hub is None or hub.inner or is_local(name):
        layouts = layouts[-1:]
    else:  # any layout in the cache comes before a look at the hub for another one
        layouts = sorted(layouts, key=lambda patterns: cached(hub, patterns) is None)
    for patterns in layouts[:-1]:
        try:
            return local_folder(name, file_patterns=patterns, field=field)
        except FileNotFoundError as error:
            if error.__cause__ is not None:  # not reached at all; else the repository has another layout
                raise
    return local_folder(name, file_patterns=layouts[-1], field=field)


def find_layout_without_download(name: str, layouts: Sequence[Sequence[str]], *, field: str) -> Path | None:
    """Returns the local path of a model whose repository may have one of several layouts; None if not downloaded yet.

    Args:
        name: Path, hub name or short name of a released model; `local_folder` lists the formats.
        layouts: File patterns of each possible layout, the one in the repository's root last.
        field: Config field or argument that contains `name`; begins error messages.

    Raises:
        FileNotFoundError: If no layout is found.
    """
    if in_store(name):
        return fetch_folder(name, layouts, field=field, download=False)
    hub = hub_name(name)
    if hub is None or is_local(name) or any(cached(hub, patterns) is not None for patterns in layouts):
        return find_layout(name, layouts, field=field)
    return find_without_download(name, field=field)


def find_local(name: str, *, file_patterns: Sequence[str], field: str) -> Path | HubName:
    """Returns the local or cached path of a model, else its parsed hub name; no network access.

    Args:
        name: Path, hub name or short name of a released model; `local_folder` lists the formats.
        file_patterns: Required files, as shell patterns relative to the named folder.
        field: Config field or argument that contains `name`; begins error messages.

    Raises:
        FileNotFoundError: If `name` can only be a path, and the path does not exist.
    """
    name = re.sub(r"^hf:/+", SCHEME, name)  # pathlib makes one slash of two
    hub = hub_name(name)
    path = local_path(name)
    if is_local(name):
        if hub is not None and cached(hub, file_patterns) is not None:
            logger.warning(
                "%s: '%s' is both a local folder and a repository in the Hugging Face cache; the folder is used. "
                "Write %s%s for the repository",
                field, name, SCHEME, name,
            )  # fmt: skip
        return path
    if hub is None:
        advice = did_you_mean_folder(path) or _why_not_on_the_hub(name)
        raise FileNotFoundError(f"{field} {name}: no such folder{advice}")
    return cached(hub, file_patterns) or hub


def lasting_name(name: str) -> str:
    """Returns a model's name in a form that is valid in every working directory: local paths become absolute."""
    return os.path.abspath(local_path(name)) if is_local(name) else name


def is_local(name: str) -> bool:
    """Returns whether a model's name is an existing file or folder, which has priority over a hub repository."""
    return not name.startswith(SCHEME) and local_path(name).exists()


def local_path(name: str) -> Path:
    """Returns a name as a path: expands `~` and removes `file://`; the `~` of an unknown user is kept."""
    return Path(os.path.expanduser(name.removeprefix("file://")))


def hub_name(name: str) -> HubName | None:
    """Parses `org/name`, `org/name@revision`, `hf://…` or a short name; None if `name` can only be a path."""
    name = name if "/" in name else find_released(name) or name
    match = _HUB_NAME.fullmatch(name.removeprefix(SCHEME))
    if match is None or (match["inner"] and not name.startswith(SCHEME)):
        return None
    return HubName(match["repo"], match["revision"], match["inner"] or "")


def cached(hub: HubName, file_patterns: Sequence[str]) -> Path | None:
    """Returns the path of a repository's folder or file in the Hugging Face cache; no network access.

    Args:
        hub: Repository, revision, and folder or file.
        file_patterns: Required files, as shell patterns relative to the folder `hub.inner`.

    Returns:
        Path of the folder or file `hub.inner` in the cache; None if a required file is not in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot = snapshot_download(
            hub.repo,
            revision=hub.revision,
            allow_patterns=patterns_from_root(hub, file_patterns),
            local_files_only=True,
        )
    except LocalEntryNotFoundError:
        return None
    path = Path(snapshot) / hub.inner
    return path if path.is_file() or is_complete(path, file_patterns) else None


def is_complete(folder: Path, file_patterns: Sequence[str]) -> bool:
    """Returns whether `folder` has a file of the first pattern, and all matching files that its weight indexes list."""
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    if not any(fnmatchcase(file, file_patterns[0]) for file in files):
        return False
    for index in (file for file in files if file.endswith(".index.json")):
        shards = listed_files(folder / index)
        home = Path(index).parent
        needed = {str(home / shard) for shard in shards}
        if any(matches_pattern(shard, file_patterns) for shard in needed - set(files)):
            return False
    return True


def download(hub: HubName, file_patterns: Sequence[str], field: str) -> Path:
    """Downloads files of a repository into the Hugging Face cache and returns the path of the folder or file.

    Args:
        hub: Repository, revision, and folder or file.
        file_patterns: Required files, as shell patterns relative to the folder `hub.inner`.
        field: Config field or argument that names the repository; begins error messages.

    Raises:
        FileNotFoundError: If the files cannot be downloaded; the message states the cause and a fix.
    """
    from huggingface_hub import snapshot_download

    patterns = patterns_from_root(hub, file_patterns)
    with explain_errors(hub, field):
        ask_hub(hub, file_patterns)
        snapshot = snapshot_download(
            hub.repo, revision=hub.revision, allow_patterns=[*patterns, hub.inner], etag_timeout=SECONDS
        )
        path = Path(snapshot) / hub.inner
        if not path.is_file() and not is_complete(path, file_patterns):
            raise MissingPartError(f"the repository lacks '{patterns[0]}', or a file that its index lists")
    return path


def _why_not_on_the_hub(name: str) -> str:
    if in_store(name):
        return "; this component is read from this machine or from the hub. Copy the folder and name the copy"
    if name.startswith(SCHEME):
        return f", and hub names have the form {SCHEME}org/name[@revision][/folder]"
    return "" if Path(name).is_absolute() or name.startswith(".") else "; hub repositories are named org/name"


LAYER_KEYS = ("num_hidden_layers", "num_layers", "depth")
SIZE_KEYS = (
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim", "num_attention_heads",
    "num_key_value_heads", "num_heads", "in_channels", "out_hidden_size", "num_position_embeddings", "patch_size",
    "temporal_patch_size", "spatial_merge_size",
)  # fmt: skip
MAX_LAYERS = 1000
"""Max number of layers that config.json may state; the largest released networks have about 100."""
MAX_SIZE = 2**31 - 1


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads config.json of a model folder and checks its sizes, before a network is built from them.

    Returns:
        The content of config.json.

    Raises:
        UserError: If a section has a wrong type, or a size is not an integer in a plausible range.
    """
    file = folder / "config.json"
    settings = read_json_object(file)
    model_type = settings.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise UserError(f"{file}: model_type: expected a string, found {json_type(model_type)}")
    for name in ("", "text_config", "vision_config"):
        part = settings.get(name) if name else settings
        if part is not None and not isinstance(part, dict):
            raise UserError(f"{file}: {name}: expected an object, found {json_type(part)}")
        for key, most in (*((key, MAX_LAYERS) for key in LAYER_KEYS), *((key, MAX_SIZE) for key in SIZE_KEYS)):
            value = (part or {}).get(key)
            if value is None or isinstance(value, list):  # a default is meant; one value for each layer
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                where = f"{name}.{key}" if name else key
                found = value if isinstance(value, (int, float)) else json_type(value)
                raise UserError(f"{file}: {where}: expected an integer from 1 to {most}, found {found}")
    return settings


Contents = Mapping[str, Mapping[str, Any] | Path | None]


@dataclass(frozen=True, slots=True)
class SubstituteComponent:
    """Substitute files for a pretrained component, such as a VAE, whose path is stated in a config section.

    A simulation of a run uses them if the files of the component are not available.
    """

    field: str
    """Name of the config field that contains the path or hub name of the component."""
    what: str
    """Name of the released component for messages, such as "the VAE of Wan 2.2"."""
    places: Sequence[Sequence[str]]
    """Patterns of the component's files in a hub repository, one list per possible layout."""
    contents: Contents
    """Substitute files by name: content of a JSON file, path of a built-in file to link, or None for an empty file."""

    @property
    def reads_texts(self) -> bool:
        """Whether the component has a tokenizer, whose substitute gives other token counts than the real one."""
        return any(name.endswith("tokenizer.json") for name in self.contents)


def tokenizer_files(asset: str, folder: str = "") -> Contents:
    """Returns the files of a small built-in tokenizer, which replaces a missing one in simulations.

    Args:
        asset: Name of the tokenizer's asset folder in this package.
        folder: Folder of the files within the component; "": its root.

    Returns:
        Path of each file by its name in the component, for `SubstituteComponent.contents`.
    """
    home = asset_path(asset)
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    return {f"{folder}/{name}" if folder else name: home / name for name in names if (home / name).is_file()}
