"""The sums of parallel degrees, and the words when they do not add up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.config import ConfigError, WrongValueError
from worldsmith.config.load import load
from worldsmith.config.sections import ParallelismConfig
from worldsmith.distributed.degrees import NAMES, Degrees, check_heads, check_world_size, fit_degrees


@pytest.mark.parametrize(
    ("shard", "replicate", "world", "expected"),
    [
        (-1, 1, 8, Degrees(1, 8)),
        (-1, 2, 8, Degrees(2, 4)),
        (4, -1, 8, Degrees(2, 4)),
        (1, -1, 8, Degrees(8, 1)),
        (-1, -1, 8, Degrees(1, 8)),
        (-1, 1, 1, Degrees(1, 1)),
        (4, 2, 8, Degrees(2, 4)),
    ],
)
def test_minus_one_fits(shard: int, replicate: int, world: int, expected: Degrees) -> None:
    assert fit_degrees(shard, replicate, world) == expected


@pytest.mark.parametrize(
    ("shard", "replicate", "world", "needs"),
    [
        (8, 1, 4, "8 processes"),
        (4, 1, 8, "4 processes"),
        (3, -1, 8, "a multiple of 3 processes"),
        (-1, 3, 8, "a multiple of 3 processes"),
        (-1, 16, 8, "a multiple of 16 processes"),
    ],
)
def test_products_that_do_not_fit_name_what_would(shard: int, replicate: int, world: int, needs: str) -> None:
    with pytest.raises(
        WrongValueError, match=rf"needs {needs}, but the run has {world} processes; .* can be 1 × {world}, "
    ):
        fit_degrees(shard, replicate, world)


def test_zero_is_refused() -> None:
    for degrees in ((0, 1, 8), (1, 0, 8), (-2, 1, 8)):
        with pytest.raises(WrongValueError, match="must be at least 1, or -1"):
            fit_degrees(*degrees)
    with pytest.raises(WrongValueError, match="context_parallel_shard_degree must be at least 1, found 0"):
        fit_degrees(-1, 1, 8, context=0)


def test_context_is_a_factor_and_cuts_the_weights_but_not_the_data() -> None:
    found = fit_degrees(4, 1, 8, context=2)  # the published arrangement of the largest network
    assert (found, found.data, found.weights) == (Degrees(1, 4, 2), 4, 8)
    assert fit_degrees(-1, 2, 8, context=4) == Degrees(2, 1, 4)
    assert str(fit_degrees(-1, 2, 8, context=2)) == "replicate 2 × shard 2 × context 2"
    with pytest.raises(WrongValueError, match=r"= 3: the run has 8 processes.*these are possible: 1, 2, 4, 8$"):
        fit_degrees(-1, 1, 8, context=3)
    with pytest.raises(
        WrongValueError,
        match=r"= 2: their product needs 16 processes, but .*can be 1 × 4, 2 × 2, 4 × 1",
    ):
        fit_degrees(8, 1, 8, context=2)


def test_heads_are_shared_evenly_or_the_message_says_what_would_work() -> None:
    for context in (1, 2, 4, 8, 16, 32):  # Nano: 32 heads, 8 key heads
        check_heads(context, 32, 8)
    with pytest.raises(ValueError, match=r"= 64: 32 attention heads.*these are possible: 1, 2, 4, 8, 16, 32$"):
        check_heads(64, 32, 8)
    with pytest.raises(ValueError, match=r"= 4: 12 .* 6 key and value heads.*these are possible: 1, 2, 3, 6, 12$"):
        check_heads(4, 12, 6)


@pytest.mark.parametrize(
    ("degrees", "world", "words"),
    [
        ((-1, 1, 1), "8", None),
        ((4, 1, 2), "8", None),
        ((4, 2, 2), None, None),
        ((-1, 1, 3), None, None),  # nothing can be said: the number of processes is open
        ((4, 1, 1), "8", "needs 4 processes, but the run has 8 processes (WORLD_SIZE)"),
        ((4, 2, 2), "8", "their product needs 16 processes, but the run has 8 processes"),
        ((-1, 3, 1), "8", "needs a multiple of 3 processes, but the run has 8 processes"),
        ((-1, 1, 3), "8", "context_parallel_shard_degree = 3: the run has 8 processes"),
        ((4, 1, 1), "many", None),
    ],
)
def test_degrees_are_compared_with_the_environment(
    degrees: tuple[int, int, int], world: str | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    section = ParallelismConfig(**dict(zip(NAMES, degrees)))
    if words is None:
        check_world_size(section)
        return
    with pytest.raises(WrongValueError) as caught:
        check_world_size(section)
    assert caught.value.message.startswith("model.config.parallelism: ")
    assert words in caught.value.message
    assert caught.value.remedy
    assert all(name.startswith("model.config.parallelism.") for name in caught.value.names)


def test_degrees_are_checked_when_a_file_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET_PATH", str(tmp_path))
    path = tmp_path / "run.toml"
    path.write_text('[job]\nexperiment = "cogvideox_2b_tiny"\n[model.parallelism]\ndata_parallel_shard_degree = 4\n')
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (remark,) = [w for w in load(str(path)).warnings if "worldsmith launch" in w]
    assert remark.startswith("model.config.parallelism needs 4 processes")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert not [w for w in load(str(path)).warnings if "worldsmith launch" in w]
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (4, 30)
    assert "1 × 6, 2 × 3, 3 × 2, 6 × 1" in problem.hint


@given(shard=st.integers(-1, 16), replicate=st.integers(-1, 16), world=st.integers(1, 32), context=st.integers(1, 8))
def test_whatever_is_accepted_adds_up_and_keeps_what_was_asked(
    shard: int, replicate: int, world: int, context: int
) -> None:
    """Nothing is clamped: a degree that is not -1 is used as it was written, or the call fails."""
    groups = world // context
    try:
        found = fit_degrees(shard, replicate, world, context=context)
    except ValueError:
        fits = (
            shard != 0
            and replicate != 0
            and world % context == 0
            and (
                groups % abs(shard) == 0 if replicate == -1 else groups % abs(replicate) == 0 if shard == -1 else False
            )
        )
        assert not fits or (shard, replicate) == (-1, -1)
        return
    assert found.replicate * found.shard * found.context == world
    assert found.data * found.context == found.weights * found.replicate == world
    assert shard in (-1, found.shard)
    assert replicate in (-1, found.replicate)
