"""Downloads models of object stores (s3://bucket/folder) into the cache of this machine."""

from __future__ import annotations

from pathlib import Path

from worldsmith.checkpoint.run.find_checkpoint import BEST, BEST_POINTER, NAME, POINTER
from worldsmith.checkpoint.sources.verify import WEIGHTS
from worldsmith.files.checksum_manifest import MANIFEST
from worldsmith.files.remote import SECRETS, full_address, in_store, join_address
from worldsmith.files.remote_folder import RemoteModel, find_remote, list_remote, read_remote_text

CHECKPOINTS = "checkpoints"
RECORDS = (".yaml", ".json", ".jsonl", ".txt")
"""Suffixes of the files of a run folder that belong to its copy in a store."""


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
    run = run.removesuffix(f"/{CHECKPOINTS}")
    pointer = join_address(run, f"{CHECKPOINTS}/{BEST_POINTER if is_best else POINTER}")
    checkpoint = (read_remote_text(pointer) or "").strip()
    return join_address(run, f"{CHECKPOINTS}/{checkpoint}") if NAME.fullmatch(checkpoint) else address


def find_model(name: str, *, field: str) -> RemoteModel:
    """Finds a model in a store: of a run, one of its checkpoints, another folder, or a file; downloads nothing.

    Of a checkpoint, only the weights and the records of its run are needed.

    Args:
        name: Address.
        field: Config field or argument that contains `name`; begins error messages.

    Raises:
        FileNotFoundError: If the store has no such model.
        RemoteError: If the storage cannot be reached or denies access.
    """
    address = pinned(name)
    run, _, checkpoint = address.rpartition(f"/{CHECKPOINTS}/")
    if not NAME.fullmatch(checkpoint):
        return find_remote(address, field=field)
    weights = {file: info for file, info in list_remote(address).items() if file.startswith((*WEIGHTS, MANIFEST))}
    if MANIFEST not in weights:
        raise FileNotFoundError(f"{field} {SECRETS.sub('', address)}: the store has no complete checkpoint there")
    inner = f"{CHECKPOINTS}/{checkpoint}"
    files = {file: info for file, info in list_remote(run, recursive=False).items() if file.endswith(RECORDS)}
    key = {f"{inner}/{file}": info for file, info in weights.items()}
    return RemoteModel(address, run, files | key, inner=inner, key=key)


def fetch_model(name: str, *, field: str, download: bool = True) -> Path | None:
    """Returns the local copy of a model in a store, as `find_model` finds it.

    It is downloaded once per machine, and again if a file in the store was replaced.

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
    found = find_model(name, field=field)
    return found.fetch(field) if download else found.cached()


def fetched(name: str, *, field: str) -> str:
    """Returns the path of the local copy if `name` is the address of a model in a store; other names unchanged."""
    return str(fetch_model(name, field=field)) if in_store(name) else name
