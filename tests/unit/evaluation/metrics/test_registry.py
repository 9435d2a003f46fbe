"""The registry of metrics: names, flags, and the table of the docs."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from worldsmith.cli.schema import schema_text
from worldsmith.config.declare.configurable import field_hints, field_names
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.evaluation.metrics.registry import LOSS, METRICS, ROBOTS
from worldsmith.tools.evaluate.evaluate_videos import EvaluateVideos

PAGE = Path(__file__).parents[4] / "docs/evaluate.md"


def test_the_flag_accepts_every_metric() -> None:
    (choices,) = get_args(field_hints(EvaluateVideos.Config)["evaluators"])
    assert get_args(choices) == (LOSS, *ROBOTS, *METRICS)


def test_the_table_of_the_docs_is_that_of_the_command() -> None:
    hint = "replace the table with the output of: worldsmith schema metrics"
    assert f"\n\n{schema_text('metrics')}\n" in PAGE.read_text(encoding="utf-8"), hint


def test_outputs_and_settings_have_names_of_their_own() -> None:
    outputs = [output for kind in METRICS.values() for output in kind.outputs]
    settings = [name for kind in METRICS.values() for name in field_names(kind.Config)]
    assert len(set(outputs)) == len(outputs)
    assert len(set(settings)) == len(settings)


@pytest.mark.parametrize("name", METRICS)
def test_settings_are_documented_flags(name: str) -> None:
    kind = METRICS[name]
    assert field_docs(kind.Config).keys() >= set(field_names(kind.Config)) <= set(field_names(EvaluateVideos.Config))
    assert kind.weights is None or kind.weights.option in field_names(kind.Config)
