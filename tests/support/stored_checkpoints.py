"""Checkpoints of a few tensors, as tests of saving and finding them need them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worldsmith.checkpoint.run.checkpointer import Checkpointer


def checkpointer(folder: Path, **settings) -> Checkpointer:
    return Checkpointer.Config(init="scratch", **settings).build(folder=folder)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"net.{name}": torch.randn(shape, generator=generator) for name, shape in (("a", (4, 6)), ("b", (3,)))}


def save(one: Checkpointer, iteration: int) -> Path:
    return one.save(iteration, {"model": weights(iteration)}, dataloader={"position": iteration})


def messages(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
