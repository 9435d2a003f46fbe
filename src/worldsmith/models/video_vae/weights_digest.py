"""What tells the weights of a VAE from others."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def weights_digest(model: Any, *, about: tuple[str, ...] = (), ignored: tuple[str, ...] = ()) -> str:
    """sha256 over `about`, the settings of a diffusers model but for those `ignored`, and all of its tensors."""
    import torch

    settings = {
        name: value for name, value in dict(model.config).items() if not name.startswith("_") and name not in ignored
    }
    header = [*about, settings] if about else settings
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
