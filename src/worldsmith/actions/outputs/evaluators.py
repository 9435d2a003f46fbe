"""The evaluators that measure generated videos, and why others are skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worldsmith.config.declare.configurable import Config, field_names
from worldsmith.config.errors import UserError
from worldsmith.evaluation.measuring import LOSS
from worldsmith.evaluation.metric import Metric
from worldsmith.evaluation.metrics.registry import METRICS
from worldsmith.models.video_model import Mode


@dataclass(frozen=True, slots=True)
class Evaluators:
    """The requested evaluators."""

    chosen: Sequence[str]
    configs: Mapping[str, Metric.Config]
    """Of every metric."""
    mode: Mode | None
    """What the videos of a data set are generated from; None: files of samples state it."""
    modes: Sequence[Mode]
    """What the model could generate them from."""

    @property
    def active(self) -> list[str]:
        """The evaluators that can measure something."""
        return [name for name in self.chosen if name not in self.skipped]

    @property
    def skipped(self) -> dict[str, str]:
        """Why the others measure nothing."""
        requested = [name for name in METRICS if name in self.chosen]
        found = {name: METRICS[name].skip_reason(self.configs[name], self.mode, self.modes) for name in requested}
        return {name: reason for name, reason in found.items() if reason}

    @property
    def folders(self) -> dict[str, str]:
        """Folders of pretrained weights that are given."""
        found = {name: kind.weights.folder(self.configs[name]) for name, kind in METRICS.items() if kind.weights}
        return {name: folder for name, folder in found.items() if folder}

    @property
    def generates(self) -> bool:
        """Whether videos are generated: not for the loss only."""
        return any(name != LOSS for name in self.active)

    def require_active(self) -> None:
        """Raises UserError if none can measure anything."""
        if not self.active:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped.items())
            raise UserError(f"nothing can be measured: {reasons}")

    def require_folders(self) -> None:
        """Raises UserError for a folder that does not hold the weights of its metric, and if none can measure anything;
        reads no weights."""
        for name, folder in self.folders.items():
            if weights := METRICS[name].weights:
                weights.require(folder)
        self.require_active()

    def build(self, device: str) -> list[Metric]:
        """The active metrics, in the order of results, with their weights."""
        return [self.configs[name].build(device=device) for name in METRICS if name in self.active]


def metric_configs(settings: Config) -> dict[str, Metric.Config]:
    """The Config of each metric, from a Config that has the fields of all of them (`MetricOptions`)."""
    return {
        name: kind.Config(**{field: getattr(settings, field) for field in field_names(kind.Config)})
        for name, kind in METRICS.items()
    }
