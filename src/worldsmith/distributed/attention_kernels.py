"""Attention kernels of PyTorch: activates FlashAttention 3 where it can be used, and describes the kernels of a run."""

from __future__ import annotations

import functools
import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from worldsmith.config.errors import UserError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

VARIABLE = "WORLDSMITH_FLASH_ATTENTION"
"""Environment variable with the version of FlashAttention, 2 or 3; not set: the best available version."""
PACKAGE = "flash_attn_interface"
"""Python package of FlashAttention 3."""
HOPPER = (9, 0)
"""Compute capability of the GPUs that FlashAttention 3 supports (H100, H200)."""
EXACT = "exact attention within each sample"
MAX_SAMPLE_TOKENS = 1024
"""Max tokens of the tensors for which PyTorch is asked; its choice does not depend on larger lengths."""


def choose_flash_attention(
    requested: str, capability: tuple[int, int] | None, is_installed: bool
) -> tuple[int | None, str]:
    """Chooses the version of FlashAttention.

    Args:
        requested: Value of `VARIABLE`; "": the best available version.
        capability: Compute capability of the GPU; None: the network is on a CPU.
        is_installed: Whether the package of FlashAttention 3 is installed.

    Returns:
        The version, or None on a CPU, and the reason why it is not 3 ("" if it is).

    Raises:
        UserError: If the requested version does not exist, or is 3 and the GPU or the package for it is missing.
    """
    if requested not in ("", "2", "3"):
        raise UserError(f"{VARIABLE}: expected 2 or 3, found {requested!r}. Unset it for the best available version")
    if capability is None:
        return None, "FlashAttention needs a GPU"
    if requested == "2":
        return 2, f"{VARIABLE} is 2"
    if capability != HOPPER:
        reason = f"version 3 needs compute capability {HOPPER[0]}.{HOPPER[1]}, found {capability[0]}.{capability[1]}"
    else:
        reason = "" if is_installed else f"version 3 needs the package {PACKAGE}, which is not installed"
    if requested and reason:
        raise UserError(f"{VARIABLE} is 3: {reason}. Unset it for the best available version")
    return 2 if reason else 3, reason


@functools.cache
def activate_flash_attention(device: str) -> str:
    """Makes PyTorch use FlashAttention 3 in this process if `choose_flash_attention` chooses it.

    Call it before the first attention.

    Args:
        device: Device of the network, such as "cuda:0".

    Returns:
        Description of the kernels for samples of different lengths, such as "FlashAttention 2 (…)".

    Raises:
        UserError: If `VARIABLE` requests a version that cannot be used.
    """
    import torch
    from torch.nn.attention import activate_flash_attention_impl

    capability = torch.cuda.get_device_capability(device) if device.startswith("cuda") else None
    requested = os.environ.get(VARIABLE, "")
    version, reason = choose_flash_attention(requested, capability, find_spec(PACKAGE) is not None)
    if version == 3:
        try:
            activate_flash_attention_impl("FA3")
        except Exception as error:  # the package was built for another PyTorch, or without the backward pass
            version, reason = 2, f"the package {PACKAGE} cannot be used: {type(error).__name__}: {error}"
            if requested:
                raise UserError(f"{VARIABLE} is 3: {reason}") from error
            logger.warning("attention: FlashAttention 2 is used instead of 3: %s", reason)
    if version is None:
        return EXACT
    return f"FlashAttention {version}" + (f" ({reason})" if reason else "")


def describe_kernels(device: str, dtype: torch.dtype, heads: tuple[int, int, int], tokens: int) -> str:
    """Returns a line on the kernels for packed samples (variable-length attention) and for dense attention.

    Args:
        device: Device of the network, such as "cuda:0".
        dtype: Dtype of queries, keys and values.
        heads: Number of query heads, number of key heads, channels per head.
        tokens: Tokens of a sample.
    """
    import torch

    name = str(dtype).removeprefix("torch.")
    packed = activate_flash_attention(device)
    if device.startswith("cuda") and dtype not in (torch.bfloat16, torch.float16):
        packed = f"{EXACT} (FlashAttention does not support {name})"
    dense = find_dense_kernel(device, dtype, heads, tokens)
    return f"attention on {device}, {heads[0]} heads of {heads[2]} in {name}: packed {packed}; dense {dense}"


def find_dense_kernel(device: str, dtype: torch.dtype, heads: tuple[int, int, int], tokens: int) -> str:
    """Returns the name of the kernel that PyTorch chooses for `scaled_dot_product_attention` without a mask.

    The arguments are those of `describe_kernels`.
    """
    import torch
    from torch.nn.attention import SDPBackend, current_flash_attention_impl

    rows = min(tokens, MAX_SAMPLE_TOKENS)
    q, k = (
        torch.empty(1, rows, count, heads[2], dtype=dtype, device=device, requires_grad=True).transpose(1, 2)
        for count in heads[:2]
    )
    chosen = SDPBackend(torch._fused_sdp_choice(q, k, k, enable_gqa=heads[0] != heads[1])).name
    if not device.startswith("cuda"):
        return {"FLASH_ATTENTION": "PyTorch's fused CPU kernel", "MATH": "unfused"}.get(chosen, chosen)
    version = torch.backends.cudnn.version()
    cudnn = "cuDNN" if version is None else f"cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}"
    flash = "FlashAttention 3" if current_flash_attention_impl() == "FA3" else "FlashAttention 2"
    names = {"FLASH_ATTENTION": flash, "EFFICIENT_ATTENTION": "memory-efficient attention", "MATH": "unfused"}
    return cudnn if chosen == "CUDNN_ATTENTION" else f"{names.get(chosen, chosen)}, not {cudnn}"
