"""Which evaluators measure generated videos, why others do not, and the networks that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.config.errors import UserError
from worldsmith.evaluation.measuring import LOSS
from worldsmith.evaluation.pretrained import CLIP, VIDEOMAE
from worldsmith.models.video_model import Mode

if TYPE_CHECKING:
    from worldsmith.evaluation.pretrained import ClipScorer, VideoFeatures

NETWORKS = {"clip": CLIP, "fvd": VIDEOMAE}
"""Evaluators that need a pretrained network."""


@dataclass(frozen=True, slots=True)
class Evaluators:
    """The evaluators that are asked for."""

    chosen: Sequence[str]
    folders: Mapping[str, str]
    """Those of the networks that are given, by evaluator."""
    mode: Mode | None
    """What the videos of a data set are generated from; None: files of samples say it."""
    modes: Sequence[Mode]
    """What the model could generate them from."""

    @property
    def active(self) -> list[str]:
        """Those that can measure something."""
        return [name for name in self.chosen if name not in self.skipped]

    @property
    def skipped(self) -> dict[str, str]:
        """Why the others measure nothing."""
        missing = {name: network for name, network in NETWORKS.items() if name not in self.folders}
        found = {name: f"its weights are not given: {network.advice}" for name, network in missing.items()}
        if self.mode in ("text2video", "text2image"):
            advice = "; --model-mode image2video compares them" if "image2video" in self.modes else ""
            found["continuation"] = f"what is generated from text need not look like the clip{advice}"
        if self.mode == "text2image":
            found |= dict.fromkeys(("motion", "fvd"), "it is for videos, and this model makes images")
        return {name: reason for name, reason in found.items() if name in self.chosen}

    @property
    def generates(self) -> bool:
        """Whether videos are made: not for the loss alone."""
        return any(name != LOSS for name in self.active)

    def require_active(self) -> None:
        """Raises UserError when none can measure anything."""
        if not self.active:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            raise UserError(f"nothing can be measured: {reasons}")

    def require_folders(self) -> None:
        """Raises UserError for a folder that does not hold the network of its evaluator, and when none can measure
        anything; reads no weights."""
        for name, folder in self.folders.items():
            NETWORKS[name].require(folder)
        self.require_active()

    def load_networks(self, device: str) -> tuple[ClipScorer | None, VideoFeatures | None]:
        """The networks of the evaluators clip and fvd, where they measure something."""
        from worldsmith.evaluation.pretrained import ClipScorer, VideoFeatures

        given = {name: Path(folder) for name, folder in self.folders.items() if name in self.active}
        clip = ClipScorer(given["clip"], device) if "clip" in given else None
        return clip, VideoFeatures(given["fvd"], device) if "fvd" in given else None
