"""What actions on a stored model have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from worldsmith.actions.action import Action
from worldsmith.config.declare.ranges import Factor, PositiveFactor, Range
from worldsmith.config.errors import UserError
from worldsmith.models.video_model import NOISE_LEVELS, DynamicGuidance

if TYPE_CHECKING:
    from worldsmith.checkpoint.formats.stored_model import StoredModel


class ModelAction(Action):
    """Reads a stored model."""

    places: ClassVar[tuple[str, ...]] = ("model",)
    aliases: ClassVar[Mapping[str, str]] = {"--checkpoint-path": "model"}

    class Config(Action.Config):
        model: str
        """Run folder, one of its checkpoints/iter_… folders, an export, the hub name of one, or adapters."""
        base: str | None = None
        """Where the weights are that adapters, or checkpoints of trained weights only, belong to; null: where those
        say."""


class WritingAction(ModelAction):
    """Writes something to a place `out`."""

    aliases: ClassVar[Mapping[str, str]] = {"-o": "out", "--output": "out", **ModelAction.aliases}

    class Config(ModelAction.Config):
        force: bool = False
        """Replace what an earlier command has put there."""


class VideoAction(WritingAction):
    """Makes videos with a stored model."""

    class Config(WritingAction.Config):
        steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] | None = None
        """Sampling steps; null: the model's own, such as 35."""
        guidance: Factor | None = None
        """Scale of classifier-free guidance, 1 = off; null: the scale of the run's samples, else the family's."""
        dynamic_guidance: DynamicGuidance | None = None
        """How the scale changes from step to step; null: the model's own. Not all families have it."""
        shift: PositiveFactor | None = None
        """Shift of the noise schedule; null: that of training. Not all families have one."""
        scheduler: str | None = None
        """The solver, where a family has several, such as ddim or dpm; null: the model's own."""
        device: str | None = None
        """cpu or cuda; null: cuda if there is one."""


def find_device(name: str | None) -> str:
    """The device asked for, or else cuda if there is one. Raises UserError for one that is not there."""
    import torch

    devices = torch.cuda.device_count()
    if name is None:
        return "cuda" if devices else "cpu"
    match = re.fullmatch(r"(?:cpu|cuda(?::(\d+))?)", name)
    if match is None:
        raise UserError(f"device {name}: there is no such device; give cpu or cuda")
    if name != "cpu" and int(match[1] or 0) >= devices:
        found = f"{devices} CUDA device{'' if devices == 1 else 's'}"
        raise UserError(f"device {name}: this machine has {found}; give {'a lower number or ' * bool(devices)}cpu")
    return name


def require_outside(out: Path, model: StoredModel) -> None:
    """Raises UserError for results among the model's own files."""
    if model.weights != "untrained" and out.resolve().is_relative_to(model.folder.resolve()):
        raise UserError(
            f"--out {out} lies in the folder of the model, which would be another one with these files in it; choose a "
            "folder outside"
        )
