"""Normalized action rows are those of the reference, and can be restored; statistics files are read in both forms."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.config.errors import UserError
from worldsmith.data.robots.normalizer import (
    CLAMPED,
    NAMES,
    Method,
    build_normalizer,
    compute_statistics,
)

METHODS = [method for method in get_args(Method) if method != "none"]
STATISTICS = {
    "mean": [0.1, -0.2, 0.5],
    "std": [0.3, 0.02, 0.0],
    "min": [-1.0, -0.9, 0.0],
    "max": [0.75, 0.4, 1.0],
    "q01": [-0.5, -0.05, 0.0],
    "q99": [0.6, 0.03, 1.0],
}
ROWS = [[0.2, -0.1, 0.5], [-0.9, 0.35, 0.0], [0.6, 0.03, 1.0]]
AFFINE = [[0.272727, -2.25, 0.0], [-1.727273, 9.0, -1.0], [1.0, 1.0, 1.0]]
# Results of resolve_action_normalization(method, STATISTICS) of cosmos_framework 5eee9ed for ROWS.
REFERENCE = {
    "quantile": AFFINE,
    "quantile_rot": AFFINE,
    "minmax": [[0.371429, 0.230769, 0.0], [-0.885714, 0.923077, -1.0], [0.828571, 0.430769, 1.0]],
    "meanstd": [[0.333333, 5.0, 0.0], [-3.333333, 27.500002, -50000000.0], [1.666667, 11.5, 50000000.0]],
    "quantile_rot_scale_floor": [[0.272727, -0.505618, 0.0], [-1.727273, 2.022472, -1.0], [1.0, 0.224719, 1.0]],
    "asinh_rot": [[0.305721, -1.758798, 0.0], [-1.491497, 3.28288, -1.0], [1.0, 1.0, 1.0]],
    "piecewise_asinh_rot": [[0.272727, -2.047593, 0.0], [-1.674866, 3.776472, -1.0], [1.0, 1.0, 1.0]],
}
numbers = st.lists(st.floats(-50, 50, width=32), min_size=3, max_size=3)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_gives_the_numbers_of_the_reference(method: str) -> None:
    found = build_normalizer(method, STATISTICS, 3).normalize(torch.tensor(ROWS))
    assert torch.allclose(found, torch.tensor(REFERENCE[method]), rtol=1e-5, atol=2e-6)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(METHODS), numbers)
def test_rows_are_restored(method: str, row: list[float]) -> None:
    normalizer = build_normalizer(method, STATISTICS | {"std": [0.3, 0.02, 0.1]}, 3)
    rows = torch.tensor([row])
    assert torch.allclose(normalizer.denormalize(normalizer.normalize(rows)), rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", CLAMPED)
def test_clamped_rows_are_inside_the_range(method: str) -> None:
    plain, clamped = (build_normalizer(method, STATISTICS, 3, clamp=clamp) for clamp in (False, True))
    rows = torch.tensor(ROWS)
    assert torch.equal(clamped.normalize(rows), plain.normalize(rows).clamp(-1, 1))


@pytest.mark.parametrize("method", METHODS)
def test_both_forms_of_a_file_are_read(method: str) -> None:
    other = {name: [9.0, 9.0, 9.0] for name in NAMES}
    block, unused = ("global_raw", "global") if "rot" in method else ("global", "global_raw")
    nested = build_normalizer(method, json.dumps({"metadata": {}, block: STATISTICS, unused: other}), 3)
    flat = build_normalizer(method, STATISTICS, 3)
    assert torch.equal(nested.normalize(torch.tensor(ROWS)), flat.normalize(torch.tensor(ROWS)))


def test_rows_without_normalization_are_unchanged() -> None:
    normalizer = build_normalizer("none", "", 3)
    rows = torch.tensor([*ROWS, [-0.0, 1e-40, 3e38]])
    assert torch.equal(normalizer.normalize(rows), rows)
    assert torch.equal(normalizer.denormalize(rows), rows)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("[1, 2", "Expecting"),
        ([1], "error at"),
        ({"q01": [0, 0, 0]}, "'q99'"),
        ({"global_raw": {"q01": [0, 0, 0], "q99": "text"}}, "text"),
        ({"q01": [0, 0], "q99": [1, 1]}, "q01: expected 3 finite numbers"),
        ({"q01": [0, 0, float("nan")], "q99": [1, 1, 1]}, "q01: expected 3 finite numbers"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(content: Any, found: str) -> None:
    with pytest.raises(UserError, match=found):
        build_normalizer("quantile_rot", content, 3)


def test_computed_statistics_are_those_of_numpy_and_can_be_read() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 3)) * [1, 5, 0.1] + [0, 1, 2]
    content = compute_statistics(rows, [False, False, True], {"width": 3})
    raw = content["global_raw"]
    assert np.allclose(raw["q01"], np.percentile(rows, 1, axis=0))
    assert np.allclose([raw["mean"], raw["std"]], [rows.mean(0), rows.std(0)])
    assert {name: values[2] for name, values in content["global"].items()} == {
        **{"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0, "q01": -1.0, "q99": 1.0}
    }
    for method in METHODS:
        normalizer = build_normalizer(method, json.dumps(content), 3)
        found = normalizer.normalize(torch.from_numpy(rows).float())
        assert float(found[:, :2].abs().median()) < 1
        if "rot" not in method:  # the block `global` leaves rotations as they are
            assert torch.allclose(found[:, 2], torch.from_numpy(rows[:, 2]).float())
