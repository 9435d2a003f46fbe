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
"""File in the run folder that reports which initial weights the first start of the run loaded, and from where."""


def fingerprint(frozen: Mapping[str, Tensor | WeightSum], dtypes: Mapping[str, str] | None = None) -> str:
    """Returns the hex SHA-256 over names, shapes and bits of frozen weights. Collective; independent of the sharding.

    Args:
        frozen: Internal parameter name -> weight, or shape and checksum of a weight that is no longer in memory.
        dtypes: Internal parameter name -> dtype, such as "bfloat16", to which the weight is rounded before it is
            hashed. Weights that are missing in `dtypes` are not rounded.
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
    """Returns the content of `frozen_weights.json` as JSON text. Collective.

    The keys are `source`, `tensors` (number of frozen weights), `fingerprint` and `dtypes` (those other than float32).

    Args:
        frozen: Internal parameter name -> frozen weight, or its shape and checksum.
        source: Description of where the weights were read from, for messages.
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
        frozen: Internal parameter name -> frozen weight that was read, or its shape and checksum.
        source: Description of where the weights were read from, for the message.
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
            f"trained with the frozen weights of {saved['source']}, but those of {source} differ. "
            f"{advice(checkpoint.parent.parent / LOAD_REPORT)}"
        )


def advice(report: Path) -> str:
    """Returns a sentence for an error message: from which folder the frozen weights can be read.

    Args:
        report: The run's `load_report.json`, which names the folder of the initial weights; may be missing.
    """
    first = ""
    with suppress(OSError, UserError):
        first = str(read_json_object(report).get("folder", ""))
    if not first:
        return "Use the same base weights as checkpoint.load_path"
    if not Path(first).is_dir():
        return f"The run started from {first}, which no longer exists: use a copy of it as checkpoint.load_path"
    return f"The run started from {first}: use that folder as checkpoint.load_path"


def is_partial(checkpoint: Path) -> bool:
    """Returns whether the checkpoint folder contains only the trained weights and omits the frozen ones."""
    return (checkpoint / FILE).is_file()
