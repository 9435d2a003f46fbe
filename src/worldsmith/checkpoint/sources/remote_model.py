"""Downloads models of object stores (s3://bucket/folder) into the cache of this machine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from worldsmith.checkpoint.run.find_checkpoint import BEST, BEST_POINTER, NAME, POINTER
from worldsmith.checkpoint.sources.verify import WEIGHTS
from worldsmith.files.checksum_manifest import MANIFEST
from worldsmith.files.errors import UserError
from worldsmith.files.remote import SECRETS, cache_folder, is_remote, join_address
from worldsmith.files.remote_folder import cache_key, cached_folder, download_files, list_remote, read_remote_text
from worldsmith.monitor.short_text import format_bytes

CHECKPOINTS = "checkpoints"
RECORDS = (".yaml", ".json", ".jsonl", ".txt")
"""Suffixes of the files of a run folder that belong to its copy in a store."""


def in_store(name: str) -> bool:
    """Returns whether the name of a model is an address other than that of a Hub repository (hf://)."""
    return is_remote(full_address(name)) and not name.startswith("hf:/")


def full_address(name: str) -> str:
    """Returns an address with two slashes after the scheme, of which `pathlib` makes one; other names unchanged."""
    return re.sub(r"^(?!file|local)(\w{2,}):/+", r"\1://", name).rstrip("/")


def pinned(name: str) -> str:
    """Returns the address of the newest or best checkpoint if `name` is a run in a store; other names unchanged.

    All ranks of a run must load the same checkpoint, also while another run uploads a newer one.

    Raises:
        RemoteError: If the storage cannot be reached or denies access.
    """
    if not in_store(name):
        return name
    address = full_address(name)
    run, is_best = address.removesuffix(f"/{CHECKPOINTS}/{BEST}"), address.endswith(f"/{CHECKPOINTS}/{BEST}")
    pointer = join_address(run, f"{CHECKPOINTS}/{BEST_POINTER if is_best else POINTER}")
    checkpoint = (read_remote_text(pointer) or "").strip()
    return join_address(run, f"{CHECKPOINTS}/{checkpoint}") if NAME.fullmatch(checkpoint) else address


def fetch_model(name: str, *, field: str, download: bool = True) -> Path | None:
    """Returns the local copy of a model in a store: of a run, one of its checkpoints, another folder, or a file.

    It is downloaded once per machine, and again if a file in the store was replaced. Of a checkpoint, only the weights
    and the records of its run are downloaded.

    Args:
        name: Address.
        field: Config field or argument that contains `name`; begins error messages.
        download: Whether it may be downloaded; False: it is only checked that it exists.

    Returns:
        Path of the checkpoint, folder or file; None if it is not in the cache and `download` is False.

    Raises:
        FileNotFoundError: If the store has no such model.
        RemoteError: If the storage cannot be reached or denies access.
        UserError: If the disk has too little free space.
    """
    address = pinned(name)
    root, inner, files = address, "", list_remote(address)
    run, _, checkpoint = address.rpartition(f"/{CHECKPOINTS}/")
    if list(files) == ["."]:
        root, _, inner = address.rpartition("/")
        files = {inner: files["."]}
    elif NAME.fullmatch(checkpoint):
        if MANIFEST not in files:
            raise FileNotFoundError(f"{field} {SECRETS.sub('', address)}: the store has no complete checkpoint there")
        root, inner = run, f"{CHECKPOINTS}/{checkpoint}"
        weights = {file: info for file, info in files.items() if file.startswith((*WEIGHTS, MANIFEST))}
        records = list_remote(run, recursive=False).items()
        files = {file: info for file, info in records if file.endswith(RECORDS)}
        files |= {f"{inner}/{file}": info for file, info in weights.items()}
    if not files:
        raise FileNotFoundError(f"{field} {SECRETS.sub('', address)}: the store has no such folder")
    key = cache_key(address, {file: info for file, info in files.items() if file.startswith(inner)})
    sizes = {file: [info["size"]] for file, info in files.items()}

    def fetch(folder: Path) -> None:
        needed, free = sum(size for (size,) in sizes.values()), shutil.disk_usage(folder).free
        if needed > free:
            raise UserError(
                f"{field} {SECRETS.sub('', address)}: expected {format_bytes(needed)} free in {cache_folder('models')},"
                f" found {format_bytes(free)}. Free disk space, or set XDG_CACHE_HOME to a folder on a larger disk"
            )
        download_files(root, folder, sizes)

    found = cached_folder(key, root.rpartition("/")[2], fetch if download else None)
    return None if found is None else found / inner


def fetched(name: str, *, field: str) -> str:
    """Returns the path of the local copy if `name` is the address of a model in a store; other names unchanged."""
    return str(fetch_model(name, field=field)) if in_store(name) else name
