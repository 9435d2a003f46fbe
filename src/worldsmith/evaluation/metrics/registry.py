"""The metrics of generated videos: those of `worldsmith evaluate`, its flags for them, and their table."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import worldsmith
from worldsmith.evaluation.metrics.base import Metric, Output

LOSS = "loss"
"""Name of the held-out loss in `--evaluators`; `worldsmith evaluate` computes it without generating videos."""
INVERSE, FORWARD = "inverse_dynamics", "forward_dynamics"
TRUE, SHUFFLED, RATIO = "loss_true_actions", "loss_shuffled_actions", "shuffled_to_true"
ROBOTS: dict[str, dict[str, Output]] = {
    INVERSE: {
        "action_mse": Output("normalized", "mean squared error of actions that are predicted from all frames", "lower"),
        "action_mse_N": Output("data units²", "the same for channel N, in the units of the data", "lower"),
    },
    FORWARD: {
        TRUE: Output("", "loss of the video with its actions", "lower"),
        SHUFFLED: Output("", "the same with the actions of another window, and the same noise"),
        RATIO: Output("", "ratio of these losses; 1: the actions are ignored", "higher"),
    },
}
"""Outputs by evaluator of runs on robot episodes. `forward_dynamics` also has those of `continuation`."""
PLACES = {
    "continuation": "pixel_metrics:Continuation",
    "motion": "pixel_metrics:MotionStrength",
    "sharpness": "pixel_metrics:Sharpness",
    "diversity": "pixel_metrics:Diversity",
    "clip": "clip_score:ClipScore",
    "fvd": "frechet_distance:FrechetVideoDistance",
}
"""Name in `--evaluators` -> `module:Class` of the metric in this folder, in the order of the results."""


def _find_metrics() -> dict[str, type[Metric]]:
    """Returns the metric classes of `evaluation/metrics/` and of `worldsmith/demo/`, by their name in `--evaluators`.

    Metrics that need pretrained weights are last.
    """
    paths = {name: f"{__package__}.{place}" for name, place in PLACES.items()}
    paths |= importlib.import_module(worldsmith.DEMO).METRICS
    found = {name: pkgutil.resolve_name(path) for name, path in paths.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].weights is not None))


METRICS: dict[str, type[Metric]] = _find_metrics()

if TYPE_CHECKING:
    Evaluator = str
    MetricOptions = Metric.Config
else:
    Evaluator = Literal[(LOSS, *ROBOTS, *METRICS)]

    class MetricOptions(*(kind.Config for kind in reversed(METRICS.values()))):
        """Config that has the fields of the Configs of all metrics."""


def metrics_table() -> Iterator[str]:
    """Yields the lines of the Markdown table of metrics in `docs/evaluate.md`."""
    yield from ("| evaluator | metric | description |", "|---|---|---|")
    yield f"| `{LOSS}` | `{LOSS}` | held-out loss, with `--dataset` |"
    for name, outputs in ROBOTS.items():
        for index, (key, output) in enumerate(outputs.items()):
            yield f"| {'' if index else f'`{name}` '}| `{key}` | {output.description} (robot episodes) |"
    for name, kind in METRICS.items():
        needs = "" if kind.weights is None else f", with `{kind.weights.flag} FOLDER`"
        for index, (key, output) in enumerate(kind.outputs.items()):
            yield f"| {'' if index else f'`{name}` '}| `{key}` | {output.description}{needs} |"
