"""Every family trains in float16 as it does in float32, to the rounding of float16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from metrics_files import read_metrics

from worldsmith.training.trainer import Trainer


def cosmos3(folder: Path) -> Any:
    import tiny_runs

    return tiny_runs.tiny_config(tiny_runs.make_world(folder, clips=3), steps=4)


def reasoner(folder: Path) -> Any:
    import reasoner_runs

    return reasoner_runs.reasoner_config(reasoner_runs.make_world(folder, samples=4), steps=4)


def cogvideox(folder: Path) -> Any:
    import tiny_cogvideox

    return tiny_cogvideox.tiny_config(tiny_cogvideox.make_world(folder), "cogvideox_5b_tiny")


FAMILIES = {"cosmos3": cosmos3, "reasoner": reasoner, "cogvideox": cogvideox}


@pytest.mark.parametrize("family", ["cosmos3", *(pytest.param(f, marks=pytest.mark.slow) for f in list(FAMILIES)[1:])])
def test_four_steps(family: str, tmp_path: Path) -> None:
    config = FAMILIES[family](tmp_path / "world")
    losses = {}
    for precision in ("float32", "float16"):
        config.model.config.precision = precision
        if family == "cogvideox":
            config.model.config.tokenizer.precision = config.model.config.text_encoder.precision = precision
        Trainer(config, run_folder=tmp_path / precision).train()
        lines = read_metrics(tmp_path / precision / "metrics.jsonl")
        assert not any(line["skipped"] for line in lines)
        losses[precision] = [line["loss"] for line in lines]
    assert losses["float16"] == pytest.approx(losses["float32"], rel=1e-2)
    assert losses["float16"] != losses["float32"]
