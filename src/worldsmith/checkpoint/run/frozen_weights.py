"""`frozen_weights.json`: what a checkpoint of trained weights only says about the frozen ones, which it lacks.

A resume reads the frozen weights where the run got them from. The fingerprint is made of their bits, so that it does
not matter where that is now or in which format, and a single changed weight is noticed. Weights that the run kept in
bfloat16 are compared in bfloat16.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.config.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.models.weight_sum import WeightSum

if TYPE_CHECKING:
    from torch import Tensor

FILE = "frozen_weights.json"
LOAD_REPORT = "load_report.json"
"""File in the run folder: initial weights that the first start loaded, and their source."""


def fingerprint(frozen: Mapping[str, Tensor | WeightSum], dtypes: Mapping[str, str] | None = None) -> str:
    """Returns a hash over native names, shapes and bits, each tensor rounded to the dtype that `dtypes` has for it, if
    any.

    It is the same for any sharding. All ranks call it together.
    """
    import torch

    digest = hashlib.sha256()
    for name in sorted(frozen):
        tensor = frozen[name]
        if not isinstance(tensor, WeightSum):
            rounded = tensor.to(getattr(torch, dtypes[name])) if dtypes and name in dtypes else tensor
            tensor = WeightSum.of(rounded)
        digest.update(f"{name} {tensor.shape} {tensor.bits}\n".encode())
    return digest.hexdigest()


def describe_frozen_weights(frozen: Mapping[str, Tensor | WeightSum], *, source: str) -> str:
    """Returns the content of the file; `source` describes the origin of the frozen weights."""
    tensors = {name: tensor for name, tensor in frozen.items() if not isinstance(tensor, WeightSum)}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    dtypes = {name: dtype for name, dtype in dtypes.items() if dtype != "float32"}
    parts = {"source": source, "tensors": len(frozen), "fingerprint": fingerprint(frozen, dtypes), "dtypes": dtypes}
    return json.dumps(parts, indent=1)


def require_same(checkpoint: Path, frozen: Mapping[str, Tensor | WeightSum], *, source: str) -> None:
    """Raises UserError when the frozen weights that were read are not those that the checkpoint was trained with."""
    saved = read_json_object(checkpoint / FILE)
    if saved["tensors"] != len(frozen):
        raise UserError(
            f"{checkpoint} was trained with {saved['tensors']} frozen tensors, but this run freezes {len(frozen)}: "
            "restore optimizer.keys_to_select and the model config"
        )
    if saved["fingerprint"] != fingerprint(frozen, saved["dtypes"]):
        raise UserError(
            f"[E120] {checkpoint} contains only the trained weights, and the frozen ones have changed: it was "
            f"trained on those of {saved['source']}, but those of {source} differ. "
            f"{advice(checkpoint.parent.parent / LOAD_REPORT)}"
        )


def advice(report: Path) -> str:
    """Returns advice for frozen weights that differ: the base weights folder in the load report of the run."""
    first = ""
    with suppress(OSError, UserError):
        first = str(read_json_object(report).get("folder", ""))
    if not first:
        return "Use the same base as checkpoint.load_path"
    if not Path(first).is_dir():
        return f"They were read from {first}, which no longer exists: use a copy of it as checkpoint.load_path"
    return f"They were read from {first}: use that folder as checkpoint.load_path"


def is_partial(checkpoint: Path) -> bool:
    """Returns whether a checkpoint lacks the frozen weights."""
    return (checkpoint / FILE).is_file()
