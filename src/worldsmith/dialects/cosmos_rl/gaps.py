"""Spec of a gap analysis: the arguments of the tool for Cosmos-RL's results, as keys."""

from __future__ import annotations

from typing import Annotated

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.search import Example, Popular
from worldsmith.dialects.translation import SpecForm, renamed


class GapsSpec(Config):
    """Spec of a gap analysis, which collects the failure cases of an evaluation."""

    results_dir: Annotated[str, Example("results/evaluate"), Popular()]
    """Folder or URL that contains results.json at any depth."""
    gaps_parquet: Annotated[str, Example("results/gaps.parquet"), Popular()]
    """Output file of the failure cases."""
    kpi_ann_path: str | None = None
    """Annotations that were evaluated; null = the annotations that the evaluation recorded."""
    kpi_media_path: str | None = None
    """Folder that video paths in the annotations are relative to; null = as in the evaluation."""


KEYS = ("results_dir", "gaps_parquet", "kpi_ann_path", "kpi_media_path")
FORM = SpecForm("gaps", GapsSpec, tuple(renamed(key, key) for key in KEYS))
