"""The settings of attention: what is refused and why, and that they survive every way of writing them down."""

from __future__ import annotations

import copy
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.read_config import from_dict, from_yaml
from worldsmith.distributed.world import World
from worldsmith.families.cosmos3.attention.modes import (
    AttentionPattern,
    AxisWindow,
    NeighborhoodConfig,
    attention_modes,
    check_device,
    describe_modes,
    fit_axis,
)
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import tiny
from worldsmith.training.parallel import build_model

WINDOW = NeighborhoodConfig(window_size=[-1, 8, 8], stride=[1, 4, 4])


def make_config(**changes: object) -> Cosmos3Generator.Config:
    return Cosmos3Generator.Config(network=tiny(), precision="float32", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"natten_parameter_list": [{"3d": WINDOW}] * 6},
            'joint_attn_implementation = "two_way": only the implementation three_way can restrict the attention '
            "of latents; set joint_attn_implementation = 'three_way'",
        ),
        (
            {"joint_attn_implementation": "flex", "video_temporal_causal": True},
            'video_temporal_causal = true and joint_attn_implementation = "flex": only the implementation three_way',
        ),
        (
            {
                "joint_attn_implementation": "three_way",
                "video_temporal_causal": True,
                "natten_parameter_list": [{}] * 6,
            },
            "both restrict the attention of latents; omit one",
        ),
        (
            {"joint_attn_implementation": "three_way", "natten_parameter_list": [{"3d": WINDOW}]},
            "natten_parameter_list = a list of 1 and network.num_hidden_layers = 6: there must be one item",
        ),
        (
            {"joint_attn_implementation": "three_way", "natten_parameter_list": [{}, {"4d": WINDOW}, *[{}] * 4]},
            "natten_parameter_list[1] = a table of 1: unknown neighborhood key '4d': expected '1d', '2d' or '3d'",
        ),
        (
            {"joint_attn_implementation": "three_way", "natten_parameter_list": [{"2d": WINDOW}, *[{}] * 5]},
            "natten_parameter_list[0].2d.window_size = [-1, 8, 8]: it has 3 items, but a 2d grid has 2 axes",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_built(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make_config(**changes).check()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"window_size": [4], "window_size_float": [0.5]}, "window_size_float are fractions"),
        ({"window_size_float": [0.5], "dilation": [2]}, "dilation are numbers of tokens"),
        ({"stride": [2]}, "stride = [2]: the window is missing; add window_size or window_size_float"),
        ({"is_causal": [True]}, "is_causal = [true]: the window is missing"),
        (
            {"window_size": [4, 4], "stride": [2]},
            "= [2] and window_size = [4, 4]: their lengths differ; write",
        ),
        (
            {"window_size": [-1], "dilation": [2]},
            "dilation[0] = 2 and window_size[0] = -1: a window of the complete axis",
        ),
        (
            {"window_size": [4, 4], "stride": [2, 5]},
            "stride[1] = 5 and window_size[1] = 4: the stride is larger",
        ),
        ({"window_size": [1]}, "window_size[0] must be at least 2, or -1, found 1"),
        ({"window_size": [4], "stride": [0]}, "stride[0] must be at least 1, found 0"),
        ({"window_size_float": [0.0]}, "window_size_float[0] must be above 0 and at most 1, found 0.0"),
        ({"window_size_float": [0.5], "stride_float": [1.5]}, "stride_float[0] must be at least 0 and at most 1"),
    ],
)
def test_a_neighbourhood_that_makes_no_sense_is_refused(fields: dict[str, list[float]], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        NeighborhoodConfig(**fields).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "stride", "dilation", "length", "fitted"),
    [
        (0.5, 0.0, 0.0, 11, (5, 1, 1)),
        (0.5, 1.0, 1.0, 11, (5, 5, 2)),
        (0.1, 0.0, 1.0, 11, (2, 1, 5)),
        (0.1, 0.5, 0.5, 11, (2, 1, 2)),
        (1.0, 0.3, 1.0, 11, (11, 3, 1)),
        (0.25, 0.5, 0.34, 45, (11, 5, 1)),
        (0.01, 1.0, 0.5, 2, (2, 2, 1)),
    ],
)
def test_shares_become_counts(window: float, stride: float, dilation: float, length: int, fitted: tuple) -> None:
    """win = min(x, max(2, ⌊k·x⌋)), stride = min(win, max(1, ⌊s·win⌋)), dil = min(x//win, max(1, ⌊d·(x//win)⌋))."""
    config = NeighborhoodConfig(window_size_float=[window], stride_float=[stride], dilation_float=[dilation])
    assert fit_axis(config, 0, length) == AxisWindow(*fitted)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.tuples(*[st.integers(1, 200)] * 3))
def test_shares_fit_every_grid(shares: list[float], grid: tuple[int, int, int]) -> None:
    """None is refused, whatever the grid; axes of length 1 are left out."""
    window, stride, dilation = (max(share, 1e-6) for share in shares)
    profiles = {
        rank: NeighborhoodConfig(
            window_size_float=[window] * rank, stride_float=[stride] * rank, dilation_float=[dilation] * rank
        )
        for rank in (1, 2, 3)
    }
    windows = AttentionPattern(profiles).windows(grid)
    for own, length in zip(windows or (), grid, strict=False):
        assert own == AxisWindow(1) if length == 1 else 2 <= own.window * own.dilation <= length


def test_layers_that_see_the_same_share_a_pattern() -> None:
    """So that a plan is made once for all of them."""
    other = {"2d": NeighborhoodConfig(), "3d": NeighborhoodConfig(window_size_float=[1.0, 0.5, 0.5])}
    modes = attention_modes("three_way", 5, [{}, {"3d": WINDOW}, other, {"3d": copy.deepcopy(WINDOW)}, {}])
    assert modes.layers == (0, 1, 2, 1, 0)
    assert describe_modes(modes) == (
        "three_way: 3 of 5 layers with windows (for 3d grids; attention in other grids is dense)"
    )


def test_windows_survive_yaml_and_plain_data() -> None:
    """The run folder's YAML alone rebuilds them."""
    config = make_config(
        joint_attn_implementation="three_way",
        natten_parameter_list=[
            {},
            *[{"2d": NeighborhoodConfig(), "3d": WINDOW}] * 4,
            {"3d": NeighborhoodConfig(window_size_float=[0.5, 0.5, 0.5], is_causal=[True, False, False])},
        ],
    )
    config.check()
    assert from_dict(to_dict(config), Cosmos3Generator.Config) == config
    assert from_yaml(to_yaml(config), Cosmos3Generator.Config) == config


def test_a_misspelt_setting_is_named_with_its_layer() -> None:
    data = to_dict(make_config())
    data["natten_parameter_list"] = [{}, {"3d": {"window_sizes": [2, 2, 2]}}]
    with pytest.raises(ValueError, match=r"natten_parameter_list\[1\]\.3d.*window_sizes(.|\n)*window_size"):
        from_dict(data, Cosmos3Generator.Config)


def test_training_with_flex_on_a_cpu_is_refused_and_says_what_runs_there() -> None:
    """Before the network has memory. Sampling and exporting what was trained with it elsewhere is no training."""
    with pytest.raises(UserError, match=r"'flex' only trains on CUDA; on 'cpu'.*'two_way', which computes the same"):
        build_model(make_config(joint_attn_implementation="flex"), World())
    Cosmos3Generator(make_config(joint_attn_implementation="flex"), device="meta")
    check_device("three_way", "cpu")
