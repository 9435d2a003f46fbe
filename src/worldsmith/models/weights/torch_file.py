"""Reads tensors from files of `torch.save` without running code in them; tensors are mapped from disk."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FILE_ENDINGS = (".pth", ".pt", ".ckpt")
CONTAINERS = ("module", "model", "state_dict")
"""Keys under which checkpoint files of other tools store the dict of tensors."""


def read_torch_file(path: Path, *, field: str, advice: str) -> dict[str, Tensor]:
    """Returns the tensors of a `torch.save` file by name, mapped from disk.

    If the file nests the tensors under a key such as "state_dict", the innermost such mapping is returned.

    Args:
        path: The file.
        field: Config field that names the file; begins error messages.
        advice: How to fix a file that contains code; ends that error message.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, contains pickled code, or has no mapping of names to tensors.
    """
    import torch

    if not path.is_file():
        raise FileNotFoundError(f"{field}: the file '{path}' does not exist")
    try:
        with torch.serialization.safe_globals(safe_numpy_types()):
            content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{field}: '{path}' contains more than tensors (a pickled object that would run code), so it is not "
            f"loaded; {advice} ({short_error(error)})"
        ) from None
    except (RuntimeError, EOFError, OSError) as error:
        raise ValueError(
            f"{field}: '{path}' cannot be read as PyTorch weights ({short_error(error)}); it may be truncated, or "
            "in the format from before PyTorch 1.6, which torch.save in a newer version converts"
        ) from None
    while isinstance(content, Mapping) and (inner := next((c for c in CONTAINERS if _is_table(content, c)), None)):
        content = content[inner]
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise ValueError(f"{field}: '{path}' contains no mapping of names to tensors")
    return dict(content)


def safe_numpy_types() -> list[Any]:
    """Returns the NumPy types in random states of checkpoint files, which are safe to unpickle."""
    import numpy as np
    from numpy._core import multiarray

    rebuild: Any = getattr(multiarray, "_reconstruct")  # noqa: B009  # it carries no types
    return [
        *((rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
        np.ndarray,
        np.dtype,
        type(np.dtype(np.uint32)),
    ]


def require_expected_tensors(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path, *, field: str
) -> None:
    """Raises ValueError unless `state`, read from `path`, has exactly the names and shapes of `expected`."""
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    other = [name for name in sorted(state.keys() & expected.keys()) if state[name].shape != expected[name].shape]
    if missing or extra or other:
        examples = [*missing[:1], *extra[:1]]
        examples += [f"{n} {list(state[n].shape)} instead of {list(expected[n].shape)}" for n in other[:1]]
        raise ValueError(
            f"{field}: '{path}' does not match its config: {len(missing)} tensors missing, {len(extra)} unexpected, "
            f"{len(other)} with another shape ({'; '.join(examples)}); the file is read with the config of the "
            f"released VAE, or with '{path.with_suffix('.json').name}' next to it if that exists"
        )


def short_error(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def _is_table(content: Mapping[str, Any], name: str) -> bool:
    return isinstance(content.get(name), Mapping)
