"""Attention between the latents of a layer: the settings of `joint_attn_implementation`, without torch.

- two_way: a latent attends to all latents of its sample, and to the sample's text.
- three_way: the same, where a layer may restrict the latents to neighborhoods in their (time, height, width) grid.
- flex: as two_way, computed by FlexAttention.

Text attends to the earlier text of its own sample in every mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from worldsmith.config import Config, WrongValueError, wrong
from worldsmith.config.declare.ranges import Count, Range, Share
from worldsmith.config.errors import UserError

T = TypeVar("T")
Grid = tuple[int, int, int]
"""Number of latent tokens of a sample along time, height and width."""

AXES = ("time", "height", "width")
PROFILES = {"1d": 1, "2d": 2, "3d": 3}


class NeighborhoodConfig(Config):
    """Config of the neighborhood to which a latent token attends, with the settings of NATTEN.

    Each list has one item per axis of the token grid that is longer than 1, in the order time, height, width. If all
    lists are empty, attention is not restricted. Sizes are numbers of tokens, or fractions (`…_float`) that fit every
    resolution; a config with both is invalid.
    """

    window_size: list[Annotated[int, Range(ge=2, also=-1)]] = field(default_factory=list)
    """Window size in tokens along each axis; -1: the complete axis."""
    window_size_float: list[Annotated[float, Range(gt=0, le=1)]] = field(default_factory=list)
    """Window size as a fraction of the axis; at least 2 tokens."""
    stride: list[Count] = field(default_factory=list)
    """Number of consecutive tokens that share one window, per axis, at most the window size; empty: 1."""
    stride_float: list[Share] = field(default_factory=list)
    """Stride as a fraction of the window; 0: stride 1."""
    dilation: list[Count] = field(default_factory=list)
    """Dilation of the attention window per axis; empty: 1."""
    dilation_float: list[Share] = field(default_factory=list)
    """Dilation as a fraction of the largest one that fits; 0: dilation 1."""
    is_causal: list[bool] = field(default_factory=list)
    """Per axis: whether attention is causal. Empty: false."""

    def check(self) -> None:
        counts, shares = ("window_size", "stride", "dilation"), ("window_size_float", "stride_float", "dilation_float")
        given = [name for name in (*counts, *shares, "is_causal") if getattr(self, name)]
        if not given:
            return
        used = [name for name in given if name in counts], [name for name in given if name in shares]
        if all(used):
            why = f"{', '.join(used[0])} are numbers of tokens and {', '.join(used[1])} are fractions of the grid"
            raise wrong(self, *used[0], *used[1], why=why, remedy="use only numbers or only fractions")
        if not self.window_size and not self.window_size_float:
            raise wrong(self, *given, why="the window is missing", remedy="add window_size or window_size_float")
        window = "window_size" if self.window_size else "window_size_float"
        for name in given:
            if len(getattr(self, name)) != len(getattr(self, window)):
                raise wrong(self, name, window, why="their lengths differ", remedy="write one item per axis")
        for axis, size in enumerate(self.window_size):
            stride, dilation = _item(self.stride, axis, 1), _item(self.dilation, axis, 1)
            if size == -1 and dilation != 1:
                why = "a window of the complete axis has no dilation"
                raise wrong(self, f"dilation[{axis}]", f"window_size[{axis}]", why=why)
            if size != -1 and stride > size:
                raise wrong(self, f"stride[{axis}]", f"window_size[{axis}]", why="the stride is larger than the window")


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """Attention window (neighborhood) along one axis of the token grid, in tokens."""

    window: int
    stride: int = 1
    dilation: int = 1
    causal: bool = False


Windows = tuple[AxisWindow, AxisWindow, AxisWindow]
"""Attention windows of a neighborhood along time, height and width."""


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """Attention pattern between the latents of a layer: dense, restricted to a neighborhood, or causal in time.

    The neighborhood depends on the number of token grid axes that are longer than 1.
    """

    profiles: Mapping[int, NeighborhoodConfig]
    """Neighborhood by the number of token grid axes longer than 1; grids with another number use dense attention."""
    temporal_causal: bool = False
    """Whether latents attend only to the same and earlier frames."""
    where: str = ""
    """Config path of the setting that defines the pattern, for error messages."""

    def windows(self, grid: Grid) -> Windows | None:
        """Returns the attention windows along time, height and width; None: this grid has dense attention.

        Args:
            grid: Number of latent tokens along time, height and width.

        Raises:
            UserError: If the neighborhood does not fit the grid.
        """
        if self.temporal_causal:
            frames, rows, columns = grid
            return None if frames == 1 else (AxisWindow(frames, causal=True), AxisWindow(rows), AxisWindow(columns))
        long = [axis for axis, length in enumerate(grid) if length > 1]
        profile = self.profiles.get(len(long))
        if profile is None or not (profile.window_size or profile.window_size_float):
            return None
        axes = [AxisWindow(1), AxisWindow(1), AxisWindow(1)]
        for index, axis in enumerate(long):
            axes[axis] = fit_axis(profile, index, grid[axis])
            self.check_fit(axes[axis], axis, grid)
        if all(own.window == length and not own.causal for own, length in zip(axes, grid, strict=True)):
            return None
        return axes[0], axes[1], axes[2]

    def check_fit(self, own: AxisWindow, axis: int, grid: Grid) -> None:
        """Raises UserError if a window is longer than its axis of the grid, or if the stride exceeds the window.

        Args:
            own: Window along the axis.
            axis: Index of the axis: 0 time, 1 height, 2 width.
            grid: Number of latent tokens along all three axes.
        """
        length, needed = grid[axis], own.window * own.dilation
        if needed > length:
            raise UserError(
                f"{self.where}: a window of {own.window} with dilation {own.dilation} needs {needed} tokens of "
                f"{AXES[axis]}, but a sample has {length} (its grid is {' x '.join(map(str, grid))}); "
                "use a smaller window, or window_size_float, which fits every grid"
            )
        if own.stride > own.window:
            raise UserError(
                f"{self.where}: stride {own.stride} is larger than the window, which has {own.window} tokens of "
                f"{AXES[axis]} in the grid {' x '.join(map(str, grid))}"
            )


@dataclass(frozen=True, slots=True)
class AttentionModes:
    """Attention of all layers: the distinct attention patterns, and for each layer the index of its pattern."""

    implementation: str
    patterns: tuple[AttentionPattern, ...]
    layers: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """Whether attention between the latents of a sample is dense in every layer."""
        return not any(pattern.temporal_causal or pattern.profiles for pattern in self.patterns)


def attention_modes(
    implementation: str,
    num_layers: int,
    natten_parameter_list: Sequence[Mapping[str, NeighborhoodConfig]] = (),
    video_temporal_causal: bool = False,
) -> AttentionModes:
    """Returns the attention patterns of a network from its settings.

    Args:
        implementation: "two_way" (dense attention), "three_way" (supports the two settings below) or "flex" (dense,
            with FlexAttention).
        num_layers: Number of layers.
        natten_parameter_list: For each layer the neighborhoods by number of grid axes longer than 1: "1d", "2d" or
            "3d" -> neighborhood. Empty: all layers are dense.
        video_temporal_causal: Whether latents of all layers attend only to the same and earlier frames.

    Raises:
        ValueError: If settings have no effect or contradict each other.
    """
    settings = {"natten_parameter_list": natten_parameter_list, "video_temporal_causal": video_temporal_causal}
    given = [name for name, value in settings.items() if value]
    if given and implementation != "three_way":
        raise WrongValueError(
            {given[0]: settings[given[0]], "joint_attn_implementation": implementation},
            why="only the implementation three_way can restrict the attention of latents",
            remedy="set joint_attn_implementation = 'three_way', or omit the first",
        )
    if len(given) == 2:
        raise WrongValueError(
            settings,
            why="both restrict the attention of latents",
            remedy="omit one (is_causal = [true, false, false] makes the windows of a layer causal in time)",
        )
    if video_temporal_causal:
        return AttentionModes(implementation, (AttentionPattern({}, True, "video_temporal_causal"),), (0,) * num_layers)
    if not natten_parameter_list:
        return AttentionModes(implementation, (AttentionPattern({}),), (0,) * num_layers)
    if len(natten_parameter_list) != num_layers:
        raise WrongValueError(
            {"natten_parameter_list": natten_parameter_list, "network.num_hidden_layers": num_layers},
            why="there must be one item per layer",
            remedy="write one item per layer, {} for dense attention",
        )
    patterns: list[AttentionPattern] = []
    layers = []
    for index, entry in enumerate(natten_parameter_list):
        profiles = read_profiles(entry, f"natten_parameter_list[{index}]")
        known = [pattern.profiles for pattern in patterns]
        if profiles not in known:
            patterns.append(AttentionPattern(profiles, where=f"natten_parameter_list[{index}]"))
        layers.append(known.index(profiles) if profiles in known else len(known))
    return AttentionModes(implementation, tuple(patterns), tuple(layers))


def read_profiles(entry: Mapping[str, NeighborhoodConfig], where: str) -> dict[int, NeighborhoodConfig]:
    """Returns the neighborhoods of a layer by number of grid axes (1, 2, 3); omits those without a window size.

    Args:
        entry: Neighborhood by profile name: "1d", "2d" or "3d".
        where: Config path of the entry, for error messages.

    Raises:
        ValueError: If a profile name is unknown, or a neighborhood has a wrong number of axes.
    """
    profiles = {}
    for name, profile in entry.items():
        if name not in PROFILES:
            why = f"unknown neighborhood key '{name}': expected '1d', '2d' or '3d', the number of axes longer than 1"
            raise WrongValueError({where: entry}, why=why)
        rank = len(profile.window_size or profile.window_size_float)
        if rank not in (0, PROFILES[name]):
            window = {f"{where}.{name}.window_size": profile.window_size or profile.window_size_float}
            raise WrongValueError(window, why=f"it has {rank} items, but a {name} grid has {PROFILES[name]} axes")
        if rank:
            profiles[rank] = profile
    return profiles


def fit_axis(profile: NeighborhoodConfig, index: int, length: int) -> AxisWindow:
    """Returns the attention window along an axis of `length` tokens, from item `index` of the lists in `profile`.

    Sizes that are given as fractions are converted to tokens. The result is not checked against `length`.
    """
    causal = _item(profile.is_causal, index, False)
    if profile.window_size:
        size = profile.window_size[index]
        stride, dilation = _item(profile.stride, index, 1), _item(profile.dilation, index, 1)
        return AxisWindow(length if size == -1 else size, stride, dilation, causal)
    window = min(length, max(2, int(profile.window_size_float[index] * length)))
    stride = min(window, max(1, int(_item(profile.stride_float, index, 0.0) * window)))
    max_dilation = length // window
    return AxisWindow(
        window, stride, min(max_dilation, max(1, int(_item(profile.dilation_float, index, 0.0) * max_dilation))), causal
    )


def describe_modes(modes: AttentionModes) -> str:
    """Returns a phrase for logs that states which layers restrict attention, such as "flex: every layer dense"."""
    if modes.implementation != "three_way":
        return f"{modes.implementation}: every layer dense"
    if modes.patterns[0].temporal_causal:
        return "three_way: in all layers latents attend only to the same and earlier frames"
    restricted = [index for index, pattern in enumerate(modes.layers) if modes.patterns[pattern].profiles]
    ranks = sorted({f"{rank}d" for pattern in modes.patterns for rank in pattern.profiles})
    if not restricted:
        return "three_way: every layer dense"
    return (
        f"three_way: {len(restricted)} of {len(modes.layers)} layers with windows (for {', '.join(ranks)} grids; "
        "attention in other grids is dense)"
    )


def check_device(implementation: str, device: str) -> None:
    """Raises UserError if the attention implementation cannot be trained on `device`, such as "cuda:0"."""
    if implementation == "flex" and not device.startswith("cuda"):
        raise UserError(
            f"joint_attn_implementation = 'flex' only trains on CUDA; on '{device}' FlexAttention has no backward "
            "pass. Use joint_attn_implementation = 'two_way', which computes the same result"
        )


def _item(values: Sequence[T], index: int, default: T) -> T:
    return values[index] if values else default
