"""`frozen_weights.json`: fingerprint and source of the frozen weights that a checkpoint of trained weights omits.

A resume reads the frozen weights from the source of the run. The fingerprint is computed from their bits, so it does
not depend on location or format, and a single changed weight is detected. Weights that the run stored in bfloat16 are
compared in bfloat16.
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
    """Returns a hash over names, shapes and bits of frozen weights. Collective; independent of the sharding.

    Args:
        frozen: Weights, or their sums, by internal parameter name.
        dtypes: Dtype to which a tensor is rounded before, by name.
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
    """Returns the content of `frozen_weights.json`. Collective.

    Args:
        frozen: Frozen weights, or their sums, by internal parameter name.
        source: Description of their source, for messages.
    """
    tensors = {name: tensor for name, tensor in frozen.items() if not isinstance(tensor, WeightSum)}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    dtypes = {name: dtype for name, dtype in dtypes.items() if dtype != "float32"}
    parts = {"source": source, "tensors": len(frozen), "fingerprint": fingerprint(frozen, dtypes), "dtypes": dtypes}
    return json.dumps(parts, indent=1)


def require_same(checkpoint: Path, frozen: Mapping[str, Tensor | WeightSum], *, source: str) -> None:
    """Raises UserError if the frozen weights are not those with which the checkpoint was trained. Collective.

    Args:
        checkpoint: Checkpoint folder with `frozen_weights.json`.
        frozen: Frozen weights that were read, or their sums, by internal parameter name.
        source: Description of their source, for the message.
    """
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
    """Returns whether a checkpoint contains only the trained weights."""
    return (checkpoint / FILE).is_file()
