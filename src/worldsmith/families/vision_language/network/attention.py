"""Which attention of transformers a backbone uses."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from worldsmith.config.errors import UserError

NEEDS = {"flash_attention_2": "_supports_flash_attn", "sdpa": "_supports_sdpa"}
"""What a model class says of itself; all can do eager attention."""


def choose_attention(asked: str, kind: Any) -> str:
    """The name that transformers knows; `cosmos` is the best that this machine and the model class have.

    Raises ValueError for one that the class does not have.
    """
    if asked == "cosmos":
        quick = [] if why_not_flash() else ["flash_attention_2"]
        return next((name for name in (*quick, "sdpa") if getattr(kind, NEEDS[name], False)), "eager")
    if asked in NEEDS and not getattr(kind, NEEDS[asked], False):
        raise ValueError(
            f"model.config.policy.attn_implementation = {asked!r}: transformers' {kind.__name__} lacks this attention; "
            "use 'cosmos' for the best that it has"
        )
    return asked


def check_device(asked: str, device: str) -> None:
    """Raises UserError for an attention that does not run on the device."""
    reason = why_not_flash(device) if asked == "flash_attention_2" else None
    if reason is not None:
        raise UserError(
            f"model.config.policy.attn_implementation = 'flash_attention_2': {reason}; use 'sdpa', or 'cosmos' for the "
            "best that is available"
        )


def why_not_flash(device: str = "") -> str | None:
    """Why flash attention cannot be used, on this device or at all; None when it can."""
    import torch

    if find_spec("flash_attn") is None:
        return "the package flash-attn is not installed"
    on_gpu = device.startswith("cuda") if device else torch.cuda.is_available()
    return None if on_gpu else "it needs a GPU"
