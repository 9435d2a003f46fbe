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
"""Output name -> value of a metric for one sample, or a string with the reason why the value is missing."""


@dataclass(frozen=True, slots=True)
class Output:
    """Description of one number that a metric computes: unit, meaning and which values are better."""

    unit: str
    """Unit of the number. `share` is a fraction of the samples, which gets Wilson's interval."""
    description: str
    better: Better | None = None
    """Which values are better; None: neither higher nor lower values are better."""


class Metric(Configurable, ABC):
    """Base class of metrics of generated videos, with the interface of torchmetrics: `update`, `compute`, `reset`.

    Fields of its Config are flags of `worldsmith evaluate`. A new metric needs a file in `evaluation/metrics/` and a
    line in `evaluation/metrics/registry.py`; the flags, their help and the table of metrics in the docs follow from it.

    Args:
        config: Config of the metric.
        device: Device of its networks, such as "cuda".
    """

    outputs: ClassVar[Mapping[str, Output]]
    """Outputs by their key in `compute` and evaluation.json."""
    weights: ClassVar[PretrainedWeights | None] = None
    """Pretrained weights that the metric requires; None: it requires none."""
    for_images: ClassVar[bool] = True
    """Whether the metric can measure images."""
    by_default: ClassVar[bool] = True
    """Whether `worldsmith evaluate --dataset` computes the metric if `--evaluators` is not given."""
    measures_real: ClassVar[bool] = False
    """Whether the metric can also measure real videos."""

    class Config(Configurable.Config):
        pass

    def __init__(self, config: Config, *, device: str = "cpu") -> None:
        self.config: Any = config
        self.device = device
        self.reset()

    def reset(self) -> None:
        """Discards the measured videos, so that the videos of another model can be measured."""
        self.samples: int | None = None
        """Number of videos that `compute` used; None: all videos passed to `update`."""
        self.by_sample: dict[str, Values] = {}
        """Values by sample name, or by the name of the first sample of a group; empty if there are no such values."""
        self.not_measured: dict[str, str] = {}
        """Reason why `compute` omits an output, by output name."""

    @abstractmethod
    def update(self, batch: Sequence[GeneratedVideo]) -> None:
        """Measures the videos in `batch` and stores their values or features until `reset`.

        `GeneratedVideo.real` is the real video of a generated one, or a string with the reason why it is not available.
        """

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Returns the value of each output over all videos since `reset`, by output name.

        Outputs that cannot be computed are missing; their reasons are in `not_measured`.
        """

    def unit(self, output: str) -> str:
        """Returns the unit of the output with the name `output`; call it after `compute`."""
        return self.outputs[output].unit

    def notes(self) -> list[str]:
        """Returns remarks that limit the meaning of the computed values, one sentence each; call it after `compute`."""
        return []

    def means(self) -> dict[str, float]:
        """Returns the mean of each output over the measured samples, by output name; missing values are skipped."""
        values = {name: [of[name] for of in self.by_sample.values() if name in of] for name in self.outputs}
        numbers = {name: [value for value in of if not isinstance(value, str)] for name, of in values.items()}
        return {name: sum(of) / len(of) for name, of in numbers.items() if of}

    @classmethod
    def skip_reason(cls, config: Config, mode: Mode | None, modes: Sequence[Mode]) -> str:
        """Returns the reason why the metric cannot be computed; "" if it can be computed.

        Args:
            config: Config of the metric.
            mode: Generation mode of all videos; None if sample files state the mode of each video.
            modes: Generation modes that the model supports.
        """
        if mode == "text2image" and not cls.for_images:
            return "the metric needs videos, but this model generates images"
        if cls.weights is not None and not cls.weights.folder(config):
            return f"its weights are not set: {cls.weights.advice}"
        return ""


class SampleMetric(Metric):
    """Base class of metrics that compute a value for each sample and report the mean over the samples."""

    @abstractmethod
    def measure(self, sample: GeneratedVideo) -> Values:
        """Returns output name -> value for one sample, or a string with the reason why the value is missing."""

    def update(self, batch: Sequence[GeneratedVideo]) -> None:
        self.by_sample |= {sample.name: self.measure(sample) for sample in batch}

    def compute(self) -> dict[str, float]:
        return self.means()
