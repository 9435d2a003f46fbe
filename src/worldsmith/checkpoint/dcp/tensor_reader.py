"""Reads folders of torch.distributed.checkpoint (DCP) from any source, without running code in them.

DCP stores names, shapes and locations of the tensors in a pickle, `.metadata`, and unpickles every entry that is marked
there as a plain object. This module loads only those classes from a pickle that DCP itself writes for tensors.
"""

from __future__ import annotations

import pickle
import pickletools
import warnings
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from worldsmith.checkpoint.dcp.dcp_folder import METADATA
from worldsmith.config.errors import UserError

DCP = "torch.distributed.checkpoint"
SHARDED = "torch.distributed._shard.sharded_tensor"
ALLOWED = {
    *((f"{DCP}.metadata", name)
      for name in ("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex",
                   "BytesStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING")),
    *((f"{SHARDED}.metadata", name) for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
    (f"{DCP}.filesystem", "_StorageInfo"),
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}  # fmt: skip
"""(module, name) of everything that DCP pickles for tensors: metadata classes, also those of older versions, and the
function that returns a torch layout by name."""


class TensorReader(FileSystemReader):
    """DCP `FileSystemReader` that reads tensors only and ignores entries of other types, which could contain code.

    Raises UserError if the file `.metadata` is damaged or was not written by DCP.
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        file = Path(self.path) / METADATA
        with file.open("rb") as stream:
            try:
                require_small_memo(stream.read())
                stream.seek(0)
                metadata = MetadataUnpickler(stream, file).load()
                entries = metadata.state_dict_metadata.items()
                metadata.state_dict_metadata = {name: entry for name, entry in entries if is_tensor(name, entry)}
                if getattr(metadata, "storage_meta", None) is None:
                    metadata.storage_meta = StorageMeta()
                metadata.storage_meta.load_id = self.load_id
            except (UserError, OSError):
                raise
            except Exception as error:  # a damaged pickle can fail in any way
                raise UserError(
                    f"[E118] {file} is damaged, or was not written by torch.distributed.checkpoint"
                ) from error
        return metadata  # type: ignore[no-any-return]


def require_small_memo(data: bytes) -> None:
    """Raises ValueError if a pickle numbers its objects beyond its own length: Python would allocate that many entries.

    One damaged byte is enough for an allocation of 64 GiB.
    """
    for opcode, index, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "LONG_BINPUT") and index > len(data):  # type: ignore[operator]
            raise ValueError(f"{opcode.name} {index} in a pickle of {len(data)} bytes")


class MetadataUnpickler(pickle.Unpickler):
    """Safe unpickler of DCP's `.metadata`: loads only torch dtypes and the classes and functions in `ALLOWED`.

    Raises UserError for any other class or function.
    """

    def __init__(self, stream: Any, file: Path) -> None:
        super().__init__(stream)
        self.file = file

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return enum_member
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        dtype = vars(torch).get(name) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise UserError(
            f"{self.file} refers to {module}.{name}, which torch.distributed.checkpoint never writes for tensors; "
            "it could run arbitrary code, so it is not loaded"
        )


def enum_member(kind: Any, name: Any) -> Enum:
    """Returns the member `name` of the enumeration class `kind`.

    The unpickler calls this function instead of `getattr`, with which some Python versions (such as 3.11.2) pickle enum
    members and which could also return a method.

    Raises:
        TypeError: If `kind` is not an enumeration or has no such member.
    """
    if isinstance(kind, EnumType) and name in kind.__members__:
        return kind.__members__[name]  # type: ignore[no-any-return]
    raise TypeError(f"{name} is not a member of an enumeration")


def is_tensor(name: Any, entry: Any) -> bool:
    """Returns whether `entry`, the value of key `name` in DCP metadata, describes a tensor.

    Raises TypeError if the description of a tensor is malformed.
    """
    if not isinstance(entry, TensorStorageMetadata):
        return False
    well_formed = isinstance(name, str) and isinstance(entry.properties.dtype, torch.dtype)
    if not well_formed or not all(isinstance(size, int) for size in entry.size):
        raise TypeError(f"{name} does not describe a tensor")
    return True


def read_entries(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Reads the metadata of a DCP folder: tensor name -> shape, dtype and chunks of the tensor.

    Raises:
        UserError: If the metadata is damaged or was not written by DCP.
    """
    return TensorReader(folder).read_metadata().state_dict_metadata  # type: ignore[return-value]


def load_part(folder: Path, state: dict[str, Any], *, no_dist: bool) -> None:
    """Reads the tensors of a DCP folder into the tensors of `state`, in place.

    Args:
        folder: DCP folder.
        state: Tensor name → tensor to fill; a DTensor gets this rank's shard.
        no_dist: Whether this process reads by itself. False: collective, all ranks must call this function.

    Raises:
        UserError: If the folder cannot be read.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # intended here
    try:
        load(state, storage_reader=TensorReader(folder), no_dist=no_dist)
    except CheckpointException as error:
        reason = next(failure for failure, _ in error.failures.values())
        if isinstance(reason, UserError):
            raise reason from error
        raise UserError(f"{folder} cannot be read: {str(reason) or type(reason).__name__}") from error


def stored_shapes(folder: Path) -> dict[str, list[int]]:
    """Returns tensor name -> shape for each tensor in a DCP folder; raises UserError if its metadata cannot be read."""
    return {name: list(entry.size) for name, entry in read_entries(folder).items()}
