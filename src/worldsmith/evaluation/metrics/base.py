"""`Metric`: base class of the metrics of generated videos, with the protocol of torchmetrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import Configurable
from worldsmith.evaluation.pretrained import PretrainedWeights
from worldsmith.models.video_model import Mode

if TYPE_CHECKING:
    from worldsmith.evaluation.generated_video import GeneratedVideo

Better = Literal["higher", "lower", "close to the real videos"]
Values = dict[str, float | str]
"""Outputs of a metric for one sample; a text is the reason of a missing value."""


@dataclass(frozen=True, slots=True)
class Output:
    """Description of one number that a metric computes."""

    unit: str
    """`share`: a fraction of samples, with Wilson's interval."""
    description: str
    better: Better | None = None
    """Which values are good; None: no direction is better by itself."""


class Metric(Configurable, ABC):
    """Base class of metrics; measures the generated videos of one model, then those of the next after `reset`.

    Fields of its Config are flags of `worldsmith evaluate`. A new metric is a file in `evaluation/metrics/` and a line
    in `evaluation/metrics/registry.py`; choices, help, messages and the table of the docs follow.

    Args:
        config: Config of the metric.
        device: Device of its networks, such as "cuda".
    """

    outputs: ClassVar[Mapping[str, Output]]
    """Outputs by their key in `compute` and evaluation.json."""
    weights: ClassVar[PretrainedWeights | None] = None
    """Pretrained weights that it requires."""
    for_images: ClassVar[bool] = True
    """Whether it can measure images."""
    by_default: ClassVar[bool] = True
    """Whether it measures a dataset of clips if no evaluators are chosen."""
    measures_real: ClassVar[bool] = False
    """Whether it can also measure real videos."""

    class Config(Configurable.Config):
        pass

    def __init__(self, config: Config, *, device: str = "cpu") -> None:
        self.config: Any = config
        self.device = device
        self.reset()

    def reset(self) -> None:
        """Discards the measured videos; those of another model come next."""
        self.samples: int | None = None
        """Number of videos in `compute`; None: all that were given."""
        self.by_sample: dict[str, Values] = {}
        """Values of single samples, if it has any, or of groups by the name of their first sample."""
        self.not_measured: dict[str, str] = {}
        """Reasons for which `compute` omits outputs."""

    @abstractmethod
    def update(self, batch: Sequence[GeneratedVideo]) -> None:
        """Adds videos; `GeneratedVideo.real` is the real video, or the reason why it does not exist."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Computes the outputs over all videos since `reset`; outputs in `not_measured` are missing."""

    def unit(self, output: str) -> str:
        """Returns the unit of an output; call it after `compute`."""
        return self.outputs[output].unit

    def notes(self) -> list[str]:
        """Returns what limits the meaning of the computed values, one sentence each; call it after `compute`."""
        return []

    def means(self) -> dict[str, float]:
        """Computes the mean of each output over `by_sample`; values without a number are skipped."""
        values = {name: [of[name] for of in self.by_sample.values() if name in of] for name in self.outputs}
        numbers = {name: [value for value in of if not isinstance(value, str)] for name, of in values.items()}
        return {name: sum(of) / len(of) for name, of in numbers.items() if of}

    @classmethod
    def skip_reason(cls, config: Config, mode: Mode | None, modes: Sequence[Mode]) -> str:
        """Returns the reason for which the metric cannot be computed; "" if it can.

        Args:
            config: Config of the metric.
            mode: Generation mode of the videos of a dataset; None: stated in sample files.
            modes: Generation modes that the model supports.
        """
        if mode == "text2image" and not cls.for_images:
            return "it needs videos, but this model generates images"
        if cls.weights is not None and not cls.weights.folder(config):
            return f"its weights are not set: {cls.weights.advice}"
        return ""


class SampleMetric(Metric):
    """Base class of metrics with a value per sample, so that models are compared sample by sample, with intervals."""

    @abstractmethod
    def measure(self, sample: GeneratedVideo) -> Values:
        """Computes the outputs for one sample; text states why an output has no number."""

    def update(self, batch: Sequence[GeneratedVideo]) -> None:
        self.by_sample |= {sample.name: self.measure(sample) for sample in batch}

    def compute(self) -> dict[str, float]:
        return self.means()
